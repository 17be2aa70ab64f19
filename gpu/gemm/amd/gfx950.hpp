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

inline constexpr int tile = 256;                 // rows of A and of B a block
inline constexpr int threads = 256;              // four waves, 128 × 128 outputs each
inline constexpr int step_bytes = 128;           // of a row a step: two LDS tiles
inline constexpr int lds_tile_bytes = 1024;      // 16 rows × 64 bytes
inline constexpr int lds_tiles = tile / 16 * 2;  // of one operand and step
inline constexpr int scale_k = 256;              // k of the four scales that lie in a dword, for two row tiles

using amd::float4;
using amd::int4;

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

/// Where lane `lane` finds its sixteen bytes of an LDS tile (number: row tile + 16 times the half of the step) of the
/// step at byte `byte` of rows of `row_bytes`.
template <bool Shuffled>
__device__ const std::uint8_t* code_address(const operand& m, int first_row, int row_bytes, int byte, int lds_tile,
                                            int lane) {
  int row = first_row + lds_tile % (tile / 16) * 16;
  if (row >= m.rows) row = 0;  // rows past the end read row 0; their outputs are not stored
  const int column = byte + lds_tile / (tile / 16) * 64;
  if constexpr (Shuffled) {
    const std::uint8_t* const base = m.codes + static_cast<std::int64_t>(row) * row_bytes + column * 16;
    return amd::keep_in_scalar_registers(base) + static_cast<std::uint32_t>(lane * 16);
  }
  const std::uint8_t* const base = m.codes + row * m.stride + column;
  const int below = m.rows - 1 - row, mine = lane % 16 < below ? lane % 16 : below;
  return amd::keep_in_scalar_registers(base) +
         static_cast<std::uint32_t>(mine * static_cast<int>(m.stride) + lane / 16 * 16);
}

