// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The MXFP4 GEMM of gfx950 on its scaled matrix instruction, from operands as AITER stores them: codes shuffled in
// tiles of 16 × 16 bytes (B always, A or plain), scales of both swizzled. A tile of 16 rows × 128 k is then one piece
// of 1024 bytes in which lane l finds its 16 at 16 l, so pieces go through LDS as they are. Compiled with clang and
// executed on an emulator; nobody has timed it.
#pragma once

#include "gpu/gemm_output.hpp"
#include "gpu/hip.hpp"  // first: the numerics headers need its words

namespace rotoscale::gpu::gfx950 {

inline constexpr int tile = 256;                         // rows of A and of B a block
inline constexpr int threads = 256;                      // four waves, 128 × 128 outputs each
inline constexpr int step = 256;                         // k of a step: one scale dword a lane
inline constexpr int piece_bytes = 1024;                 // 16 rows × 128 k
inline constexpr int pieces = tile / 16 * (step / 128);  // of one operand and step

using float4 = float __attribute__((ext_vector_type(4)));
using int4 = int __attribute__((ext_vector_type(4)));
using int8 = int __attribute__((ext_vector_type(8)));

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

/// Where lane `lane` finds its sixteen bytes of piece `piece` (row tile + 16 of them a 128-k half) of the step at `k`.
template <bool Shuffled>
__device__ const std::uint8_t* code_address(const operand& m, int first_row, int k_bytes, int k, int piece, int lane) {
  int row = first_row + piece % (tile / 16) * 16;
  if (row >= m.rows) row = 0;  // nobody stores what comes of it
  const int column = k / 2 + piece / (tile / 16) * 64;
  if constexpr (Shuffled) return m.codes + static_cast<std::int64_t>(row) * k_bytes + column * 16 + lane * 16;
  const int last = m.rows - 1;
  const int mine = row + lane % 16 < last ? row + lane % 16 : last;
  return m.codes + mine * m.stride + column + lane / 16 * 16;
}

/// Copies sixteen bytes a lane to LDS, the lanes' pieces one after another; arrived after loads_done.
__device__ inline void load_to_lds([[maybe_unused]] const std::uint8_t* from, [[maybe_unused]] std::uint8_t* to) {
#if defined(__gfx950__)
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)const_cast<std::uint8_t*>(from),
                                   (__attribute__((address_space(3))) void*)to, 16, 0, 0);
#endif
}
__device__ inline void loads_done() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }

__device__ inline int8 widen(int4 x) { return int8{x[0], x[1], x[2], x[3], 0, 0, 0, 0}; }

/// d += columns (rows of B) times rows (rows of A): lane l gets row l % 16 of C and columns 4 (l / 16) .. + 3.
template <int ByteB, int ByteA>
__device__ float4 multiply([[maybe_unused]] int4 b, [[maybe_unused]] int4 a, float4 d, [[maybe_unused]] int scale_b,
                           [[maybe_unused]] int scale_a) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(widen(b), widen(a), d, 4, 4, ByteB, scale_b, ByteA, scale_a);
#else
  return d;
#endif
}

/// Four columns of a row: BF16 (rows of whole 8 bytes, no C, no bias), or the sums of a part of K as they are.
template <output_mode Mode>
__device__ void store_four(const gemm_arguments& p, float4 acc, int row, int column, int part) {
  if constexpr (Mode == output_mode::plain) {
    std::uint32_t bits[4];
    ROTOSCALE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const float x = acc[e] * p.alpha;
      bits[e] = bf16_bits(fp32_is_nan(fp32_bits(x)) ? fp32_from_bits(p.nan_bits) : x);
    }
    using uint2 = std::uint32_t __attribute__((ext_vector_type(2)));
    *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(p.out) + row * p.out_stride + column) =
        uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
  } else {
    *reinterpret_cast<float4*>(p.partial + (static_cast<std::int64_t>(part) * p.m + row) * p.n + column) = acc;
  }
}

/// A grid of (columns of tiles, rows of tiles, parts of K) blocks.
template <bool ShuffledA, output_mode Mode>
[[maybe_unused]] static __global__ void
    __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(1, 1)))
    gemm_kernel(const arguments g) {
  __shared__ alignas(16) std::uint8_t codes[2][2 * pieces * piece_bytes];  // A's pieces, then B's
  const int thread = static_cast<int>(thread_index().x), lane = thread % 64;
  const int wave = __builtin_amdgcn_readfirstlane(thread / 64);
  const int part = static_cast<int>(block_index().z);
  const int first_row = static_cast<int>(block_index().y) * tile,
            first_column = static_cast<int>(block_index().x) * tile;
  const int wave_row = wave / 2 * 128, wave_column = wave % 2 * 128;
  const int k_bytes = g.k / 2, scale_tiles = g.k / 256;

  int next_scale[2][4];
  const auto load = [&](int k, int buffer) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < pieces / 4; ++i) {
      const int piece = 4 * i + wave;
      load_to_lds(code_address<ShuffledA>(g.a, first_row, k_bytes, k, piece, lane),
                  codes[buffer] + piece * piece_bytes);
      load_to_lds(code_address<true>(g.b, first_column, k_bytes, k, piece, lane),
                  codes[buffer] + (pieces + piece) * piece_bytes);
    }
  };
  // A scale tile of 32 rows × 8 blocks is 64 dwords; byte 2 h + r is for half h of the step and row tile r.
  const auto scale = [&](const operand& m, int row, int k) {
    return static_cast<int>(m.scales[(static_cast<std::int64_t>(row / 32) * scale_tiles + k / step) * 64 + lane]);
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
    loads_done();
    block_barrier();  // this buffer has arrived, and nobody reads the other any more
    if (k + step < last_k) {
      load(k + step, 1 - buffer);
      load_scales(k + step);
    }
    const auto half = [&]<int H>() {
      const auto fragment = [&](int m, int row_tile) {
        const int at = (m * pieces + H * (tile / 16) + row_tile) * piece_bytes + lane * 16;
        int4 x = *reinterpret_cast<const int4*>(codes[buffer] + at);
        asm volatile("" : "+v"(x));  // accumulation registers are for sums
        return x;
      };
      int4 a[8];
      ROTOSCALE_UNROLL
      for (int i = 0; i < 8; ++i) a[i] = fragment(0, wave_row / 16 + i);
      ROTOSCALE_UNROLL
      for (int j = 0; j < 8; j += 2) {
        const int4 b0 = fragment(1, wave_column / 16 + j), b1 = fragment(1, wave_column / 16 + j + 1);
        ROTOSCALE_UNROLL
        for (int i = 0; i < 8; i += 2) {
          const int sa = scale_a[i / 2], sb = scale_b[j / 2];
          acc[i][j] = multiply<2 * H, 2 * H>(b0, a[i], acc[i][j], sb, sa);
          acc[i + 1][j] = multiply<2 * H, 2 * H + 1>(b0, a[i + 1], acc[i + 1][j], sb, sa);
          acc[i][j + 1] = multiply<2 * H + 1, 2 * H>(b1, a[i], acc[i][j + 1], sb, sa);
          acc[i + 1][j + 1] = multiply<2 * H + 1, 2 * H + 1>(b1, a[i + 1], acc[i + 1][j + 1], sb, sa);
        }
      }
    };
    half.template operator()<0>();
    half.template operator()<1>();
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

}  // namespace rotoscale::gpu::gfx950
