// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// walk_k's order along K as a list, made once for all outputs. Operands are packed in that order, so kernels see only
// steps.
#pragma once

#include <span>

#include "rotoscale/gemm_ref.hpp"
#include "rotoscale/scratch.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Consecutive steps of one chain, and the accumulator's additions around them.
struct gemm_span {
  index_t first = 0, last = 0;  ///< steps
  bool restart = false;         ///< start from +0, or from C (from_c)
  bool from_c = false;
  bool instruction_ends = false;  ///< with c_last: add the accumulator to the chain
  bool interval_ends = false;     ///< add the chain to the part
  bool part_ends = false;         ///< add the part to the sum
  bool first_interval = false, first_part = false;
};

/// Visitor of walk_k that writes the list. Without memory it only counts the entries.
class gemm_planner : public k_visitor {
 public:
  gemm_planner(const mma_model& m, index_t slice, index_t* order = nullptr, gemm_span* spans = nullptr)
      : model_(m), slice_(slice), order_(order), spans_(spans) {}

  index_t positions() const { return positions_; }
  index_t spans() const { return span_count_; }

  void begin_part(index_t, index_t) { is_first_chain_ = true; }
  void begin_chain(bool from_c) {
    span_ = {};
    span_.first = span_.last = steps();
    span_.restart = true;
    span_.from_c = from_c;
    span_.first_interval = is_first_chain_;
    span_.first_part = is_first_part_;
    is_first_chain_ = false;
  }
  void begin_instruction() {
    const index_t length = span_.last - span_.first;
    if (length == 0 || !(model_.c_last || length * model_.group >= slice_)) return;
    end_span();
    span_.first = span_.last;
    span_.restart = span_.from_c = span_.instruction_ends = false;
  }
  void step(const k_step& k) {
    for (index_t i = 0; i < k.size() && order_ != nullptr; ++i) order_[positions_ + i] = k[i];
    positions_ += k.size();
    for (; positions_ % model_.group != 0; ++positions_) {
      if (order_ != nullptr) order_[positions_] = -1;
    }
  }
  void end_instruction() {
    span_.last = steps();
    span_.instruction_ends = model_.c_last;
  }
  void end_chain() {
    span_.interval_ends = true;
    end_span();
  }
  void end_part() {
    if (spans_ != nullptr) spans_[span_count_ - 1].part_ends = true;
    is_first_part_ = false;
  }

 private:
  index_t steps() const { return positions_ / model_.group; }
  void end_span() {
    if (spans_ != nullptr) spans_[span_count_] = span_;
    ++span_count_;
  }

  const mma_model& model_;
  index_t slice_;
  index_t* order_;
  gemm_span* spans_;
  index_t positions_ = 0, span_count_ = 0;
  gemm_span span_;
  bool is_first_chain_ = true, is_first_part_ = true;
};

/// Length of gemm_planner's list, computed without the walk. Whole instructions of a chain have equal counts, and so do
/// whole chains of a part and all parts except the last.
struct gemm_plan_size {
  index_t positions = 0, spans = 0;

  static gemm_plan_size of(index_t k, const gemm_options& o, index_t slice) {
    const index_t length = part_length(k, o), parts = k == 0 ? 1 : (k + length - 1) / length;
    return (parts - 1) * of_part(length, o, slice) + of_part(k - (parts - 1) * length, o, slice);
  }

 private:
  friend gemm_plan_size operator+(const gemm_plan_size& a, const gemm_plan_size& b) {
    return {a.positions + b.positions, a.spans + b.spans};
  }
  friend gemm_plan_size operator*(index_t n, const gemm_plan_size& s) { return {n * s.positions, n * s.spans}; }

  static gemm_plan_size of_part(index_t k, const gemm_options& o, index_t slice) {
    if (o.promotion == 0 || k <= o.promotion) return of_chain(k, o.model, slice);
    const gemm_plan_size whole = k / o.promotion * of_chain(o.promotion, o.model, slice);
    return k % o.promotion == 0 ? whole : whole + of_chain(k % o.promotion, o.model, slice);
  }
  static gemm_plan_size of_chain(index_t k, const mma_model& m, index_t slice) {
    if (k == 0) return {0, 1};
    const index_t length = m.instruction_k != 0 ? m.instruction_k : m.group != 0 ? m.group : k;
    const index_t each = instruction_positions(m, length);
    const index_t a_span = m.c_last || slice <= each ? 1 : (slice + each - 1) / each;  // instructions
    const index_t rest = k % length, count = k / length + (rest != 0);
    return {k / length * each + instruction_positions(m, rest), (count + a_span - 1) / a_span};
  }
  static index_t instruction_positions(const mma_model& m, index_t products) {
    index_t positions = 0;
    for (index_t s = 0, steps = products == 0 ? 0 : mma_step_count(m, products); s < steps; ++s) {
      positions += (mma_step_at(m, products, s).count + m.group - 1) / m.group * m.group;
    }
    return positions;
  }
};

