// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM of dense BF16 operands on gfx942 and gfx950, each with k or rows contiguous (transposed).
// 1. Load a step of A and B from memory to registers, while the previous step is multiplied.
// 2. Store it in LDS. A transposed operand is transposed in registers first, two k of eight rows at a time.
// 3. `v_mfma` 16x16x16, k ascending in one accumulator that begins at +0.
// 4. Store C.
// Elements beyond an operand's end are +0, which changes no bit. Compiled with clang and tested on an emulator; not run
// on a device.
#pragma once

#include <algorithm>

#include "gpu/gemm/amd/common.hpp"

namespace rotoscale::gpu::amd {

inline constexpr int dense_step = 32;  // k per step: 64 bytes of a row in LDS

/// Codes of an operand: rows of k (transposed: k of rows), `stride` bytes apart.
struct dense_operand {
  const std::uint8_t* codes;
  std::int64_t stride;
};
struct dense_arguments {
  dense_operand a, b;
  bool fours;  ///< of store_columns
  gemm_arguments p;
};

template <class Tile>
struct dense_memory {
  alignas(16) std::uint8_t codes[2][(Tile::rows + Tile::columns) * 64];  ///< [buffer]: A's rows, then B's
};

template <int Rows, int Columns>
struct dense_shape : tile<Rows, Columns> {
  using tile<Rows, Columns>::row_tiles, tile<Rows, Columns>::column_tiles;
  /// Cycles of a step, from gfx942's peak rates:
  /// - Products: 16 cycles each, on four matrix cores.
  /// - LDS: one write, and each wave's reads of its rows and columns, at 128 bytes per cycle.
  /// - L2: half of the peak of 64 bytes per cycle and CU is assumed.
  static constexpr int product_cycles = 2 * row_tiles * column_tiles * 16;
  static constexpr int lds_cycles = (4 * 2 * (row_tiles + column_tiles) * 64 * 8 + (Rows + Columns) * 64) / 128;
  static constexpr int l2_cycles = (Rows + Columns) * 64 / 32;
  /// Upper bound in percent of the matrix cores' rate.
  static constexpr int percent = 100 * product_cycles / std::max({product_cycles, lds_cycles, l2_cycles});
  /// Estimate of vector registers: sums, fragments, loads in flight, and other uses by clang 22.
  static constexpr int registers =
      4 * row_tiles * column_tiles + 4 * (row_tiles + column_tiles) + 6 * ((Rows + 63) / 64 + (Columns + 63) / 64) + 40;
  static constexpr int lds_waves = 64 * 1024 / static_cast<int>(sizeof(dense_memory<tile<Rows, Columns>>));
  static constexpr int waves_a_simd = std::min({8, 512 / registers, lds_waves});
};

/// LDS offset of a chunk of four k. Chunks are swizzled within a row, so that accesses of 128 bytes by neighbouring
/// lanes cover different banks (bf16_test). They read a chunk of sixteen rows, two rows, or words of rows 8 apart.
ROTOSCALE_HD constexpr int dense_offset(int row, int chunk) {
  return row * 64 + (chunk ^ row / 2 % 8 ^ row / 16 % 2 * 4) * 8;
}
/// The offset of row + 16 i and chunk + 4 half, from the offset of row and a chunk below 4. Most of it is a
/// compile-time constant.
ROTOSCALE_HD constexpr int dense_offset_from(int offset, int i, int half) {
  return (offset ^ (i % 2 ^ half) * 32) + i * 1024;
}
static_assert([] {
  for (int i = 0; i < 5 * 2 * 4 * 32; ++i) {
    const int row = i % 32, chunk = i / 32 % 4, half = i / 128 % 2, tile = i / 256;
    if (dense_offset_from(dense_offset(row, chunk), tile, half) != dense_offset(row + 16 * tile, chunk + 4 * half)) {
      return false;
    }
  }
  return true;
}());

/// Loads `count` of eight elements; the others are zero. To avoid a branch, these are read from `else_from`.
__device__ inline int4 load_some(const std::uint8_t* from, int count, const std::uint8_t* else_from) {
  std::uint32_t code[8];
  ROTOSCALE_UNROLL
  for (int e = 0; e < 8; ++e) code[e] = *reinterpret_cast<const any_half*>(e < count ? from + 2 * e : else_from);
  int4 words;
  ROTOSCALE_UNROLL
  for (int e = 0; e < 8; e += 2) {
    keep_in_vector_registers(code[e]);
    keep_in_vector_registers(code[e + 1]);
    words[e / 2] = static_cast<int>((e < count ? code[e] : 0u) | (e + 1 < count ? code[e + 1] : 0u) << 16);
  }
  return words;
}

/// Registers between memory and LDS: one thread's part of the `Rows` operand rows of a step. K is contiguous here. A
/// vector has eight k of every 64th row.
template <int Rows, bool Transposed>
class dense_rows {
 public:
  /// Rows from `first` on, of `rows`; k from `first_k` on.
  __device__ dense_rows(const dense_operand& x, int first, int rows, int first_k, int thread)
      : codes_(x.codes), row_(thread / 4), part_(thread % 4) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      const int row = first + row_ + 64 * i;  // rows past the end read the last one; their outputs are not stored
      from_[i] = x.codes + (row < rows ? row : rows - 1) * x.stride + 2 * (first_k + 8 * part_);
    }
  }
  /// True if some vectors reach beyond the operand for every k.
  __device__ static bool is_ragged(int, int) { return false; }
  /// Loads the next step's k.
  __device__ void load() {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (!works(i)) continue;
      vec_[i] = *reinterpret_cast<const any_int4*>(from_[i]);
      from_[i] += 2 * dense_step;
    }
  }
  /// The same if only `left` k remain, or the block is ragged.
  __device__ void load_ragged(int left) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (!works(i)) continue;
      vec_[i] = load_some(from_[i], left - 8 * part_, codes_);
      from_[i] += 2 * dense_step;
    }
  }
  /// A vector is two chunks, which the swizzle may exchange.
  __device__ void store(std::uint8_t* to) {
    const int at = dense_offset(row_, 2 * part_);
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (!works(i)) continue;
      keep_in_vector_registers(vec_[i]);
      const int4 x = vec_[i], exchanged = {x[2], x[3], x[0], x[1]};
      *reinterpret_cast<any_int4*>(to + (at & ~8) + i * 64 * 64) = (at & 8) != 0 ? exchanged : x;
    }
  }

 private:
  static constexpr int count = (Rows + 63) / 64;
  __device__ bool works(int i) const { return 64 * i + 64 <= Rows || row_ + 64 * i < Rows; }

  const std::uint8_t* codes_;
  int row_, part_;
  const std::uint8_t* from_[count];
  int4 vec_[count] = {};
};

