// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Embedding kernels. The gradient adds the rows of each id in order of position (token_order.hpp). A thread has eight
// columns of a short run. A block has 64 columns of a long run and prefetches its rows to shared memory.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/nn/elementwise.hpp"
#include "gpu/nn/rows.hpp"
#include "gpu/nn/token_order.hpp"

namespace rotoscale::gpu {

/// `e` has the extents of y.
template <class T>
struct embedding_args {
  row_extents e;
  row_span<const float> table;
  row_span<T> y;
  nn::token_source tokens;
  const nn::step_state* state = nullptr;
  std::uint32_t* fault = nullptr;
  unsigned vocabulary = 0;
};

/// Copies table rows to y. A token outside the vocabulary gives zeros and sets `fault` to its position + 1.
template <class T>
__global__ void __launch_bounds__(row_threads) embedding_kernel(const ROTOSCALE_GRID_CONSTANT embedding_args<T> a) {
  const row_item at = row_item::of_thread(a.e, embedding_rows);
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  const std::int32_t* const tokens = a.tokens.now(*a.state);
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < embedding_rows; ++r) {
    const index_t row = at.row + r;
    if (row >= a.e.rows) continue;
    float x[vec8_elements] = {};
    if (static_cast<std::uint32_t>(tokens[row]) < a.vocabulary) {
      load_floats(a.table[tokens[row]] + col, count, a.e.vectors, x);
    } else if (a.fault != nullptr && at.vec8 == 0) {
      atomic_max(a.fault, static_cast<std::uint32_t>(row + 1));
    }
    stored_vec8<T> y;
    y.narrow(x);
    y.store(a.y[row] + col, count, a.e.vectors);
  }
}

template <class T>
struct embedding_gradient_args {
  row_extents e;
  row_span<const T> dy;
  row_span<float> dtable;
  nn::token_source tokens;
  const nn::step_state* state = nullptr;
  const std::uint32_t *order = nullptr, *runs = nullptr, *long_runs = nullptr, *long_count = nullptr;

  __device__ index_t id_of(std::uint32_t position) const { return tokens.now(*state)[position]; }
};

/// One thread per position of `order` and vec8. The thread at the start of a short run of equal ids adds the run's
/// rows, in batches of loads.
inline constexpr unsigned embedding_batch = 8;
template <class T>
__global__ void __launch_bounds__(row_threads)
    embedding_gradient_kernel(const ROTOSCALE_GRID_CONSTANT embedding_gradient_args<T> a) {
  const row_item at = row_item::of_thread(a.e, 1);
  if (at.row >= a.e.rows) return;
  const std::uint32_t run = a.runs[at.row];
  if (run == 0 || run > longest_short_run) return;
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  const std::uint32_t* const order = a.order + at.row;
  const index_t number = a.id_of(order[0]);
  float sum[vec8_elements] = {}, d[vec8_elements];
  std::uint32_t i = 0;
  for (; i + embedding_batch <= run; i += embedding_batch) {
    stored_vec8<T> some[embedding_batch];
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < embedding_batch; ++k) some[k].load(a.dy[order[i + k]] + col, count, a.e.vectors);
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < embedding_batch; ++k) {
      some[k].widen(d);
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < vec8_elements; ++j) sum[j] += d[j];
    }
  }
  for (; i < run; ++i) {
    stored_vec8<T> dy;
    dy.load(a.dy[order[i]] + col, count, a.e.vectors);
    dy.widen(d);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < vec8_elements; ++j) sum[j] += d[j];
  }
  load_floats(a.dtable[number] + col, count, a.e.vectors, d);
  ROTOSCALE_UNROLL
  for (unsigned j = 0; j < vec8_elements; ++j) d[j] += sum[j];
  stored_vec8<float> result;
  result.narrow(d);
  result.store(a.dtable[number] + col, count, a.e.vectors);
}

/// Buffers for rows of a long run: long_stages - 1 steps of long_rows rows are in flight.
inline constexpr unsigned long_columns = 64, long_rows = row_threads / (long_columns / vec8_elements), long_stages = 4;
template <class T>
struct long_run_shared {
  vec16 rows[long_stages][long_rows][long_columns * sizeof(T) / sizeof(vec16)];
  __device__ T* row(unsigned step, unsigned r) { return reinterpret_cast<T*>(rows[step % long_stages][r]); }
};

/// Block b takes items b, b + blocks, ... An item is 64 columns of a long run.
template <class T>
__global__ void __launch_bounds__(row_threads)
    embedding_long_gradient_kernel(const ROTOSCALE_GRID_CONSTANT embedding_gradient_args<T> a) {
  auto& shared = block_shared<long_run_shared<T>>();
  const unsigned t = thread_index().x, row = t / (long_columns / vec8_elements);
  const unsigned column = t % (long_columns / vec8_elements) * vec8_elements;
  const unsigned parts = (a.e.cols + long_columns - 1) / long_columns;
  const std::uint32_t items = *a.long_count * parts;
  ROTOSCALE_KEEP_LOOP
  for (std::uint32_t item = block_index().x; item < items; item += grid_size().x) {
    const std::uint32_t at = a.long_runs[item / parts], run = a.runs[at];
    const unsigned first_col = item % parts * long_columns, col = first_col + column;
    const std::uint32_t* const order = a.order + at;
    const auto copy = [&](unsigned step) {
      const unsigned i = step * long_rows + row;
      if (i < run && col < a.e.cols) {
        stage_vec8(shared.row(step, row) + column, a.dy[order[i]] + col, a.e.count(col / vec8_elements), a.e.vectors);
      }
      end_copy_group();
    };
    ROTOSCALE_UNROLL
    for (unsigned step = 0; step + 1 < long_stages; ++step) copy(step);
    float sum = 0.0f;
    ROTOSCALE_KEEP_LOOP
    for (unsigned step = 0; step * long_rows < run; ++step) {
      wait_for_all_but<long_stages - 2>();
      block_barrier();
      copy(step + long_stages - 1);
      if (t >= long_columns) continue;
      const unsigned left = run - step * long_rows;
      if (left >= long_rows) {
        ROTOSCALE_UNROLL
        for (unsigned r = 0; r < long_rows; ++r) sum += widened(shared.row(step, r)[t]);
      } else {
        for (unsigned r = 0; r < left; ++r) sum += widened(shared.row(step, r)[t]);
      }
    }
    block_barrier();  // all reads of these rows are complete
    if (t < long_columns && first_col + t < a.e.cols) a.dtable[a.id_of(order[0])][first_col + t] += sum;
  }
}

}  // namespace rotoscale::gpu