/// The list, in scratch memory. Spans hold about `slice` positions, so that a panel's slice stays in L1.
class gemm_plan {
 public:
  /// `counts_only`: computes only the size.
  gemm_plan(index_t k, const gemm_options& o, index_t slice, bool counts_only = false)
      : gemm_plan(k, o, slice, counts_only, gemm_plan_size::of(k, o, slice)) {}

  const int group;  ///< positions per step

  std::span<const gemm_span> spans() const { return {spans_.data(), static_cast<std::size_t>(span_count_)}; }
  index_t positions() const { return positions_; }
  index_t steps() const { return positions_ / group; }
  /// k of a position; -1 for padding, which multiplies zeros.
  index_t k_of(index_t position) const { return order_[position]; }
  /// Is position i always k = i, with all padding at the end?
  bool ascending() const { return ascending_; }
  bool counts_only() const { return counts_only_; }
  /// Scratch bytes of the list.
  std::size_t bytes() const {
    return scratch_array<index_t>::bytes(positions_) + scratch_array<gemm_span>::bytes(span_count_);
  }

 private:
  gemm_plan(index_t k, const gemm_options& o, index_t slice, bool counts_only, const gemm_plan_size& size)
      : group(o.model.group),
        positions_(size.positions),
        span_count_(size.spans),
        counts_only_(counts_only),
        order_(counts_only ? 0 : positions_),
        spans_(counts_only ? 0 : span_count_) {
    if (counts_only) return;
    gemm_planner planner(o.model, slice, order_.data(), spans_.data());
    walk_k(k, o, planner);
    ROTOSCALE_ASSERT(planner.positions() == positions_ && planner.spans() == span_count_);
    for (index_t i = 0; i < positions_; ++i) {
      ascending_ = ascending_ && (k_of(i) == i || (i >= k && k_of(i) < 0));
    }
  }

  index_t positions_, span_count_;
  bool counts_only_;
  scratch_array<index_t> order_;
  scratch_array<gemm_span> spans_;
  bool ascending_ = true;
};

/// Copies a row of k elements into the plan's order, with zeros as padding. `to` has plan.positions() elements.
template <class T>
inline void arrange(const gemm_plan& plan, const T* row, index_t k, T* to) {
  const index_t positions = plan.positions();
  if (positions == 0) return;  // memcpy must not get null, even for size 0
  if (plan.ascending()) {
    __builtin_memcpy(to, row, static_cast<std::size_t>(k) * sizeof(T));
    for (index_t i = k; i < positions; ++i) to[i] = T{0};
    return;
  }
  for (index_t i = 0; i < positions; ++i) to[i] = plan.k_of(i) < 0 ? T{0} : row[plan.k_of(i)];
}

/// Do the products of each run of `run` positions share scales of `block` elements? Unknown if the plan only counts.
inline bool runs_share_scales(const gemm_plan& plan, int run, int block) {
  if (block == 0) return true;
  if (plan.counts_only()) return false;
  for (index_t first = 0; first < plan.positions(); first += run) {
    for (index_t i = first; i < first + run; ++i) {
      if (plan.k_of(i) >= 0 && plan.k_of(i) / block != plan.k_of(first) / block) return false;
    }
  }
  return true;
}

/// One step of one output, by the definition.
inline float step_ref(const mma_model& m, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                      const gemm_plan& plan, index_t step, float c) {
  mma_product products[max_mma_group];
  int count = 0;
  for (index_t p = step * plan.group; p < (step + 1) * plan.group; ++p) {
    if (plan.k_of(p) >= 0) products[count++] = gemm_product(m, a, i, b, j, plan.k_of(p));
  }
  return fp32_value(mma_step(m, products, count, unpack(formats::fp32, fp32_bits(c))));
}

/// Calls f.template operator()<R>(i) for all rows: R = Rows while possible, then R = 1.
template <int Rows, class Function>
inline void for_row_tiles(index_t count, const Function& f) {
  index_t i = 0;
  for (; i + Rows <= count; i += Rows) f.template operator()<Rows>(i);
  for (; i < count; ++i) f.template operator()<1>(i);
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
