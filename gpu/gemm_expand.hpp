// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands in the form that the sm_90 GEMM kernels multiply: E2M1 codes with their E8M0 scales folded in, as E5M2
// against one power of two a row, or as BF16. One warp a row, both operands in one launch.
#pragma once

#include "gpu/hip.hpp"  // first: the numerics headers need its words

#include "gpu/gemm_arguments.hpp"
#include "rotoscale/block.hpp"

namespace rotoscale::gpu {

/// MXFP4 as the quantizers store it: [rows, k / 2] codes, [rows, k / 32] E8M0 scales.
struct mxfp4_source {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t code_stride, scale_stride;
  int rows;
};

struct expand_arguments {
  mxfp4_source source[2];  ///< A, B
  int k;
  std::uint8_t* target[2];     ///< E5M2 [rows, k], or BF16 [rows, k]; k contiguous
  int* base = nullptr;         ///< E5M2: exponents of A's rows, from base_b on of B's
  int base_b = 0;
  unsigned char* flags = nullptr;  ///< written with E5M2; with BF16 read: nothing to do where none is set; null: all
  int flags_b = 0;
};

inline constexpr int expand_threads = 32 * flag_rows;

/// Sixteen nibbles to the bytes at `table` (for magnitudes 0 to 7), the sign in the top bit.
__device__ inline std::uint32_t look_up_bytes(std::uint32_t nibbles, std::uint32_t low, std::uint32_t high) {
  return __byte_perm(low, high, nibbles & 0x7777u);
}

/// Eight codes to their E5M2 bytes; `step` = 4 * (s + 14).
__device__ inline uint2 fold_eight(std::uint32_t x, std::uint32_t low, std::uint32_t high) {
  const std::uint32_t even = x << 4 & 0x80808080u, odd = x & 0x80808080u;
  return {look_up_bytes(x & 0xFFFFu, low, high) | __byte_perm(even, odd, 0x5140),
          look_up_bytes(x >> 16, low, high) | __byte_perm(even, odd, 0x7362)};
}

/// The row's largest scale byte (not counting NaN) and whether its blocks fit the window. Where the bytes alone do not,
/// blocks of zeros are left out.
__device__ inline int fold_range(const mxfp4_source& m, int row, int k, int lane, bool& fits) {
  const std::uint8_t* scales = m.scales + row * m.scale_stride;
  int least = 255, largest = -1;
  for (int b = lane; b < k / 32; b += 32) {
    const int byte = scales[b];
    if (byte == nan_scale_byte) continue;
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
  least = __reduce_min_sync(0xFFFFFFFFu, least);
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  if (largest - least > fold_window) {
    least = 255, largest = -1;
    for (int b = lane; b < k / 32; b += 32) {
      const int byte = scales[b];
      const std::uint8_t* codes = m.codes + row * m.code_stride + 16 * b;
      unsigned any = 0;
      for (int i = 0; i < 16; ++i) any |= codes[i] & 0x77u;
      if (byte == nan_scale_byte || any == 0) continue;
      least = byte < least ? byte : least;
      largest = byte > largest ? byte : largest;
    }
    least = __reduce_min_sync(0xFFFFFFFFu, least);
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  }
  fits = largest - least <= fold_window;
  return largest < 0 ? 127 : largest;
}

/// Sixteen codes of one block as E5M2.
__device__ inline uint4 fold_sixteen(uint2 x, int byte, int largest) {
  std::uint32_t low = 0x7E7E7E7Eu, high = low;  // NaN
  if (byte != nan_scale_byte) {
    const auto step = static_cast<std::uint32_t>(4 * (byte - largest + fold_top + 14)) & 0xFFu;
    low = 0x06040000u + step * 0x01010100u;
    high = 0x0E0C0A08u + step * 0x01010101u;
  }
  const uint2 first = fold_eight(x.x, low, high), second = fold_eight(x.y, low, high);
  return {first.x, first.y, second.x, second.y};
}

__global__ void __launch_bounds__(expand_threads) expand_e5m2_kernel(const __grid_constant__ expand_arguments p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int blocks_a = (p.source[0].rows + flag_rows - 1) / flag_rows;
  const int operand = static_cast<int>(blockIdx.x) >= blocks_a;
  const int group = static_cast<int>(blockIdx.x) - operand * blocks_a;
  const int row = group * flag_rows + static_cast<int>(threadIdx.x / 32);
  const mxfp4_source& m = p.source[operand];
  bool fits = true;
  if (row < m.rows) {
    const std::uint8_t* codes = m.codes + row * m.code_stride;
    const std::uint8_t* scales = m.scales + row * m.scale_stride;
    std::uint8_t* to = p.target[operand] + static_cast<std::int64_t>(row) * p.k;
    const int units = p.k / 16;
    // Loads of a piece of the row go out before the wait for the scales' range, or for the last piece's stores.
    constexpr int depth = 8;
    uint2 x[depth];
    const auto load = [&](int first) {
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        const int i = first + 32 * j;
        if (i < units) x[j] = *reinterpret_cast<const uint2*>(codes + 8 * i);
      }
    };
    load(lane);
    const int largest = fold_range(m, row, p.k, lane, fits);
    if (lane == 0) p.base[operand * p.base_b + row] = fold_base(largest);
    for (int first = lane; first < units; first += 32 * depth) {
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        const int i = first + 32 * j;
        if (i < units) *reinterpret_cast<uint4*>(to + 16 * i) = fold_sixteen(x[j], scales[i / 2], largest);
      }
      load(first + 32 * depth);
    }
  }
  const int outside = __syncthreads_or(!fits);
  if (threadIdx.x == 0) p.flags[operand * p.flags_b + group] = outside != 0;
}