/// The same with rows contiguous: patches of eight rows of a pair of k, every 16th patch. Four lanes have neighbouring
/// vectors.
template <int Rows>
class dense_rows<Rows, true> {
 public:
  __device__ dense_rows(const dense_operand& x, int first, int rows, int first_k, int thread)
      : codes_(x.codes),
        step_bytes_(dense_step * x.stride),
        patch_(thread / 64 * 4 + thread % 4),
        pair_(thread / 4 % 16),
        rows_(rows - first - 8 * patch_) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      const int row = rows_ > 128 * i ? first + 8 * patch_ + 128 * i : 0;
      ROTOSCALE_UNROLL
      for (int e = 0; e < 2; ++e) from_[i][e] = x.codes + (first_k + 2 * pair_ + e) * x.stride + 2 * row;
    }
  }
  __device__ static bool is_ragged(int first, int rows) { return rows % 8 != 0 && first + Rows > rows; }
  __device__ void load() {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (!works(i)) continue;
      ROTOSCALE_UNROLL
      for (int e = 0; e < 2; ++e) {
        vec_[i][e] = *reinterpret_cast<const any_int4*>(from_[i][e]);
        from_[i][e] += step_bytes_;
      }
    }
  }
  __device__ void load_ragged(int left) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (!works(i)) continue;
      ROTOSCALE_UNROLL
      for (int e = 0; e < 2; ++e) {
        vec_[i][e] = load_some(from_[i][e], 2 * pair_ + e < left ? rows_ - 128 * i : 0, codes_);
        from_[i][e] += step_bytes_;
      }
    }
  }
  /// Two k of a row form a word. Of two neighbouring patches, one writes its even rows first, the other its odd rows.
  __device__ void store(std::uint8_t* to) {
    const int odd = patch_ % 2, at = dense_offset(8 * patch_ + odd, pair_ / 2) + pair_ % 2 * 4;
    const std::uint32_t low = 0x05040100u, high = 0x07060302u;
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      if (!works(i)) continue;
      ROTOSCALE_UNROLL
      for (int e = 0; e < 2; ++e) keep_in_vector_registers(vec_[i][e]);
      ROTOSCALE_UNROLL
      for (int t = 0; t < 8; ++t) {  // row t ^ odd
        const std::uint32_t word = permute(static_cast<std::uint32_t>(vec_[i][0][t / 2]),
                                           static_cast<std::uint32_t>(vec_[i][1][t / 2]), t % 2 != odd ? high : low);
        *reinterpret_cast<any_word*>(to + (at ^ (t % 2 * 64 + t / 2 * 8)) + t / 2 * 128 + i * 128 * 64) = word;
      }
    }
  }

 private:
  static constexpr int count = (Rows + 127) / 128;
  __device__ bool works(int i) const { return 128 * i + 128 <= Rows || 8 * patch_ + 128 * i < Rows; }

  const std::uint8_t* codes_;
  std::int64_t step_bytes_;
  int patch_, pair_, rows_;  ///< rows_: number of rows from the first patch on
  const std::uint8_t* from_[count][2];
  int4 vec_[count][2] = {};
};

