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
  if (row >= m.rows) row = 0;  // nobody stores what comes of it
  const int column = byte + lds_tile / (tile / 16) * 64;
  if constexpr (Shuffled) return m.codes + static_cast<std::int64_t>(row) * row_bytes + column * 16 + lane * 16;
  const int last = m.rows - 1;
  const int mine = row + lane % 16 < last ? row + lane % 16 : last;
  return m.codes + mine * m.stride + column + lane / 16 * 16;
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

  int next_scale[2][4];
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
  // A scale tile of 32 rows × 8 blocks is 64 dwords; byte 2 h + r is for 128-k half h and row tile r. FP8's step is one
  // half.
  const auto scale = [&](const operand& m, int row, int k) {
    const std::uint32_t dword = m.scales[(static_cast<std::int64_t>(row / 32) * scale_tiles + k / scale_k) * 64 + lane];
    return static_cast<int>(fp4 ? dword : dword >> (k / step % 2 * 16));
  };
  const auto load_scales = [&](int k) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      next_scale[0][i] = scale(g.a, first_row + wave_row + 32 * i, k);
      next_scale[1][i] = scale(g.b, first_column + wave_column + 32 * i, k);
    }
  };
  float4 acc[8][8] = {};  // [row tile][column tile]
  const int first_k = part * g.part_k, last_k = first_k + g.part_k < g.k ? first_k + g.part_k : g.k;
  load(first_k, 0);
  load_scales(first_k);
  for (int k = first_k; k < last_k; k += step) {
    const int buffer = (k - first_k) / step % 2;
    int scale_a[4], scale_b[4];
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      scale_a[i] = next_scale[0][i];
      scale_b[i] = next_scale[1][i];
    }
    amd::loads_done();
    block_barrier();  // this buffer has arrived, and nobody reads the other any more
    if (k + step < last_k) {
      load(k + step, 1 - buffer);
      load_scales(k + step);
    }
    // 128 k, by scale bytes 2 H + r.
    const auto multiply = [&]<int H>() {
      const auto fragment = [&]<gemm_element E>(int m, int row_tile) {
        amd::scaled_fragment<E> x;
        ROTOSCALE_UNROLL
        for (int i = 0; i < x.parts; ++i) {
          const int at = (m * lds_tiles + (H + i) * (tile / 16) + row_tile) * lds_tile_bytes + lane * 16;
          x.part[i] = *reinterpret_cast<const int4*>(codes[buffer] + at);
          amd::keep_in_vector_registers(x.part[i]);
        }
        return x;
      };
      amd::scaled_fragment<A> a[8];
      ROTOSCALE_UNROLL
      for (int i = 0; i < 8; ++i) a[i] = fragment.template operator()<A>(0, wave_row / 16 + i);
      ROTOSCALE_UNROLL
      for (int j = 0; j < 8; j += 2) {
        const auto b0 = fragment.template operator()<B>(1, wave_column / 16 + j);
        const auto b1 = fragment.template operator()<B>(1, wave_column / 16 + j + 1);
        ROTOSCALE_UNROLL
        for (int i = 0; i < 8; i += 2) {
          const int sa = scale_a[i / 2], sb = scale_b[j / 2];
          // Columns (rows of B) times rows (rows of A): lane l gets row l % 16 of C and columns 4 (l / 16) .. + 3.
          acc[i][j] = amd::multiply_scaled<2 * H, 2 * H>(b0, a[i], acc[i][j], sb, sa);
          acc[i + 1][j] = amd::multiply_scaled<2 * H, 2 * H + 1>(b0, a[i + 1], acc[i + 1][j], sb, sa);
          acc[i][j + 1] = amd::multiply_scaled<2 * H + 1, 2 * H>(b1, a[i], acc[i][j + 1], sb, sa);
          acc[i + 1][j + 1] = amd::multiply_scaled<2 * H + 1, 2 * H + 1>(b1, a[i + 1], acc[i + 1][j + 1], sb, sa);
        }
      }
    };
    multiply.template operator()<0>();
    if constexpr (fp4) multiply.template operator()<1>();
  }

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
