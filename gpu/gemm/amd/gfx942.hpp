// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The MXFP4 GEMM of gfx942, which has neither FP4 nor block scales. Codes and scales are row-major.
// 1. Load a step of 128 k from memory to registers, while the previous step is multiplied. Store it in LDS.
// 2. Convert E2M1 codes to FP8 bytes.
// 3. One FP8 MFMA per block of 32, from zero: exact in any order (multiples of 1/4 below 2^11, 24 bits).
// 4. One fused multiply-add scales and adds the block's sum, so the bits are the reference's.
// 5. Store; outputs with extreme scales are recomputed by the reference.
//
// MXFP8 takes another path: products of E4M3 need more bits than the unit keeps, so upconvert.hpp folds scales into
// BF16, exactly, and dense.hpp multiplies. Compiled with clang and tested on an emulator of FNUZ bytes; not run on a
// device.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/amd/common.hpp"
#include "gpu/gemm/reference_kernel.hpp"

namespace rotoscale::gpu::gfx942 {

using amd::threads, amd::tile;

inline constexpr int step = 128;  // k per step: 64 bytes and four scales per row

using amd::float4;
using amd::int4;

struct arguments {
  kernel_operand a, b;
  gemm_arguments p;
};

/// FP8 bytes of magnitudes 0 to 7 (0.5, 1, 1.5, ...): E4M3FNUZ, or E4M3 if the unit takes OCP formats.
inline constexpr std::uint32_t table_low = amd::fp8_is_fnuz ? 0x44403800u : 0x3C383000u;
inline constexpr std::uint32_t table_high = amd::fp8_is_fnuz ? 0x54504C48u : 0x4C484440u;
static_assert(decode(formats::e4m3fnuz, 0x38) == 0.5f && decode(formats::e4m3fnuz, 0x44) == 1.5f &&
              decode(formats::e4m3fnuz, 0x48) == 2.0f && decode(formats::e4m3fnuz, 0x54) == 6.0f);
static_assert(decode(formats::e4m3, 0x30) == 0.5f && decode(formats::e4m3, 0x3C) == 1.5f &&
              decode(formats::e4m3, 0x40) == 2.0f && decode(formats::e4m3, 0x4C) == 6.0f);

/// Converts four codes, in the low halves of bytes, to FP8. FNUZ has no -0, so a zero loses its sign.
__device__ inline std::uint32_t to_fp8(std::uint32_t codes) {
  const std::uint32_t magnitude = codes & 0x07070707u;
  const std::uint32_t value = amd::permute(table_low, table_high, magnitude);
  const std::uint32_t nonzero = amd::permute(0x80808000u, 0x80808080u, magnitude);
  return value | ((codes & 0x08080808u) << 4 & nonzero);
}
/// Converts eight codes, even ones first. Both operands use this order.
__device__ inline std::int64_t to_fragment(std::uint32_t codes) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(to_fp8(codes >> 4)) << 32 | to_fp8(codes));
}

/// Least and largest scale byte of a row so far.
struct byte_range {
  int least = 255, largest = 0;
  __device__ void add(int byte) {
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
  __device__ static byte_range of(std::uint32_t word) {
    return {static_cast<int>(word & 0xFFu), static_cast<int>(word >> 8)};
  }
  __device__ std::uint32_t word() const { return static_cast<std::uint32_t>(least | largest << 8); }
};
/// True if one multiply-add handles all products of two rows' scales. Otherwise the output is recomputed.
__device__ inline bool scales_are_plain(const byte_range& a, const byte_range& b) {
  return a.least >= 1 && b.least >= 1 && a.largest <= 254 && b.largest <= 254 && a.least + b.least - 254 >= -147 &&
         a.largest + b.largest - 254 <= 127;
}

template <class Tile>
struct shared_memory {
  alignas(16) std::uint8_t codes[2][(Tile::rows + Tile::columns) * 64];  ///< [buffer]: A's rows, then B's
  std::uint32_t scales[2][2][Tile::columns];                             ///< [buffer][operand]
  std::uint32_t ranges[2][Tile::columns];                                ///< [operand]: byte_range of a row
};

/// LDS offset of 16-byte vector `vec` of row `row`. Vectors are swizzled so that the rows of a fragment are in
/// different banks.
__device__ inline int lds_offset(int row, int vec) { return row * 64 + (vec ^ (row / 2 % 4)) * 16; }

/// A thread's vectors of a step (64 bytes of each row of A and B), in registers between memory and LDS.
template <class Tile>
struct staged_rows {
  struct source {
    const std::uint8_t* codes;  ///< codes of row 0, at the step's k
    std::int64_t stride;
    int rows, first;
  };
  int4 vec[2][2];
  __device__ void load(const source& a, const source& b) {
    const int thread = static_cast<int>(thread_index().x);
    ROTOSCALE_UNROLL
    for (int m = 0; m < 2; ++m) {
      const source& x = m == 0 ? a : b;
      ROTOSCALE_UNROLL
      for (int i = 0; i < Tile::extent(m); i += 64) {
        const int row = x.first + thread / 4 + i, last = x.rows - 1;
        vec[m][i / 64] =
            *reinterpret_cast<const int4*>(x.codes + (row < last ? row : last) * x.stride + thread % 4 * 16);
      }
    }
  }
  __device__ void store(std::uint8_t* to) {
    const int thread = static_cast<int>(thread_index().x);
    ROTOSCALE_UNROLL
    for (int m = 0; m < 2; ++m) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < Tile::extent(m); i += 64) {
        if (Tile::extent(m) < 64 && thread / 4 >= Tile::extent(m)) continue;
        amd::keep_in_vector_registers(vec[m][i / 64]);
        *reinterpret_cast<int4*>(to + Tile::first(m) * 64 + lds_offset(thread / 4 + i, thread % 4)) = vec[m][i / 64];
      }
    }
  }
};