/// A wave's sums, and the LDS offsets of its fragments. Lane l holds row l % 16 of an instruction's results and columns
/// 4 (l / 16) .. + 3, since B is the first operand.
template <class Tile>
class dense_sums {
 public:
  /// The wave's outputs begin at (wave_row, wave_column) of the block.
  __device__ dense_sums(int wave_row, int wave_column, int lane)
      : row_(wave_row + lane % 16),
        column_(wave_column + lane / 16 * 4),
        at_a_(dense_offset(row_, lane / 16)),
        at_b_(Tile::rows * 64 + dense_offset(wave_column + lane % 16, lane / 16)) {}
  /// Adds a step's products.
  __device__ void multiply(const std::uint8_t* codes) {
    ROTOSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto fragment = [&](int at, int i) {
        return *reinterpret_cast<const any_short4*>(codes + dense_offset_from(at, i, half));
      };
      short4 rows[Tile::row_tiles];
      ROTOSCALE_UNROLL
      for (int i = 0; i < Tile::row_tiles; ++i) rows[i] = fragment(at_a_, i);
      ROTOSCALE_UNROLL
      for (int j = 0; j < Tile::column_tiles; ++j) {
        const short4 column = fragment(at_b_, j);
        ROTOSCALE_UNROLL
        for (int i = 0; i < Tile::row_tiles; ++i) sum_[i][j] = multiply_bf16(column, rows[i], sum_[i][j]);
      }
    }
  }
  /// Stores the outputs of the block at (row, column).
  __device__ void store(const dense_arguments& g, int row, int column, int part) const {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Tile::row_tiles; ++i) {
      ROTOSCALE_UNROLL
      for (int j = 0; j < Tile::column_tiles; ++j) {
        store_columns(g.p, g.fours, sum_[i][j], row + row_ + 16 * i, column + column_ + 16 * j, part);
      }
    }
  }

 private:
  int row_, column_, at_a_, at_b_;
  float4 sum_[Tile::row_tiles][Tile::column_tiles] = {};  // [row tile][column tile]
};

/// The grid is (columns of tiles, rows of tiles, parts of K).
template <int Rows, int Columns, bool TransposedA, bool TransposedB>
[[maybe_unused]] static __global__ void ROTOSCALE_AMD_BLOCK(threads, (dense_shape<Rows, Columns>::waves_a_simd),
                                                            (dense_shape<Rows, Columns>::waves_a_simd))
    dense_kernel(const dense_arguments g) {
  using Tile = tile<Rows, Columns>;
  constexpr int step = dense_step;
  auto& codes = block_shared<dense_memory<Tile>>().codes;
  const int thread = static_cast<int>(thread_index().x), wave = uniform(thread / 64);
  const int part = static_cast<int>(block_index().z);
  const int row = static_cast<int>(block_index().y) * Rows, column = static_cast<int>(block_index().x) * Columns;
  const int first_k = part * g.p.part_k, last_k = first_k + g.p.part_k < g.p.k ? first_k + g.p.part_k : g.p.k;

  dense_rows<Rows, TransposedA> a(g.a, row, g.p.m, first_k, thread);
  dense_rows<Columns, TransposedB> b(g.b, column, g.p.n, first_k, thread);
  dense_sums<Tile> sums(wave / Tile::waves_across * Tile::wave_rows, wave % Tile::waves_across * Tile::wave_columns,
                        thread % 64);
  // Steps up to this k have whole vectors only.
  const bool ragged = a.is_ragged(row, g.p.m) || b.is_ragged(column, g.p.n);
  const int whole_k = ragged ? first_k : last_k - (last_k - first_k) % step;
  const auto load = [&] {
    a.load();
    b.load();
  };
  const auto load_ragged = [&](int k) {
    a.load_ragged(last_k - k);
    b.load_ragged(last_k - k);
  };
  const auto buffer_of = [&](int k) { return codes[static_cast<unsigned>(k - first_k) / step % 2]; };
  const auto stage = [&](int k) {
    a.store(buffer_of(k));
    b.store(buffer_of(k) + Rows * 64);
    block_barrier();
  };
  // The next step is prefetched to registers while this one is multiplied. The schedule barrier keeps compilers from
  // moving its loads after the products.
  int k = first_k;
  if (k < whole_k) {
    load();
  } else {
    load_ragged(k);
  }
  for (; k + step < whole_k; k += step) {
    stage(k);
    load();
    schedule_barrier();
    sums.multiply(buffer_of(k));
  }
  for (; k < last_k; k += step) {
    stage(k);
    if (k + step < last_k) load_ragged(k + step);
    sums.multiply(buffer_of(k));
  }
  sums.store(g, row, column, part);
}

}  // namespace rotoscale::gpu::amd
