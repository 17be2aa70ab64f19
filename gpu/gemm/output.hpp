// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Epilogue of an output element, common to all GEMM kernels of gpu/, and the widths of tiles.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/arguments.hpp"

namespace rotoscale::gpu {

/// An FP32 output as stored: itself, or rounded to BF16.
__device__ inline float float_output(const gemm_arguments& p, float x) {
  const bool rounds = p.bf16_rounded && !fp32_is_nan(fp32_bits(x));
  return rounds ? fp32_from_bits(bf16_bits_keeping_nan(x) << 16) : x;
}

/// Factor of the sums: combined_factor of gemm_ref.hpp. Only needed by kernels whose operands may have factors.
__device__ inline float output_factor(const gemm_arguments& p) {
  return (p.factor_a != nullptr ? *p.factor_a : 1.0f) * (p.factor_b != nullptr ? *p.factor_b : 1.0f) * p.alpha;
}

/// factor * acc + C + bias of an output, not yet rounded.
__device__ inline float output_value(const gemm_arguments& p, float factor, float acc, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  float old = 0.0f;
  if (p.accumulate) {
    old = p.bf16_out ? fp32_from_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(p.out)[at]) << 16)
                     : static_cast<const float*>(p.out)[at];
  }
  const float bias = p.bias != nullptr ? p.bias[column] : 0.0f;
  return gemm_epilogue{factor, p.accumulate, p.beta, p.bias != nullptr, p.nan_bits}(acc, old, bias);
}
__device__ inline void store_output(const gemm_arguments& p, float factor, float acc, int row, int column) {
  const float x = output_value(p, factor, acc, row, column);
  const std::int64_t at = row * p.out_stride + column;
  if (p.bf16_out) {
    std::uint32_t bits = bf16_bits_keeping_nan(x);
    if (p.output_bias != nullptr) bits = bf16_bits_keeping_nan(fp32_from_bits(bits << 16) + p.output_bias[column]);
    static_cast<std::uint16_t*>(p.out)[at] = static_cast<std::uint16_t>(bits);
  } else {
    static_cast<float*>(p.out)[at] = float_output(p, x);
  }
}
/// For operands without factors.
__device__ inline void store_output(const gemm_arguments& p, float acc, int row, int column) {
  store_output(p, p.alpha, acc, row, column);
}

/// Combined widths of the window_tile² tile of element (row, column).
__device__ inline std::uint32_t combined_widths_of_tile(const gemm_arguments& p, int row, int column) {
  const int first_a = row / window_tile * window_tile, first_b = column / window_tile * window_tile;
  std::uint32_t combined = 0;
  for (int i = 0; i < window_tile; ++i) {
    if (first_a + i < p.m) combined |= static_cast<std::uint32_t>(p.widths[first_a + i]);
    if (first_b + i < p.n) combined |= static_cast<std::uint32_t>(p.widths[p.base_b + first_b + i]);
  }
  return combined;
}

/// Combined widths of rows [16 i, 16 i + 16) below `rows`. `widths` is aligned to 16 and readable up to a multiple of
/// 16. Without a branch, so that several loads can be in flight.
__device__ inline std::uint32_t combined_widths_of_sixteen(const operand_width* widths, int i, int rows) {
  const vec16 x = reinterpret_cast<const vec16*>(widths)[i];
  const int left = rows - 16 * i;
  std::uint32_t combined = 0;
  ROTOSCALE_UNROLL
  for (int w = 0; w < 4; ++w) {
    const int kept = left - 4 * w;
    combined |= x.word[w] & (kept >= 4 ? ~0u : kept <= 0 ? 0u : ~0u >> (32 - 8 * kept));
  }
  combined |= combined >> 16;
  return (combined | combined >> 8) & 3u;
}
/// Combined widths of the rows that one of `threads` threads reads.
__device__ inline std::uint32_t combined_widths_of_all(const operand_width* widths, int rows, int thread, int threads) {
  std::uint32_t combined = 0;
  for (int i = thread; i < (rows + 15) / 16; i += threads) combined |= combined_widths_of_sixteen(widths, i, rows);
  return combined;
}

/// The widest width over a block's `Threads` threads. All of them call it, with a barrier before each further call.
template <unsigned Threads>
__device__ operand_width block_width(std::uint32_t combined) {
  struct subgroup_widths {
    operand_width of[Threads / 32];
  };
  subgroup_widths& seen = block_shared<subgroup_widths>();
  const unsigned thread = thread_index().x;
  const bool outside_int8 = subgroup_any(combined != 0), outside_e5m2 = subgroup_any(combined > 1);
  if (thread % 32 == 0) seen.of[thread / 32] = combined_width((outside_int8 ? 1u : 0u) | (outside_e5m2 ? 2u : 0u));
  block_barrier();
  std::uint32_t of_block = 0;
  for (unsigned i = 0; i < Threads / 32; ++i) of_block |= static_cast<std::uint32_t>(seen.of[i]);
  return combined_width(of_block);
}

/// Writes the work list of the fallback kernel. The first block calls it when it knows all widths.
__device__ inline void leave_fallback(const gemm_arguments& p, operand_width widest) {
  if (block_index().x == 0 && thread_index().x == 0) *p.fallback = {static_cast<std::uint32_t>(widest), 0, 0};
}
/// The widest width of all rows, as written by the first kernel.
__device__ inline operand_width widest_fallback(const fallback_work& work) {
  return static_cast<operand_width>(load_relaxed(&work.widest));
}

/// One thread per output; a block covers the columns of one window tile in a row.
inline constexpr int add_threads = window_tile;

/// Adds the parts of K in ascending order.
[[maybe_unused]] static __global__ void __launch_bounds__(add_threads) add_parts_kernel(const gemm_arguments p) {
  wait_for_kernel_before();
  const int across = (p.n + add_threads - 1) / add_threads, block = static_cast<int>(block_index().x);
  const int row = block / across, thread = static_cast<int>(thread_index().x);
  const int column = block % across * add_threads + thread, row_of_tile = row / window_tile * window_tile + thread;
  bool wide = false;
  if (p.widths != nullptr) {
    std::uint32_t combined = row_of_tile < p.m ? static_cast<std::uint32_t>(p.widths[row_of_tile]) : 0;
    if (column < p.n) combined |= static_cast<std::uint32_t>(p.widths[p.base_b + column]);
    wide = block_width<add_threads>(combined) == operand_width::bf16;
  }
  if (column >= p.n) return;
  const std::int64_t at = static_cast<std::int64_t>(row) * p.n + column;
  float sum = p.partial[at];
  for (int i = 1; i < p.parts; ++i) sum += p.partial[static_cast<std::int64_t>(i) * p.m * p.n + at];
  if (p.base != nullptr && !wide) {
    sum = times_power(sum, p.base[row] + p.base[p.base_b + column]);
  }
  store_output(p, output_factor(p), sum, row, column);
}

}  // namespace rotoscale::gpu
