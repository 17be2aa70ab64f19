// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The embedding's kernels.
#pragma once

#include "gpu/nn/elementwise.hpp"

namespace rotoscale::gpu {

/// The extents are those of y.
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

/// `order`: positions of the tokens in range, sorted by id, then position. `runs[i]`: length of the run of equal ids
/// that starts at i, else 0.
struct token_order_args {
  nn::token_source tokens;
  const nn::step_state* state = nullptr;
  unsigned count = 0, vocabulary = 0;
  std::uint32_t *listed = nullptr, *order = nullptr, *runs = nullptr;
};

/// A block sorts the tokens of `order_range` consecutive ids: it counts tokens of smaller ids and collects its own,
/// then each warp writes out one id after another.
inline constexpr unsigned order_range = 64, order_threads = 256, order_warps = order_threads / segment_lanes;
struct order_shared {
  unsigned own[order_warps], lower[order_warps];  ///< of each warp
  unsigned of_number[order_range];
};

/// How many lanes of the segment before this one, and how many in all, have `condition`.
struct lane_count {
  unsigned before, all;
};
__device__ inline lane_count count_lanes(bool condition) {
  const unsigned lane = thread_index().x % segment_lanes;
  unsigned sum = condition ? 1 : 0;
  ROTOSCALE_UNROLL
  for (unsigned step = 1; step < segment_lanes; step *= 2) {
    const std::uint32_t other = shuffle(sum, lane - (lane < step ? 0 : step));
    if (lane >= step) sum += other;
  }
  return {sum - (condition ? 1 : 0), shuffle(sum, segment_lanes - 1)};
}

[[maybe_unused]] static __global__ void __launch_bounds__(order_threads)
    token_order_kernel(const ROTOSCALE_GRID_CONSTANT token_order_args a) {
  auto& shared = block_shared<order_shared>();
  const unsigned t = thread_index().x, warp = t / segment_lanes, low = block_index().x * order_range;
  const std::int32_t* const tokens = a.tokens.now(*a.state);
  const auto number = [&](unsigned i) { return i < a.count ? static_cast<std::uint32_t>(tokens[i]) : 0xFFFFFFFFu; };
  // 1. Where this range's tokens go: behind those of all lower numbers.
  unsigned below = 0;
  for (unsigned i = t; i < a.count; i += order_threads) below += number(i) < low;
  below = segment_sum(below);
  if (t % segment_lanes == 0) shared.lower[warp] = below;
  block_barrier();
  unsigned base = 0;
  for (unsigned w = 0; w < order_warps; ++w) base += shared.lower[w];
  // 2. Its tokens as they come.
  unsigned listed = 0;
  for (unsigned first = 0; first < a.count; first += order_threads) {
    const std::uint32_t n = number(first + t);
    const bool own = n - low < order_range && n < a.vocabulary;
    const lane_count lanes = count_lanes(own);
    if (t % segment_lanes == 0) shared.own[warp] = lanes.all;
    block_barrier();
    unsigned before = lanes.before, all = 0;
    for (unsigned w = 0; w < order_warps; ++w) {
      before += w < warp ? shared.own[w] : 0;
      all += shared.own[w];
    }
    if (own) a.listed[base + listed + before] = first + t;
    listed += all;
    block_barrier();
  }
  // 3. How many there are of each number.
  for (unsigned v = warp; v < order_range; v += order_warps) {
    unsigned found = 0;
    for (unsigned i = t % segment_lanes; i < listed; i += segment_lanes) found += number(a.listed[base + i]) == low + v;
    found = segment_sum(found);
    if (t % segment_lanes == 0) shared.of_number[v] = found;
  }
  block_barrier();
  // 4. Those of each number, ascending.
  for (unsigned v = warp; v < order_range; v += order_warps) {
    unsigned at = base;
    for (unsigned lower = 0; lower < v; ++lower) at += shared.of_number[lower];
    if (shared.of_number[v] == 0) continue;
    if (t % segment_lanes == 0) a.runs[at] = shared.of_number[v];
    for (unsigned first = 0; first < listed; first += segment_lanes) {
      const unsigned i = first + t % segment_lanes;
      const std::uint32_t token = i < listed ? a.listed[base + i] : 0;
      const bool same = i < listed && number(token) == low + v;
      const lane_count lanes = count_lanes(same);
      if (same) a.order[at + lanes.before] = token;
      at += lanes.all;
    }
  }
}

template <class T>
struct embedding_gradient_args {
  row_extents e;
  row_span<const T> dy;
  row_span<float> dtable;
  nn::token_source tokens;
  const nn::step_state* state = nullptr;
  const std::uint32_t *order = nullptr, *runs = nullptr;
};

/// One thread for each position of `order` and vec8; where a run of equal ids begins, it adds the run's rows, a batch
/// of loads at a time.
inline constexpr unsigned embedding_batch = 8;
template <class T>
__global__ void __launch_bounds__(row_threads)
    embedding_gradient_kernel(const ROTOSCALE_GRID_CONSTANT embedding_gradient_args<T> a) {
  const row_item at = row_item::of_thread(a.e, 1);
  if (at.row >= a.e.rows) return;
  const std::uint32_t run = a.runs[at.row];
  if (run == 0) return;
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  const std::uint32_t* const order = a.order + at.row;
  const index_t number = a.tokens.now(*a.state)[order[0]];
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

}  // namespace rotoscale::gpu
