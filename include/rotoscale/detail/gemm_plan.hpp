// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The order in which a GEMM's accumulators meet K: what accumulate_ref does, written down once for all outputs, so that
// operands can be packed in that order and kernels see nothing but steps.
#pragma once

#include <vector>

#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::detail {

/// Consecutive steps of one chain, and what happens to the accumulator around them.
struct gemm_span {
  index_t first = 0, last = 0;  ///< steps
  bool restart = false;         ///< the accumulator starts from +0, or from C
  bool from_c = false;
  bool instruction_ends = false;  ///< c_last: the accumulator is added to the chain
  bool interval_ends = false;     ///< the chain is added to the part
  bool part_ends = false;         ///< the part is added to the sum
  bool first_interval = false, first_part = false;
};

struct gemm_plan {
  int group = 1;               ///< positions of a step
  std::vector<index_t> order;  ///< k of each position, -1 for padding: a product of zeros
  bool ascending = true;       ///< position i is k = i, then padding
  std::vector<gemm_span> spans;

  index_t positions() const { return static_cast<index_t>(order.size()); }
  index_t steps() const { return positions() / group; }
  index_t k_of(index_t position) const { return order[static_cast<std::size_t>(position)]; }
};

/// One instruction's k in the order of its steps, as mma_instruction takes them.
inline void append_instruction(gemm_plan& plan, const gemm_options& o, index_t k, index_t first, index_t count) {
  const mma_model& m = o.model;
  const int runs = m.interleave == 0 ? 1 : 2;
  for (int half = 0; half < runs; ++half) {
    for (index_t i = 0; i < count; ++i) {
      if (m.interleave == 0 || i / m.interleave % 2 == half) plan.order.push_back(k_at(k, o, first + i));
    }
    while (plan.positions() % plan.group != 0) plan.order.push_back(-1);
  }
}

/// Spans are cut so that they hold about `slice` positions: a panel's part that stays in the first-level cache.
inline gemm_plan plan_of(index_t k, const gemm_options& o, index_t slice) {
  const mma_model& m = o.model;
  const index_t length = m.instruction_k != 0 ? m.instruction_k : m.group;
  const index_t part = part_length(k, o);
  const index_t parts = k == 0 ? 1 : (k + part - 1) / part;
  gemm_plan plan;
  plan.group = m.group;
  plan.order.reserve(static_cast<std::size_t>(k + length));
  for (index_t n = 0; n < parts; ++n) {
    const index_t first = (o.order == split_order::descending ? parts - 1 - n : n) * part;
    const index_t last = first + part < k ? first + part : k;
    const index_t interval = o.promotion == 0 ? last - first : o.promotion;
    for (index_t start = first; start < last || start == first; start += interval) {
      const index_t end = start + interval < last ? start + interval : last;
      gemm_span span;
      span.first = span.last = plan.steps();
      span.restart = true;
      span.from_c = o.start_from_c && start == 0;
      span.first_interval = start == first;
      span.first_part = n == 0;
      for (index_t k0 = start; k0 < end; k0 += length) {
        append_instruction(plan, o, k, k0, end - k0 < length ? end - k0 : length);
        span.last = plan.steps();
        span.instruction_ends = m.c_last;
        if (k0 + length < end && (m.c_last || (span.last - span.first) * m.group >= slice)) {
          plan.spans.push_back(span);
          span.first = span.last;
          span.restart = span.from_c = span.instruction_ends = false;
        }
      }
      span.interval_ends = true;
      span.part_ends = start + interval >= last || interval <= 0;
      plan.spans.push_back(span);
      if (interval <= 0) break;
    }
  }
  for (index_t i = 0; i < plan.positions(); ++i) {
    plan.ascending = plan.ascending && (plan.k_of(i) == i || (i >= k && plan.k_of(i) < 0));
  }
  return plan;
}

/// Puts a row's elements, k in all, where the plan wants them; padding is zero. `to` has plan.positions() elements.
template <class T>
inline void arrange(const gemm_plan& plan, const T* row, index_t k, T* to) {
  const index_t positions = plan.positions();
  if (positions == 0) return;  // memcpy takes no null, whatever the size
  if (plan.ascending) {
    __builtin_memcpy(to, row, static_cast<std::size_t>(k) * sizeof(T));
    for (index_t i = k; i < positions; ++i) to[i] = T{0};
    return;
  }
  for (index_t i = 0; i < positions; ++i) to[i] = plan.k_of(i) < 0 ? T{0} : row[plan.k_of(i)];
}

/// Do the products of each run of `run` positions share their scales, where scales are for `block` elements?
inline bool runs_share_scales(const gemm_plan& plan, int run, int block) {
  if (block == 0) return true;
  for (index_t first = 0; first < plan.positions(); first += run) {
    for (index_t i = first; i < first + run; ++i) {
      if (plan.k_of(i) >= 0 && plan.k_of(i) / block != plan.k_of(first) / block) return false;
    }
  }
  return true;
}

/// One step of one output by the definition.
inline float step_ref(const mma_model& m, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                      const gemm_plan& plan, index_t step, float c) {
  mma_product products[max_mma_group];
  int count = 0;
  for (index_t p = step * plan.group; p < (step + 1) * plan.group; ++p) {
    if (plan.k_of(p) >= 0) products[count++] = product_ref(m, a, i, b, j, plan.k_of(p));
  }
  return fp32_value(mma_step(m, products, count, unpack(formats::fp32, fp32_bits(c))));
}

}  // namespace rotoscale::detail
