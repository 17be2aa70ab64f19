// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// walk_k's order along K as a list for all outputs, so that operands can be packed in that order and kernels see
// nothing but steps.
#pragma once

#include <vector>

#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

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

/// Writes a plan down as walk_k leads it along K.
class gemm_planner : public k_visitor {
 public:
  gemm_planner(gemm_plan& plan, const mma_model& m, index_t slice) : plan_(plan), model_(m), slice_(slice) {}

  void begin_part(index_t, index_t) { is_first_chain_ = true; }
  void begin_chain(bool from_c) {
    span_ = {};
    span_.first = span_.last = plan_.steps();
    span_.restart = true;
    span_.from_c = from_c;
    span_.first_interval = is_first_chain_;
    span_.first_part = is_first_part_;
    is_first_chain_ = false;
  }
  void begin_instruction() {
    const index_t steps = span_.last - span_.first;
    if (steps == 0 || !(model_.c_last || steps * plan_.group >= slice_)) return;
    plan_.spans.push_back(span_);
    span_.first = span_.last;
    span_.restart = span_.from_c = span_.instruction_ends = false;
  }
  void step(const k_step& k) {
    for (index_t i = 0; i < k.size(); ++i) plan_.order.push_back(k[i]);
    while (plan_.positions() % plan_.group != 0) plan_.order.push_back(-1);
  }
  void end_instruction() {
    span_.last = plan_.steps();
    span_.instruction_ends = model_.c_last;
  }
  void end_chain() {
    span_.interval_ends = true;
    plan_.spans.push_back(span_);
  }
  void end_part() {
    plan_.spans.back().part_ends = true;
    is_first_part_ = false;
  }

 private:
  gemm_plan& plan_;
  const mma_model& model_;
  index_t slice_;
  gemm_span span_;
  bool is_first_chain_ = true, is_first_part_ = true;
};

/// Spans are cut so that they hold about `slice` positions: a panel's part that stays in the first-level cache.
inline gemm_plan plan_gemm(index_t k, const gemm_options& o, index_t slice) {
  gemm_plan plan;
  plan.group = o.model.group;
  plan.order.reserve(static_cast<std::size_t>(k + max_mma_group));
  gemm_planner planner(plan, o.model, slice);
  walk_k(k, o, planner);
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
    if (plan.k_of(p) >= 0) products[count++] = gemm_product(m, a, i, b, j, plan.k_of(p));
  }
  return fp32_value(mma_step(m, products, count, unpack(formats::fp32, fp32_bits(c))));
}

/// Runs f.template operator()<R>(i) over `count` rows, Rows at a time and the rest one by one.
template <int Rows, class Function>
inline void for_row_tiles(index_t count, const Function& f) {
  index_t i = 0;
  for (; i + Rows <= count; i += Rows) f.template operator()<Rows>(i);
  for (; i < count; ++i) f.template operator()<1>(i);
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