/// Eight codes as BF16: their values times the scale, which is exact, Inf where FP32 has Inf as well, or NaN.
__device__ inline uint4 scale_eight(std::uint32_t x, std::uint32_t scale) {
  uint4 out;
  std::uint32_t* words = &out.x;
  const std::uint32_t even = x << 4 & 0x80808080u, odd = x & 0x80808080u;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t nibbles = half == 0 ? x & 0xFFFFu : x >> 16;
    const std::uint32_t high = look_up_bytes(nibbles, 0x3F3F3F00u, 0x40404040u) |
                               __byte_perm(even, odd, half == 0 ? 0x5140 : 0x7362);
    const std::uint32_t low = look_up_bytes(nibbles, 0xC0800000u, 0xC0804000u);
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const std::uint32_t values = __byte_perm(low, high, pair == 0 ? 0x5140 : 0x7362);
      asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(words[2 * half + pair]) : "r"(values), "r"(scale));
    }
  }
  return out;
}

/// A scale byte as a pair of BF16 numbers: 2^-127 is subnormal, 0xFF is NaN.
__device__ inline std::uint32_t bf16_scale_pair(std::uint32_t byte) {
  const std::uint32_t bits = byte == 0 ? 0x0040u : byte == nan_scale_byte ? 0x7FC0u : byte << 7;
  return bits | bits << 16;
}

__global__ void __launch_bounds__(expand_threads) expand_bf16_kernel(const __grid_constant__ expand_arguments p) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int blocks_a = (p.source[0].rows + flag_rows - 1) / flag_rows;
  const int blocks = blocks_a + (p.source[1].rows + flag_rows - 1) / flag_rows;
  if (p.flags != nullptr) {
    bool flag = false;
    for (int i = static_cast<int>(threadIdx.x); i < blocks; i += expand_threads) {
      flag |= p.flags[i < blocks_a ? i : p.flags_b + i - blocks_a] != 0;
    }
    if (!__syncthreads_or(flag)) return;
  }
  for (int block = static_cast<int>(blockIdx.x); block < blocks; block += static_cast<int>(gridDim.x)) {
    const int operand = block >= blocks_a;
    const int row = (block - operand * blocks_a) * flag_rows + static_cast<int>(threadIdx.x / 32);
    const mxfp4_source& m = p.source[operand];
    if (row >= m.rows) continue;
    const std::uint8_t* codes = m.codes + row * m.code_stride;
    const std::uint8_t* scales = m.scales + row * m.scale_stride;
    std::uint8_t* to = p.target[operand] + static_cast<std::int64_t>(row) * p.k * 2;
    const int units = p.k / 8;
    constexpr int depth = 8;
    for (int first = lane; first < units; first += 32 * depth) {
      std::uint32_t x[depth], scale[depth];
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        const int i = first + 32 * j;
        x[j] = i < units ? *reinterpret_cast<const std::uint32_t*>(codes + 4 * i) : 0;
        scale[j] = i < units ? scales[i / 4] : 0;
      }
#pragma unroll
      for (int j = 0; j < depth; ++j) {
        const int i = first + 32 * j;
        if (i < units) *reinterpret_cast<uint4*>(to + 16 * i) = scale_eight(x[j], bf16_scale_pair(scale[j]));
      }
    }
  }
}

}  // namespace rotoscale::gpu