/// A step's operands: in registers between memory and LDS, and in LDS.
template <class Tile>
class staged_step {
 public:
  __device__ staged_step(const arguments& g, int first_row, int first_column, int thread)
      : g_(g), first_row_(first_row), first_column_(first_column), thread_(thread) {}
  /// Loads the step at `k`.
  __device__ void load(int k) {
    rows_.load({g_.a.codes + k / 2, g_.a.code_stride, g_.a.rows, first_row_},
               {g_.b.codes + k / 2, g_.b.code_stride, g_.b.rows, first_column_});
    const bool second = thread_ >= Tile::columns;
    const kernel_operand& x = second ? g_.b : g_.a;
    const int row = (second ? first_column_ : first_row_) + thread_ % Tile::columns;  // A: unused past its tile
    scale_ =
        *reinterpret_cast<const std::uint32_t*>(x.scales + (row < x.rows ? row : x.rows - 1) * x.scale_stride + k / 32);
  }
  __device__ void store(shared_memory<Tile>& shared, int buffer) {
    rows_.store(shared.codes[buffer]);
    amd::keep_in_vector_registers(scale_);
    shared.scales[buffer][thread_ / Tile::columns][thread_ % Tile::columns] = scale_;
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) range_.add(static_cast<int>(scale_ >> (8 * i) & 0xFFu));
  }
  /// After the last step: stores the ranges of all rows' scales.
  __device__ void store_range(shared_memory<Tile>& shared) const {
    shared.ranges[thread_ / Tile::columns][thread_ % Tile::columns] = range_.word();
  }

 private:
  static_assert(Tile::columns == threads / 2 && Tile::rows <= Tile::columns, "half of the threads load scales of B");
  const arguments& g_;
  int first_row_, first_column_, thread_;
  staged_rows<Tile> rows_;
  std::uint32_t scale_;
  byte_range range_;
};

/// A wave's outputs. Lane l holds row l % 16 of an instruction's results and columns 4 (l / 16) .. + 3, since B is the
/// first operand.
template <class Tile>
class wave_sums {
 public:
  /// The wave's outputs begin at (wave_row, wave_column) of the block.
  __device__ wave_sums(int wave_row, int wave_column, int lane)
      : wave_row_(wave_row), wave_column_(wave_column), lane_(lane) {}

  /// Adds the products of the step in `buffer`. A block's codes are prefetched while the block before is multiplied.
  __device__ void add_step(const shared_memory<Tile>& shared, int buffer) {
    std::uint32_t scale_a[tiles], scale_b[tiles][4];
    ROTOSCALE_UNROLL
    for (int i = 0; i < tiles; ++i) {
      scale_a[i] = shared.scales[buffer][0][wave_row_ + 16 * i + lane_ % 16];
      ROTOSCALE_UNROLL
      for (int e = 0; e < 4; ++e) scale_b[i][e] = shared.scales[buffer][1][wave_column_ + 16 * i + lane_ / 16 * 4 + e];
    }
    codes x = read(shared.codes[buffer], 0);
    ROTOSCALE_UNROLL
    for (int block = 0; block < 4; ++block) {
      const codes now = x;
      if (block < 3) x = read(shared.codes[buffer], block + 1);
      amd::schedule_barrier();
      add_block(now, block, scale_a, scale_b);
      amd::schedule_barrier();
    }
  }

  /// Stores the outputs of the block at (first_row, first_column), after `shared.ranges` was written. Outputs whose
  /// scales need more than one multiply-add, one bit each, are recomputed at the end.
  template <bool Vector>
  __device__ void store(const arguments& g, const shared_memory<Tile>& shared, int first_row, int first_column) const {
    std::uint64_t again = 0;
    const int row0 = wave_row_ + lane_ % 16, column0 = wave_column_ + lane_ / 16 * 4;
    ROTOSCALE_UNROLL
    for (int i = 0; i < tiles; ++i) {
      ROTOSCALE_UNROLL
      for (int j = 0; j < tiles; ++j) {
        const int row = row0 + 16 * i, column = column0 + 16 * j;
        const byte_range a = byte_range::of(shared.ranges[0][row]);
        std::uint64_t bits = 0;
        ROTOSCALE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const bool plain = scales_are_plain(a, byte_range::of(shared.ranges[1][column + e]));
          bits |= std::uint64_t{!plain} << e;
        }
        store_tile<Vector>(g, sum_[i][j], static_cast<std::uint32_t>(bits), first_row + row, first_column + column);
        again |= bits << 4 * (tiles * i + j);
      }
    }
    for (; again != 0; again &= again - 1) {
      const int i = __builtin_ctzll(again), row = first_row + row0 + i / (4 * tiles) * 16,
                column = first_column + column0 + i / 4 % tiles * 16 + i % 4;
      if (row < g.p.m && column < g.p.n) store_output(g.p, reference_sum(g.a, g.b, row, column), row, column);
    }
  }

 private:
  static constexpr int tiles = Tile::row_tiles;
  static_assert(tiles == Tile::column_tiles && tiles * tiles * 4 <= 64, "a bit an output of a lane");

  /// Eight codes of a block of each row tile and column tile.
  struct codes {
    std::uint32_t a[tiles], b[tiles];
  };
  __device__ codes read(const std::uint8_t* from, int block) const {
    const auto eight = [&](int row) {
      std::uint32_t word;
      __builtin_memcpy(&word, from + lds_offset(row + lane_ % 16, block) + lane_ / 16 * 4, 4);
      return word;
    };
    codes x;
    ROTOSCALE_UNROLL
    for (int i = 0; i < tiles; ++i) {
      x.a[i] = eight(wave_row_ + 16 * i);
      x.b[i] = eight(Tile::first(1) + wave_column_ + 16 * i);
    }
    return x;
  }

  __device__ void add_block(const codes& x, int block, const std::uint32_t (&scale_a)[tiles],
                            const std::uint32_t (&scale_b)[tiles][4]) {
    const auto factor = [block](std::uint32_t scales) { return fp32_from_bits((scales >> (8 * block) & 0xFFu) << 23); };
    std::int64_t a[tiles];
    float factor_a[tiles];
    ROTOSCALE_UNROLL
    for (int i = 0; i < tiles; ++i) {
      a[i] = to_fragment(x.a[i]);
      factor_a[i] = factor(scale_a[i]);
    }
    // A product is added while the matrix core computes the next one.
    float4 product = {}, product_scale = {};
    ROTOSCALE_UNROLL
    for (int j = 0; j < tiles; ++j) {
      const std::int64_t b = to_fragment(x.b[j]);
      float4 factor_b;
      ROTOSCALE_UNROLL
      for (int e = 0; e < 4; ++e) factor_b[e] = factor(scale_b[j][e]);
      ROTOSCALE_UNROLL
      for (int i = 0; i < tiles; ++i) {
        const float4 next = amd::multiply_fp8(b, a[i]);
        if (i + j > 0) add(i > 0 ? i - 1 : tiles - 1, i > 0 ? j : j - 1, product, product_scale);
        product = next;
        product_scale = factor_a[i] * factor_b;
      }
    }
    add(tiles - 1, tiles - 1, product, product_scale);
  }
  __device__ void add(int i, int j, float4 product, float4 scale) {
    sum_[i][j] = amd::multiply_add(product, scale, sum_[i][j]);
  }

  /// Stores a tile. The non-vector path skips outputs that will be recomputed, one bit each; the vector path stores
  /// them too.
  template <bool Vector>
  __device__ static void store_tile(const arguments& g, const float4& sum, std::uint32_t again, int row, int column) {
    if (row >= g.p.m || column >= g.p.n) return;
    if (Vector) return amd::store_four(g.p, sum, row, column);
    ROTOSCALE_UNROLL
    for (int e = 0; e < 4; ++e) {
      if ((again >> e & 1) == 0 && column + e < g.p.n) store_output(g.p, sum[e], row, column + e);
    }
  }

  int wave_row_, wave_column_, lane_;
  float4 sum_[tiles][tiles] = {};  ///< [row tile][column tile]
};

/// The grid is (columns of tiles, rows of tiles). Vector: BF16, 8-byte aligned rows, no C, no bias.
template <int Rows, int Columns, bool Vector>
[[maybe_unused]] static __global__ void ROTOSCALE_AMD_BLOCK(threads, (Rows < 128 ? 2 : 1), 2)
    gemm_kernel(const arguments g) {
  using Tile = tile<Rows, Columns>;
  auto& shared = block_shared<shared_memory<Tile>>();
  const int thread = static_cast<int>(thread_index().x), lane = thread % 64, wave = thread / 64;
  const int first_row = static_cast<int>(block_index().y) * Rows,
            first_column = static_cast<int>(block_index().x) * Columns;
  staged_step<Tile> staged(g, first_row, first_column, thread);
  wave_sums<Tile> sums(wave / Tile::waves_across * Tile::wave_rows, wave % Tile::waves_across * Tile::wave_columns,
                       lane);
  staged.load(0);
  for (int k = 0; k < g.a.k; k += step) {
    const int buffer = k / step % 2;
    staged.store(shared, buffer);
    block_barrier();
    if (k + step < g.a.k) staged.load(k + step);
    sums.add_step(shared, buffer);
  }
  staged.store_range(shared);
  block_barrier();
  sums.template store<Vector>(g, shared, first_row, first_column);
}

}  // namespace rotoscale::gpu::gfx942
