// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels that add rows of a table to rows of a tensor (a bias, learned positions), and its gradient.
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
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  stored_vec8<T> x[bias_rows];
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < bias_rows; ++r) {
    if (at.row + r < a.e.rows) x[r].load(a.x[at.row + r] + col, count, a.e.vectors);
  }
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < bias_rows; ++r) {
    if (at.row + r >= a.e.rows) continue;
    float u[vec8_elements], bias[vec8_elements];
    load_floats(a.table[(at.row + r) % a.period] + col, count, a.e.vectors, bias);
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
inline constexpr unsigned bias_batch = 8;
template <class T>
__global__ void __launch_bounds__(row_threads)
    bias_gradient_kernel(const ROTOSCALE_GRID_CONSTANT bias_gradient_args<T> a) {
  const row_item at = row_item::of_thread(a.e, 1);
  if (at.row >= a.parts) return;
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  const index_t first = at.row / a.period * nn::gain_chunk * a.period + at.row % a.period;
  float sum[vec8_elements] = {}, d[vec8_elements];
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
      some[i].widen(d);
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < vec8_elements; ++j) sum[j] += d[j];
    }
  }
  store_floats(a.partial + at.row * index_t{a.e.cols} + col, count, sum);
}

}  // namespace rotoscale::gpu