struct shared_memory {
  alignas(16) std::uint8_t codes[2][2 * lds_tiles * lds_tile_bytes];  ///< [buffer]: A's, then B's
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
template <gemm_element A, gemm_element B, bool ShuffledA, output_mode Mode>
__device__ inline void compute_tile(const arguments& g) {
  constexpr bool fp4 = A == gemm_element::e2m1;
  static_assert(fp4 == (B == gemm_element::e2m1));
  constexpr int step = fp4 ? 2 * step_bytes : step_bytes;  // k
  auto& codes = block_shared<shared_memory>().codes;
  const int thread = static_cast<int>(thread_index().x), lane = thread % 64;
  const int wave = amd::uniform(thread / 64);
  const int part = static_cast<int>(block_index().z);
  const int first_row = static_cast<int>(block_index().y) * tile,
            first_column = static_cast<int>(block_index().x) * tile;
  const int wave_row = wave / 2 * 128, wave_column = wave % 2 * 128;
  const int row_bytes = fp4 ? g.k / 2 : g.k, scale_tiles = g.k / scale_k;

  const auto load = [&](int k, int buffer) {
    const int byte = fp4 ? k / 2 : k;
    ROTOSCALE_UNROLL
    for (int i = 0; i < lds_tiles / 4; ++i) {
      const int lds_tile = 4 * i + wave;
      amd::load_to_lds(code_address<ShuffledA>(g.a, first_row, row_bytes, byte, lds_tile, lane),
                       codes[buffer] + lds_tile * lds_tile_bytes);
      amd::load_to_lds(code_address<true>(g.b, first_column, row_bytes, byte, lds_tile, lane),
                       codes[buffer] + (lds_tiles + lds_tile) * lds_tile_bytes);
    }
  };
  // A scale tile of 32 rows × 8 blocks is 64 dwords; byte 2 h + r is for 128-k half h and row tile r.
  struct scales {
    std::uint32_t a[4], b[4];
  };
  const auto load_scales = [&](int k) {
    const auto load = [&](const operand& m, int row) {
      const std::uint32_t* const at = m.scales + (static_cast<std::int64_t>(row / 32) * scale_tiles + k / scale_k) * 64;
      return amd::keep_in_scalar_registers(at)[static_cast<std::uint32_t>(lane)];
    };
    scales s;
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      s.a[i] = load(g.a, first_row + wave_row + 32 * i);
      s.b[i] = load(g.b, first_column + wave_column + 32 * i);
    }
    return s;
  };
  // FP8's step is one half: its bytes become those of half 0. Not where they are loaded, which would wait for them.
  const auto of_step = [&](scales s, int k) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4 && !fp4; ++i) {
      s.a[i] >>= k / step % 2 * 16;
      s.b[i] >>= k / step % 2 * 16;
    }
    return s;
  };
  // A step's products come in two half steps: FP4's by halves of k, FP8's, which has one half, by halves of A's rows.
  constexpr int rows = fp4 ? 8 : 4;  // row tiles of A in a half step
  const auto read = [&]<gemm_element E>(int m, int buffer, int half, int row_tile) {
    amd::scaled_fragment<E> x;
    ROTOSCALE_UNROLL
    for (int i = 0; i < x.parts; ++i) {
      const int at = (m * lds_tiles + (half + i) * (tile / 16) + row_tile) * lds_tile_bytes + lane * 16;
      x.part[i] = *reinterpret_cast<const int4*>(codes[buffer] + at);
    }
    return x;
  };
  struct a_half_step {
    amd::scaled_fragment<A> tile[rows];
  };
  struct b_half_step {
    amd::scaled_fragment<B> tile[8];
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
    for (int j = 0; j < 8; ++j) b.tile[j] = read.template operator()<B>(1, buffer, half, wave_column / 16 + j);
    return b;
  };

  float4 acc[8][8] = {};  // [row tile][column tile]
  const auto multiply = [&]<int HalfStep>(const a_half_step& a, const b_half_step& b, const scales& s) {
    constexpr int first = fp4 ? 0 : rows * HalfStep, low = fp4 ? 2 * HalfStep : 0,
                  high = low + 1;  // row tile, scale bytes
    ROTOSCALE_UNROLL
    for (int j = 0; j < 8; j += 2) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < rows; i += 2) {
        const int sa = static_cast<int>(s.a[(first + i) / 2]), sb = static_cast<int>(s.b[j / 2]);
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
    amd::alternate_reads_and_products<fp4 ? 16 : 8, 4>();
    amd::schedule_barrier();
    amd::loads_done();
    block_barrier();  // the other buffer has arrived, and nobody reads this one any more
    now = next;
    if constexpr (Prefetch) {
      next = load_scales(k + 2 * step);
      amd::schedule_barrier();  // scales first: waiting for them then waits for no copy
      load(k + 2 * step, buffer);
    }
    front_a = read_a(1 - buffer, 0);
    front_b = read_b(1 - buffer, 0);
    multiply.template operator()<1>(back_a, back_b, s);
    amd::alternate_reads_and_products<fp4 ? 16 : 24, fp4 ? 4 : 1>();
    amd::schedule_barrier();
  };
  int k = first_k;
  for (; k + 2 * step < last_k; k += step) do_step.template operator()<true>(k);
  for (; k < last_k; k += step) do_step.template operator()<false>(k);

  ROTOSCALE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int row = first_row + wave_row + 16 * i + lane % 16;
    ROTOSCALE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const int column = first_column + wave_column + 16 * j + lane / 16 * 4;
      if (row < g.p.m && column < g.p.n) store_four<Mode>(g.p, acc[i][j], row, column, part);
    }
  }
}

/// A grid of (columns of tiles, rows of tiles, parts of K) blocks. Elements A and B: FP4 both, or FP8 of either kind.
template <gemm_element A, gemm_element B, bool ShuffledA, output_mode Mode>
[[maybe_unused]] static __global__ void ROTOSCALE_AMD_BLOCK(threads, 1, 1) gemm_kernel(const arguments g) {
  if constexpr (amd::is_gfx950) compute_tile<A, B, ShuffledA, Mode>(g);
}

}  // namespace rotoscale::gpu::gfx950
