// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels that add rows of a table to rows of a tensor (a bias, learned positions), and its gradient, also after an
// activation.
#pragma once

#include "gpu/nn/elementwise.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned bias_rows = 4;  ///< per thread

/// x += row t mod period of the table.
template <class T>
struct bias_args {
  row_extents e;
  row_span<const float> table;
  row_span<T> x;
  unsigned period = 1;
};

template <class T>
__global__ void __launch_bounds__(row_threads) bias_kernel(const ROTOSCALE_GRID_CONSTANT bias_args<T> a) {
  const row_item at = row_item::of_thread(a.e, bias_rows);
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8), row = static_cast<unsigned>(at.row);
  stored_vec8<T> x[bias_rows];
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < bias_rows; ++r) {
    if (at.row + r < a.e.rows) x[r].load(a.x[at.row + r] + col, count, a.e.vectors);
  }
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < bias_rows; ++r) {
    if (at.row + r >= a.e.rows) continue;
    float u[vec8_elements], bias[vec8_elements];
    load_floats(a.table[(row + r) % a.period] + col, count, a.e.vectors, bias);
    x[r].widen(u);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) u[i] += bias[i];
    x[r].narrow(u);
    x[r].store(a.x[at.row + r] + col, count, a.e.vectors);
  }
}

/// Row `part` of `partial`: the sum of 64 rows of dy, every period-th. The first is row
/// part / period * 64 * period + part mod period.
template <class T>
struct bias_gradient_args {
  row_extents e;
  row_span<const T> dy;
  float* partial = nullptr;
  unsigned period = 1;
  index_t parts = 0;
};

/// One thread per vec8 of a part. It loads several rows before it adds.
inline constexpr unsigned bias_batch = 4;
template <class T>
__global__ void __launch_bounds__(row_threads, bounds_count_waves ? 1 : 6)
    bias_gradient_kernel(const ROTOSCALE_GRID_CONSTANT bias_gradient_args<T> a) {
  const row_item at = row_item::of_thread(a.e, 1);
  if (at.row >= a.parts) return;
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  const index_t first = at.row / a.period * nn::gain_chunk * a.period + at.row % a.period;
  float sum[vec8_elements] = {};
  ROTOSCALE_KEEP_LOOP
  for (unsigned k = 0; k < nn::gain_chunk; k += bias_batch) {
    stored_vec8<T> some[bias_batch];
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < bias_batch; ++i) {
      const index_t row = first + (k + i) * index_t{a.period};
      if (row < a.e.rows) some[i].load(a.dy[row] + col, count, a.e.vectors);
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < bias_batch; ++i) {
      if (first + (k + i) * index_t{a.period} >= a.e.rows) continue;
      add_columns(some[i], sum);
    }
  }
  store_floats(a.partial + at.row * index_t{a.e.cols} + col, count, sum);
}

/// `rows` has the extents of dh. Row p of `partial`: sums of the columns of dx, then of dup, over rows 64 p to 64 p +
/// 63.
template <class T>
struct activation_bias_args {
  activation_args<T> rows;
  float* partial = nullptr;
};

/// Threads of a block: few, since a thread has 64 rows. Blocks per SM (AMD: waves per SIMD): GPT-2 124M runs in one
/// wave.
inline constexpr unsigned activation_bias_threads = 128;
template <class A>
inline constexpr unsigned activation_bias_blocks = bounds_count_waves ? 4
                                                   : A::gated         ? 8
                                                                      : 12;

/// activation_gradient_kernel of 64 rows per thread. Adds its results, rounded as stored, by columns.
template <class A, class T>
__global__ void __launch_bounds__(activation_bias_threads, activation_bias_blocks<A>)
    activation_bias_kernel(const ROTOSCALE_GRID_CONSTANT activation_bias_args<T> args) {
  const activation_args<T>& a = args.rows;
  const unsigned item = block_index().x * activation_bias_threads + thread_index().x, p = item % a.e.vec8s;
  const unsigned col = p * vec8_elements, count = a.e.count(p), part = item / a.e.vec8s;
  const index_t first = part * nn::gain_chunk;
  float sum[vec8_elements] = {}, sum_up[vec8_elements] = {};
  ROTOSCALE_KEEP_LOOP
  for (index_t row = first; row < first + nn::gain_chunk && row < a.e.rows; ++row) {
    stored_vec8<T> x, up, dh;
    load_inputs<A>(a, row, col, count, x, up);
    dh.load(a.dh[row] + col, count, a.e.vectors);
    activation_gradients<A>(dh, x, up);
    x.store(a.dx[row] + col, count, a.e.vectors);
    add_columns(x, sum);
    if constexpr (A::gated) {
      up.store(a.dup[row] + col, count, a.e.vectors);
      add_columns(up, sum_up);
    }
  }
  if (first >= a.e.rows) return;
  float* const to = args.partial + part * index_t{(A::gated ? 2 : 1) * a.e.cols} + col;
  store_floats(to, count, sum);
  if constexpr (A::gated) store_floats(to + a.e.cols, count, sum_up);
}

}  // namespace rotoscale::gpu
