// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The one definition of a GEMM's order along K: parts (split-K), chains (promotion), instructions, steps. In this order
// gemm_ref adds, the fast path packs operands, and programs explain results.
#pragma once

#include "rotoscale/gemm_options.hpp"

namespace rotoscale {

inline namespace ROTOSCALE_ISA {

/// Length of every part of K except the last.
constexpr index_t part_length(index_t k, const gemm_options& o) {
  if (o.split_run != 0) return k / o.split_k;
  const index_t unit = o.split_k * o.split_grain;
  return (k + unit - 1) / unit * o.split_grain;
}

/// The k at `position`, if all parts are written one after the other.
constexpr index_t k_at(index_t k, const gemm_options& o, index_t position) {
  if (o.split_run == 0) return position;
  const index_t part = k / o.split_k, within = position % part;
  return (within / o.split_run * o.split_k + position / part) * o.split_run + within % o.split_run;
}

/// The products of one step of the matrix unit, as indices along K.
class k_step {
 public:
  /// `products` of the instruction that begins at position `first`, for a GEMM with this K.
  constexpr k_step(index_t k, const gemm_options& o, index_t first, const mma_step_products& products)
      : k_(k), o_(&o), first_(first), products_(products) {}

  /// Number of products.
  constexpr index_t size() const { return products_.count; }
  /// k of product `i`.
  constexpr index_t operator[](index_t i) const { return k_at(k_, *o_, first_ + products_[i]); }

 private:
  index_t k_;
  const gemm_options* o_;
  index_t first_;
  mma_step_products products_;
};

/// Callbacks of walk_k. A visitor derives from this and hides the functions that it needs; nothing is virtual.
struct k_visitor {
  constexpr void begin_part(index_t, index_t) {}  ///< a part of K: positions [first, last)
  constexpr void begin_chain(bool) {}             ///< the accumulator starts from +0, or from C if true
  constexpr void begin_instruction() {}           ///< model.instruction_k products, fewer at the end of a chain
  constexpr void step(const k_step&) {}           ///< adds the step's products to the accumulator
  constexpr void end_instruction() {}             ///< with c_last: adds the instruction's sum to the accumulator
  constexpr void end_chain() {}                   ///< adds the accumulator to the FP32 sum of its part
  constexpr void end_part() {}                    ///< pushes the part's sum on a stack
  constexpr void add_parts() {}                   ///< replaces the two sums on top of the stack by their sum
};

}  // namespace ROTOSCALE_ISA

namespace detail {
inline namespace ROTOSCALE_ISA {

template <class Visitor>
constexpr void walk_chain(index_t k, const gemm_options& o, index_t first, index_t last, Visitor& visitor) {
  const mma_model& m = o.model;
  const index_t length = m.instruction_k != 0 ? m.instruction_k : m.group != 0 ? m.group : last - first;
  for (index_t p = first; p < last; p += length) {
    const index_t count = last - p < length ? last - p : length;
    visitor.begin_instruction();
    const index_t steps = mma_step_count(m, count);
    for (index_t s = 0; s < steps; ++s) visitor.step(k_step(k, o, p, mma_step_at(m, count, s)));
    visitor.end_instruction();
  }
}

template <class Visitor>
constexpr void walk_part(index_t k, const gemm_options& o, index_t first, index_t last, Visitor& visitor) {
  visitor.begin_part(first, last);
  index_t p = first;
  do {  // at least once: a part may be empty
    const index_t end = o.promotion == 0 || last - p < o.promotion ? last : p + o.promotion;
    visitor.begin_chain(o.start_from_c && p == 0);
    walk_chain(k, o, p, end, visitor);
    visitor.end_chain();
    p = end;
  } while (p < last);
  visitor.end_part();
}

}  // namespace ROTOSCALE_ISA
}  // namespace detail

inline namespace ROTOSCALE_ISA {

/// Leads `visitor` through the products of one output in the order of `o`. It leaves one sum on the stack, which holds
/// at most 64. Pairwise order adds neighbouring parts, then neighbouring sums; an odd one waits until the end.
template <class Visitor>
constexpr void walk_k(index_t k, const gemm_options& o, Visitor& visitor) {
  const index_t length = part_length(k, o), parts = k == 0 ? 1 : (k + length - 1) / length;
  for (index_t n = 0; n < parts; ++n) {
    const index_t first = (o.order == split_order::descending ? parts - 1 - n : n) * length;
    detail::walk_part(k, o, first, first + length < k ? first + length : k, visitor);
    if (o.order == split_order::pairwise) {
      for (index_t carry = n; carry % 2 != 0; carry /= 2) visitor.add_parts();
    } else if (n > 0) {
      visitor.add_parts();
    }
  }
  if (o.order != split_order::pairwise) return;
  for (index_t rest = parts; (rest & (rest - 1)) != 0; rest &= rest - 1) visitor.add_parts();
}

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale
