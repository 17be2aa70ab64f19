// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The MXFP4 and MXFP8 GEMM of gfx950 on its scaled matrix instruction, from operands as AITER stores them: codes
// shuffled in tiles of 16 × 16 bytes (B always, A or plain), scales of both swizzled. 16 rows × 64 bytes are then an
// LDS tile: 1024 bytes in which lane l finds its 16 at 16 l, for FP4 and for FP8 alike, copied as they are. A lane's
// fragment comes from one LDS tile of FP4 (128 k) or two of FP8. Compiled with clang and executed on an emulator;
// nobody has timed it.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/amd/common.hpp"

namespace rotoscale::gpu::gfx950 {

inline constexpr int step_bytes = 128;       // of a row a step: two LDS tiles
inline constexpr int lds_tile_bytes = 1024;  // 16 rows × 64 bytes
inline constexpr int scale_k = 256;          // k of the four scales that lie in a dword, for two row tiles

/// Rows × Columns outputs of a block; its waves share them as
///
///   tile        a wave     waves a SIMD
///   256 × 256  128 × 128   1
///   128 × 128   64 ×  64   2
///    64 × 256   64 ×  64   2
///    32 × 128   32 ×  32   4
///
/// With two waves a SIMD or more, sums fit beside fragments in one half of the registers, and nothing is moved.
template <int Rows, int Columns>
struct tile {
  static constexpr int rows = Rows, columns = Columns;
  static constexpr int waves = 4, threads = 64 * waves;
  static constexpr int waves_down = Rows < 128 ? 1 : 2, waves_across = waves / waves_down;
  static constexpr int wave_rows = Rows / waves_down, wave_columns = Columns / waves_across;
  static constexpr int lds_tiles_a = Rows / 16 * 2, lds_tiles_b = Columns / 16 * 2;  // of a step
  static constexpr int lds_bytes = 2 * (lds_tiles_a + lds_tiles_b) * lds_tile_bytes;
  static constexpr int waves_a_simd = 160 * 1024 / lds_bytes;  // a wave of a block each
  /// Cycles of FP4's products in a step, as a part of those of LDS, which reads and writes 128 bytes a cycle.
  static constexpr int row_tiles = wave_rows / 16, column_tiles = wave_columns / 16;
  static constexpr int product_cycles = row_tiles * column_tiles * 2 * 16,
                       lds_cycles = (waves * (row_tiles + column_tiles) * 2 + lds_tiles_a + lds_tiles_b) * 8;
  static constexpr int percent = product_cycles < lds_cycles ? 100 * product_cycles / lds_cycles : 100;
  static_assert(256 % Rows == 0 && 256 % Columns == 0, "swizzled scales are padded to 256 rows");
  static_assert(wave_rows % 32 == 0 && wave_columns % 32 == 0, "as many rows lie in a dword of scales");
  static_assert(lds_tiles_a % waves == 0 && lds_tiles_b % waves == 0);
};

using amd::float4;
using amd::int4;

constexpr int larger(int x, int y) { return x > y ? x : y; }

struct operand {
  const std::uint8_t* codes;
  const std::uint32_t* scales;
  std::int64_t stride;  ///< bytes between rows of plain codes
  int rows;
};
struct arguments {
  operand a, b;
  int k, part_k;  ///< of all, of a part
  gemm_arguments p;
};

/// Where lane `lane` finds its sixteen bytes of an LDS tile (number: row tile + RowTiles times the half of the step) of
/// the step at byte `byte` of rows of `row_bytes`.
template <bool Shuffled, int RowTiles>
__device__ const std::uint8_t* code_address(const operand& m, int first_row, int row_bytes, int byte, int lds_tile,
                                            int lane) {
  int row = first_row + lds_tile % RowTiles * 16;
  if (row >= m.rows) row = 0;  // rows past the end read row 0; their outputs are not stored
  const int column = byte + lds_tile / RowTiles * 64;
  if constexpr (Shuffled) {
    const std::uint8_t* const base = m.codes + static_cast<std::int64_t>(row) * row_bytes + column * 16;
    return amd::keep_in_scalar_registers(base) + static_cast<std::uint32_t>(lane * 16);
  }
  const std::uint8_t* const base = m.codes + row * m.stride + column;
  const int below = m.rows - 1 - row, mine = lane % 16 < below ? lane % 16 : below;
  return amd::keep_in_scalar_registers(base) +
         static_cast<std::uint32_t>(mine * static_cast<int>(m.stride) + lane / 16 * 16);
}

template <class Tile>
struct shared_memory {
  alignas(16) std::uint8_t codes[2][Tile::lds_bytes / 2];  ///< [buffer]: A's, then B's
};

/// Four columns of a row: BF16, or the sums of a part of K as they are.
template <output_mode Mode>
__device__ void store_four(const gemm_arguments& p, float4 acc, int row, int column, int part) {
  if constexpr (Mode == output_mode::vector) {
    amd::store_four(p, acc, row, column);
  } else {
    *reinterpret_cast<float4*>(p.partial + (static_cast<std::int64_t>(part) * p.m + row) * p.n + column) = acc;
  }
}

/// The outputs of a block.
template <class Tile, gemm_element A, gemm_element B, bool ShuffledA, output_mode Mode>
__device__ inline void compute_tile(const arguments& g) {
  constexpr bool fp4 = A == gemm_element::e2m1;
  static_assert(fp4 == (B == gemm_element::e2m1));
  constexpr int step = fp4 ? 2 * step_bytes : step_bytes;  // k
  auto& codes = block_shared<shared_memory<Tile>>().codes;
  const int thread = static_cast<int>(thread_index().x), lane = thread % 64;
  const int wave = amd::uniform(thread / 64);
  const int part = static_cast<int>(block_index().z);
  const int first_row = static_cast<int>(block_index().y) * Tile::rows,
            first_column = static_cast<int>(block_index().x) * Tile::columns;
  const int wave_row = wave / Tile::waves_across * Tile::wave_rows,
            wave_column = wave % Tile::waves_across * Tile::wave_columns;
  const int row_bytes = fp4 ? g.k / 2 : g.k, scale_tiles = g.k / scale_k;

  const auto load = [&](int k, int buffer) {
    const int byte = fp4 ? k / 2 : k;
    ROTOSCALE_UNROLL
    for (int i = 0; i < larger(Tile::lds_tiles_a, Tile::lds_tiles_b); i += Tile::waves) {
      const int lds_tile = i + wave;
      if (i < Tile::lds_tiles_a) {
        amd::load_to_lds(code_address<ShuffledA, Tile::rows / 16>(g.a, first_row, row_bytes, byte, lds_tile, lane),
                         codes[buffer] + lds_tile * lds_tile_bytes);
      }
      if (i < Tile::lds_tiles_b) {
        amd::load_to_lds(code_address<true, Tile::columns / 16>(g.b, first_column, row_bytes, byte, lds_tile, lane),
                         codes[buffer] + (Tile::lds_tiles_a + lds_tile) * lds_tile_bytes);
      }
    }
  };
  // A scale tile of 32 rows × 8 blocks is 64 dwords; byte 2 h + r is for 128-k half h and row tile r.
  constexpr int scales_a = Tile::wave_rows / 32, scales_b = Tile::wave_columns / 32;
  struct scales {
    std::uint32_t a[scales_a], b[scales_b];
  };
  const auto load_scales = [&](int k) {
    const auto load = [&](const operand& m, int row) {
      const std::uint32_t* const at = m.scales + (static_cast<std::int64_t>(row / 32) * scale_tiles + k / scale_k) * 64;
      return amd::keep_in_scalar_registers(at)[static_cast<std::uint32_t>(lane)];
    };
    scales s;
    ROTOSCALE_UNROLL
    for (int i = 0; i < larger(scales_a, scales_b); ++i) {
      if (i < scales_a) s.a[i] = load(g.a, first_row + wave_row + 32 * i);
      if (i < scales_b) s.b[i] = load(g.b, first_column + wave_column + 32 * i);
    }
    return s;
  };
  // FP8's step is one half: its bytes become those of half 0. Not where they are loaded, which would wait for them.
  const auto of_step = [&](scales s, int k) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < larger(scales_a, scales_b) && !fp4; ++i) {
      if (i < scales_a) s.a[i] >>= k / step % 2 * 16;
      if (i < scales_b) s.b[i] >>= k / step % 2 * 16;
    }
    return s;
  };
  // A step's products come in two half steps: FP4's by halves of k, FP8's, which has one half, by halves of A's rows.
  constexpr int row_tiles = Tile::row_tiles, column_tiles = Tile::column_tiles;
  constexpr int rows = fp4 ? row_tiles : row_tiles / 2;  // row tiles of A in a half step
  const auto read = [&]<gemm_element E>(int m, int buffer, int half, int row_tile) {
    amd::scaled_fragment<E> x;
    ROTOSCALE_UNROLL
    for (int i = 0; i < x.parts; ++i) {
      const int at = (m * Tile::lds_tiles_a + (half + i) * (m == 0 ? Tile::rows / 16 : Tile::columns / 16) + row_tile) *
                         lds_tile_bytes +
                     lane * 16;
      x.part[i] = *reinterpret_cast<const int4*>(codes[buffer] + at);
    }
    return x;
  };
  struct a_half_step {
    amd::scaled_fragment<A> tile[rows];
  };
  struct b_half_step {
    amd::scaled_fragment<B> tile[column_tiles];
  };
  const auto read_a = [&](int buffer, int half_step) {
    a_half_step a;
    ROTOSCALE_UNROLL
    for (int i = 0; i < rows; ++i)
      a.tile[i] =
          read.template operator()<A>(0, buffer, fp4 ? half_step : 0, wave_row / 16 + (fp4 ? 0 : rows * half_step) + i);
    return a;
  };
  const auto read_b = [&](int buffer, int half) {
    b_half_step b;
    ROTOSCALE_UNROLL
    for (int j = 0; j < column_tiles; ++j)
      b.tile[j] = read.template operator()<B>(1, buffer, half, wave_column / 16 + j);
    return b;
  };

  float4 acc[row_tiles][column_tiles] = {};  // [row tile][column tile]
  const auto multiply = [&]<int HalfStep>(const a_half_step& a, const b_half_step& b, const scales& s) {
    constexpr int first = fp4 ? 0 : rows * HalfStep, low = fp4 ? 2 * HalfStep : 0,
                  high = low + 1;  // row tile, scale bytes
    ROTOSCALE_UNROLL
    for (int j = 0; j < column_tiles; j += 2) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < rows; i += 2) {
        const int sa = static_cast<int>(s.a[(first + i) / 2]), sb = static_cast<int>(s.b[j / 2]);
        if constexpr (rows == 1) {  // half of the 32 rows whose scales lie in a dword
          acc[first][j] = amd::multiply_scaled<low, low + first>(b.tile[j], a.tile[0], acc[first][j], sb, sa);
          acc[first][j + 1] =
              amd::multiply_scaled<high, low + first>(b.tile[j + 1], a.tile[0], acc[first][j + 1], sb, sa);
          continue;
        }
        float4 *upper = acc[first + i] + j, *lower = acc[first + i + 1] + j;
        // Columns (rows of B) times rows (rows of A): lane l gets row l % 16 of C and columns 4 (l / 16) .. + 3.
        upper[0] = amd::multiply_scaled<low, low>(b.tile[j], a.tile[i], upper[0], sb, sa);
        lower[0] = amd::multiply_scaled<low, high>(b.tile[j], a.tile[i + 1], lower[0], sb, sa);
        upper[1] = amd::multiply_scaled<high, low>(b.tile[j + 1], a.tile[i], upper[1], sb, sa);
        lower[1] = amd::multiply_scaled<high, high>(b.tile[j + 1], a.tile[i + 1], lower[1], sb, sa);
      }
    }
  };
  const int first_k = part * g.part_k, last_k = first_k + g.part_k < g.k ? first_k + g.part_k : g.k;
  load(first_k, 0);
  scales now = load_scales(first_k), next = now;
  amd::loads_done();
  block_barrier();
  if (first_k + step < last_k) {
    load(first_k + step, 1);
    next = load_scales(first_k + step);
  }
  a_half_step front_a = read_a(0, 0);
  b_half_step front_b = read_b(0, 0);
  // Reads of LDS run while the half step before them is multiplied, those of the next step's first one as well: its
  // copies were begun a step ago. Each call is one basic block, or the compiler would move products across the barrier.
  const auto do_step = [&]<bool Prefetch>(int k) {
    const int buffer = (k - first_k) / step % 2;
    const a_half_step back_a = read_a(buffer, 1);
    const b_half_step back_b = fp4 ? read_b(buffer, 1) : front_b;
    const scales s = of_step(now, k);
    multiply.template operator()<0>(front_a, front_b, s);
    amd::alternate_reads_and_products<fp4 ? rows + column_tiles : 2 * rows, rows * column_tiles>();
    amd::schedule_barrier();
    amd::loads_done();
    block_barrier();  // the other buffer has arrived, and nobody reads this one any more
    // Here, not at the end of the step, where compilers put the copy to save a register, and wait for what was just
    // begun: scales have a whole step to arrive.
    now = next;
    for (std::uint32_t& x : now.a) amd::keep_in_vector_registers(x);
    for (std::uint32_t& x : now.b) amd::keep_in_vector_registers(x);
    if constexpr (Prefetch) {
      next = load_scales(k + 2 * step);
      amd::schedule_barrier();  // scales first: waiting for them then waits for no copy
      load(k + 2 * step, buffer);
    }
    front_a = read_a(1 - buffer, 0);
    front_b = read_b(1 - buffer, 0);
    multiply.template operator()<1>(back_a, back_b, s);
    amd::alternate_reads_and_products<fp4 ? rows + column_tiles : 2 * (rows + column_tiles), rows * column_tiles>();
    amd::schedule_barrier();
  };
  int k = first_k;
  for (; k + 2 * step < last_k; k += step) do_step.template operator()<true>(k);
  for (; k < last_k; k += step) do_step.template operator()<false>(k);

  ROTOSCALE_UNROLL
  for (int i = 0; i < row_tiles; ++i) {
    const int row = first_row + wave_row + 16 * i + lane % 16;
    ROTOSCALE_UNROLL
    for (int j = 0; j < column_tiles; ++j) {
      const int column = first_column + wave_column + 16 * j + lane / 16 * 4;
      if (row < g.p.m && column < g.p.n) store_four<Mode>(g.p, acc[i][j], row, column, part);
    }
  }
}

/// A grid of (columns of tiles, rows of tiles, parts of K) blocks. Elements A and B: FP4 both, or FP8 of either kind.
template <int Rows, int Columns, gemm_element A, gemm_element B, bool ShuffledA, output_mode Mode>
[[maybe_unused]] static __global__ void ROTOSCALE_AMD_BLOCK((tile<Rows, Columns>::threads),
                                                            (tile<Rows, Columns>::waves_a_simd),
                                                            (tile<Rows, Columns>::waves_a_simd))
    gemm_kernel(const arguments g) {
  if constexpr (amd::is_gfx950) compute_tile<tile<Rows, Columns>, A, B, ShuffledA, Mode>(g);
}

}  // namespace rotoscale::gpu::gfx950
