// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernel that adds partial sums of many rows to the gradient of a gain, a bias or a table.
#pragma once

#include "gpu/nn/rows.hpp"

namespace rotoscale::gpu {

/// dgain[i] += sum of the partial rows in order, i: matrix of `chunks` rows in `partial`. A block has eight columns.
/// All of its threads load their terms to shared memory; then one thread per column adds them.
inline constexpr unsigned gain_cols = 8, gain_rows = 512, gain_batch = 32;
struct gain_sum_args {
  const float* partial = nullptr;
  float* dgain[3] = {};
  index_t chunks = 0;
  unsigned cols = 0;
};
struct gain_sum_shared {
  vec16 terms[gain_cols][gain_rows / 4 + 1];  ///< FP32 bits; columns are in different banks
};
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    gain_sum_kernel(const ROTOSCALE_GRID_CONSTANT gain_sum_args a) {
  auto& shared = block_shared<gain_sum_shared>();
  wait_for_kernel_before();
  const unsigned t = thread_index().x, first_col = block_index().x * gain_cols, half = t % 2 * 4;
  const bool vectors = a.cols % 4 == 0;
  const float* const partial = a.partial + block_index().y * a.chunks * a.cols;
  float* const dgain = a.dgain[block_index().y];
  float sum = 0.0f;
  for (index_t first = 0; first < a.chunks; first += gain_rows) {
    const unsigned count = a.chunks - first < gain_rows ? static_cast<unsigned>(a.chunks - first) : gain_rows;
    vec16 some[gain_rows / (row_threads / 2)] = {};
    const auto for_each_row = [&](const auto& body) {
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < gain_rows / (row_threads / 2); ++i) {
        const unsigned r = t / 2 + i * (row_threads / 2);
        if (r < count) body(r, some[i]);
      }
    };
    for_each_row([&](unsigned r, vec16& to) {
      const unsigned col = first_col + half;
      const float* const from = partial + (first + r) * a.cols + col;
      if (vectors && col < a.cols) {
        to = *reinterpret_cast<const vec16*>(from);
      } else {
        ROTOSCALE_UNROLL
        for (unsigned j = 0; j < 4; ++j) to.word[j] = col + j < a.cols ? fp32_bits(from[j]) : 0u;
      }
    });
    for_each_row([&](unsigned r, const vec16& from) {
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < 4; ++j) shared.terms[half + j][r / 4].word[r % 4] = from.word[j];
    });
    block_barrier();
    if (t < gain_cols) {
      unsigned r = 0;
      for (; r + gain_batch <= count; r += gain_batch) {
        vec16 batch[gain_batch / 4];  // prefetched for the chain of additions
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < gain_batch / 4; ++i) batch[i] = shared.terms[t][r / 4 + i];
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < gain_batch; ++i) sum += fp32_from_bits(batch[i / 4].word[i % 4]);
      }
      for (; r < count; ++r) sum += fp32_from_bits(shared.terms[t][r / 4].word[r % 4]);
    }
    block_barrier();
  }
  if (t < gain_cols && first_col + t < a.cols) dgain[first_col + t] += sum;
}

/// The same for one matrix of few rows and many columns, a column per thread.
inline constexpr index_t few_chunks = 8;
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    few_gain_sum_kernel(const ROTOSCALE_GRID_CONSTANT gain_sum_args a) {
  wait_for_kernel_before();
  const index_t col = block_index().x * index_t{row_threads} + thread_index().x;
  if (col >= a.cols) return;
  float sum = 0.0f;
  for (index_t r = 0; r < a.chunks; ++r) sum += a.partial[r * a.cols + col];
  a.dgain[0][col] += sum;
}

}  // namespace rotoscale::gpu
