// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The last step of an output element as every GEMM kernel of gpu/ does it.
#pragma once

#include "gpu/gemm_arguments.hpp"
#include "gpu/hip.hpp"  // first: the numerics headers need its words

namespace rotoscale::gpu {

/// alpha * acc, C and bias of an output, not yet rounded to it.
__device__ inline float output_value(const gemm_arguments& p, float acc, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  float old = 0.0f;
  if (p.accumulate) {
    old = p.bf16_out ? fp32_from_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(p.out)[at]) << 16)
                     : static_cast<const float*>(p.out)[at];
  }
  const float bias = p.bias != nullptr ? p.bias[column] : 0.0f;
  return finish_value(acc, p.alpha, p.accumulate, p.beta, old, p.bias != nullptr, bias, p.nan_bits);
}
__device__ inline void store_output(const gemm_arguments& p, float acc, int row, int column) {
  const float x = output_value(p, acc, row, column);
  const std::int64_t at = row * p.out_stride + column;
  if (p.bf16_out) {
    static_cast<std::uint16_t*>(p.out)[at] = static_cast<std::uint16_t>(bf16_bits(x));
  } else {
    static_cast<float*>(p.out)[at] = x;
  }
}

/// Is element (row, column) in a tile of window_tile² that a row outside the FP8 window has moved to BF16?
__device__ inline bool tile_is_flagged(const gemm_arguments& p, int row, int column) {
  if (p.flags == nullptr) return false;
  const int first_a = row / window_tile * window_tile, first_b = column / window_tile * window_tile;
  bool flagged = false;
  for (int i = 0; i < window_tile; ++i) {
    flagged |= first_a + i < p.m && p.flags[first_a + i] != 0;
    flagged |= first_b + i < p.n && p.flags[p.m + first_b + i] != 0;
  }
  return flagged;
}

/// Is any of `count` flags set, as far as one of `threads` threads that share the work can see?
__device__ inline bool sees_flag(const unsigned char* flags, int count, int thread, int threads) {
  std::uint32_t any = 0;
  for (int i = thread; i < count / 16; i += threads) {
    const bytes16 x = reinterpret_cast<const bytes16*>(flags)[i];
    any |= x.word[0] | x.word[1] | x.word[2] | x.word[3];
  }
  for (int i = count / 16 * 16 + thread; i < count; i += threads) any |= flags[i];
  return any != 0;
}

/// Is `mine` set in any of the block's `Threads` threads? All of them call it, once a kernel.
template <unsigned Threads>
__device__ bool block_any(bool mine) {
  struct segment_flags {
    bool of[Threads / 32];
  };
  segment_flags& seen = block_shared<segment_flags>();
  const unsigned thread = thread_index().x;
  const bool of_segment = segment_any(mine);
  if (thread % 32 == 0) seen.of[thread / 32] = of_segment;
  block_barrier();
  bool any = false;
  for (unsigned i = 0; i < Threads / 32; ++i) any |= seen.of[i];
  return any;
}

/// One thread an output; blocks cover the columns of a tile of the window in a row.
inline constexpr int add_threads = window_tile;

/// Adds the parts of K in ascending order.
[[maybe_unused]] static __global__ void __launch_bounds__(add_threads) add_parts_kernel(const gemm_arguments p) {
  const int across = (p.n + add_threads - 1) / add_threads, block = static_cast<int>(block_index().x);
  const int row = block / across, thread = static_cast<int>(thread_index().x);
  const int column = block % across * add_threads + thread, row_of_tile = row / window_tile * window_tile + thread;
  const bool flagged = p.flags != nullptr && block_any<add_threads>((row_of_tile < p.m && p.flags[row_of_tile] != 0) ||
                                                                    (column < p.n && p.flags[p.m + column] != 0));
  if (column >= p.n) return;
  const std::int64_t at = static_cast<std::int64_t>(row) * p.n + column;
  float sum = p.partial[at];
  for (int i = 1; i < p.parts; ++i) sum += p.partial[static_cast<std::int64_t>(i) * p.m * p.n + at];
  if (p.base != nullptr && !flagged) {
    sum = times_power(sum, p.base[row] + p.base[p.base_b + column]);
  }
  store_output(p, sum, row, column);
}

}  // namespace rotoscale::gpu
