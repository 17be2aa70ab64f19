// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The definition of the emulated GEMM: C = A · Bᵀ over stored codes, accumulated as an mma_model says. The blocked,
// threaded version in gemm.hpp equals it by bytes.
#pragma once

#include "rotoscale/gemm_epilogue.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/k_order.hpp"
#include "rotoscale/mma_ref.hpp"

namespace rotoscale {

inline namespace ROTOSCALE_ISA {

/// Product k of output (i, j) as the model's matrix unit takes it, with its block scales.
ROTOSCALE_HD constexpr mma_product gemm_product(const mma_model& m, const gemm_operand& a, index_t i,
                                                const gemm_operand& b, index_t j, index_t k) {
  mma_product p = mma_multiply(m, mma_element(m, a.element, operand_code(a, i, k)),
                               mma_element(m, b.element, operand_code(b, j, k)));
  if (a.block != 0) mma_scale(p, a.scale, operand_scale(a, i, k));
  if (b.block != 0) mma_scale(p, b.scale, operand_scale(b, j, k));
  return p;
}

/// Visitor of walk_k that accumulates output (i, j). Between steps the accumulator is an FP32 number, since every
/// mma_result except fp64_nearest is.
class accumulator_ref : public k_visitor {
 public:
  /// `c`: start value of the accumulator, used if the options say so.
  accumulator_ref(const gemm_operand& a, index_t i, const gemm_operand& b, index_t j, const gemm_options& o, float c)
      : a_(a), b_(b), o_(o), i_(i), j_(j), c_(c) {}

  /// @{ Called by walk_k (k_visitor).
  void begin_part(index_t, index_t) { is_first_chain_ = true; }
  void begin_chain(bool from_c) { acc_ = from_c ? fp32_number(c_) : 0.0f; }
  void begin_instruction() {
    if (!o_.model.c_last) return;
    before_ = acc_;
    acc_ = 0.0f;
  }
  void step(const k_step& k) {
    const mma_model& m = o_.model;
    if (m.group == 0) {
      acc_ = exact_sum_of(k);
    } else if (m.sum == mma_sum::exact && m.group == 1) {  // decoded elements and one FP32 fused multiply-add
      acc_ = __builtin_fmaf(operand_value(a_, i_, k[0]), operand_value(b_, j_, k[0]), acc_);
    } else {
      for (index_t n = 0; n < k.size(); ++n) products_[n] = product(k[n]);
      acc_ =
          fp32_value(m, mma_step(m, products_, static_cast<int>(k.size()), mma_number(formats::fp32, fp32_bits(acc_))));
    }
  }
  void end_instruction() {
    if (!o_.model.c_last) return;
    const auto number = [](float x) { return unpack(formats::fp32, fp32_bits(x)); };
    acc_ = fp32_value(mma_add_last(o_.model, number(before_), number(acc_)));
  }
  void end_chain() {
    part_ = is_first_chain_ ? fp32_number(acc_) : plus(part_, fp32_number(acc_));
    is_first_chain_ = false;
  }
  void end_part() { sums_[++depth_] = o_.split_k == 1 ? part_ : round_to_format(o_.split_sum, part_); }
  void add_parts() {
    --depth_;
    sums_[depth_] = round_to_format(o_.split_sum, plus(sums_[depth_], sums_[depth_ + 1]));
  }
  /// @}

  /// Product k of this output.
  mma_product product(index_t k) const { return gemm_product(o_.model, a_, i_, b_, j_, k); }
  float accumulator() const { return acc_; }  ///< current chain; with c_last, the current instruction's own sum
  float before_instruction() const { return before_; }              ///< with c_last: the chain before this instruction
  float part() const { return part_; }                              ///< FP32 sum of the part's finished chains
  float top(int below = 0) const { return sums_[depth_ - below]; }  ///< from the top of the stack of part sums

 private:
  /// Canonicalises NaN, as a matrix unit's accumulator does.
  float fp32_number(float x) const { return fp32_value(o_.model, mma_number(formats::fp32, fp32_bits(x))); }
  /// x + y. With keeps_nan, the first NaN propagates.
  float plus(float x, float y) const {
    const float sum = x + y;
    if (!o_.model.keeps_nan || !fp32_is_nan(fp32_bits(sum))) return sum;
    const unpacked a = mma_number(formats::fp32, fp32_bits(x)), b = mma_number(formats::fp32, fp32_bits(y));
    return fp32_value(o_.model, detail::nan_of(o_.model, a, b));
  }

  /// For models with group 0: the accumulator plus all products, rounded once.
  float exact_sum_of(const k_step& k) const {
    detail::special_terms terms;
    detail::exact_sum sum;
    const auto add = [&](const mma_term& t) {
      terms.see(t);
      sum.add(t.negative, t.significand, t.low);
    };
    add(to_term(unpack(formats::fp32, fp32_bits(acc_)), 0));
    for (index_t n = 0; n < k.size(); ++n) add(scaled_term(product(k[n])));
    unpacked result;
    return fp32_value(terms.decide(true, result) ? result : detail::round_result(o_.model, sum.value()));
  }

  const gemm_operand &a_, &b_;
  const gemm_options& o_;
  index_t i_, j_;
  float c_, acc_ = 0.0f, before_ = 0.0f, part_ = 0.0f;
  bool is_first_chain_ = true;
  float sums_[65] = {};  ///< stack of part sums, from index 1
  int depth_ = 0;
  mma_product products_[max_mma_group];  ///< products of the current step; cleared only once
};

/// The accumulator of one output element before the epilogue. It starts from `c`.
inline float accumulate_ref(const gemm_operand& a, index_t i, const gemm_operand& b, index_t j, const gemm_options& o,
                            float c) {
  accumulator_ref acc(a, i, b, j, o, c);
  walk_k(a.k, o, acc);
  return acc.top();
}

/// accumulator_ref for FP64 units (mma_result::fp64_nearest) and FP64 operands: fp64_chain per chain, IEEE sums of
/// parts.
class fp64_accumulator_ref : public k_visitor {
 public:
  /// `c`: start value of the accumulator, used if the options say so.
  fp64_accumulator_ref(const gemm_operand& a, index_t i, const gemm_operand& b, index_t j, double c)
      : a_(a), b_(b), i_(i), j_(j), c_(c) {}

  /// @{ Called by walk_k (k_visitor).
  void begin_part(index_t, index_t) { is_first_chain_ = true; }
  void begin_chain(bool from_c) { acc_ = from_c ? bit_cast<std::uint64_t>(c_) : 0; }
  void step(const k_step& k) {
    for (index_t n = 0; n < k.size(); ++n) {
      const std::uint64_t p = operand_code(a_, i_, k[n]), q = operand_code(b_, j_, k[n]);
      acc_ = fp64_chain(&p, &q, 1, acc_);
    }
  }
  void end_chain() {
    part_ = is_first_chain_ ? bit_cast<double>(acc_) : part_ + bit_cast<double>(acc_);
    is_first_chain_ = false;
  }
  void end_part() { sums_[++depth_] = part_; }
  void add_parts() {
    --depth_;
    sums_[depth_] += sums_[depth_ + 1];
  }
  /// @}

  /// Value of the current chain.
  double accumulator() const { return bit_cast<double>(acc_); }
  /// Top of the stack of part sums.
  double top() const { return sums_[depth_]; }

 private:
  const gemm_operand &a_, &b_;
  index_t i_, j_;
  double c_, part_ = 0.0;
  std::uint64_t acc_ = 0;
  bool is_first_chain_ = true;
  double sums_[65] = {};  ///< stack of part sums, from index 1
  int depth_ = 0;
};

/// The FP64 sum of output (i, j), with the steps of fp64_fma_chain in the order of the options.
inline double accumulate_fp64_ref(const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                                  const gemm_options& o, double c) {
  fp64_accumulator_ref acc(a, i, b, j, c);
  walk_k(a.k, o, acc);
  return acc.top();
}

/// The epilogue of a GEMM with options `o`. `factor` is combined_factor's result.
inline gemm_epilogue make_epilogue(float factor, const gemm_options& o) {
  return {factor, o.accumulate, o.beta, o.bias != nullptr, o.model.nan_bits};
}

/// The output in column `column` from its accumulator. `c` is the old value. With keeps_nan, a NaN accumulator stays.
inline float finish_output(float acc, float factor, const gemm_options& o, float c, index_t column) {
  if (o.model.keeps_nan && fp32_is_nan(fp32_bits(acc))) return acc;
  const float y = make_epilogue(factor, o)(acc, c, o.bias != nullptr ? o.bias[column] : 0.0f);
  if (o.output == formats::fp32 || fp32_is_nan(fp32_bits(y))) return y;
  return decode(o.output, encode(o.output, y, o.output_rounding, overflow::to_inf));
}

/// Code of a result in o.output, as a kernel stores it.
inline std::uint64_t output_code(float x, const gemm_options& o) {
  if (!fp32_is_nan(fp32_bits(x))) return encode(o.output, x, rounding::nearest_even, overflow::to_inf);
  return (o.model.keeps_nan ? fp32_bits(x) : o.model.nan_bits) >> (32 - o.output.bits());
}

/// Factor of every sum: (a's factor * b's factor) * alpha.
inline float combined_factor(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  return (a.factor ? *a.factor : 1.0f) * (b.factor ? *b.factor : 1.0f) * o.alpha;
}

/// Is this GEMM defined? gemm_ref and gemm require it; callers with user input ask first.
/// - Blocks of packed codes begin on a byte.
/// - In a step of several products, blocks agree with the model's groups.
inline bool gemm_is_defined(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  const mma_model& m = o.model;
  const int instruction = m.instruction_k != 0 ? m.instruction_k : m.group == 0 ? 1 : m.group;
  if (m.group < 0 || (m.group == 0 && (m.sum != mma_sum::exact || m.instruction_k != 0))) return false;
  if (a.k != b.k || instruction > max_mma_group || a.block < 0 || b.block < 0) return false;
  if (o.split_k < 1 || o.split_grain < 1 || o.promotion < 0 || o.promotion % instruction != 0) return false;
  if (o.split_run < 0 || (o.split_run != 0 && a.k % (o.split_k * o.split_run) != 0)) return false;
  if (o.split_sum != formats::fp32 && o.split_sum != formats::fp16 && o.split_sum != formats::bf16) return false;
  if (o.output_rounding == rounding::stochastic) return false;
  if ((m.sum == mma_sum::scaled_groups || m.sum == mma_sum::rounded_tree) && m.subgroup < 1) return false;
  const int unit = m.sum == mma_sum::scaled_groups ? m.subgroup : 1;  // elements that must share their scales
  // A step's sum must fit in 64 bits. scaled_groups aligns by scales alone, so the elements' exponents add to the
  // width. Significands of products and of scales are below 4 each.
  const int exponents = m.sum == mma_sum::scaled_groups ? a.element.max_exponent() + b.element.max_exponent() : 0;
  const int bits = m.fraction_bits > m.late_bits ? m.fraction_bits : m.late_bits + 1;
  if (exponents + 4 + highest_bit(static_cast<std::uint64_t>(instruction)) + 1 + bits > 62) return false;
  const auto fits = [&](const gemm_operand& x) {
    if (x.scale_order == placement::aiter_data_16x16) return false;  // a layout for codes only
    if (x.code_order != placement::row_major && x.transposed) return false;
    if (!layout{x.code_order, x.rows, x.row_bytes()}.is_defined()) return false;
    if (x.block != 0 && (x.scale.is_signed || !fits_fp32(x.scale))) return false;
    // Formats may exceed FP32's range, but products with their scales must fit in an exact_sum.
    if (x.element.min_exponent() - x.element.mantissa_bits < -176 || x.element.max_exponent() > 176) return false;
    return x.block * storage_bits(x.element) % 8 == 0 && x.block % unit == 0 && x.block_rows >= 1 &&
           x.element.mantissa_bits <= formats::fp32.mantissa_bits;
  };
  return fits(a) && fits(b);
}

/// Computes row `i` of gemm_ref's result.
inline void gemm_row_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                         index_t i) {
  const float factor = combined_factor(a, b, o);
  for (index_t j = 0; j < b.rows; ++j) {
    const float old = o.accumulate || o.start_from_c ? c(i, j) : 0.0f;  // otherwise C is not read
    c(i, j) = finish_output(accumulate_ref(a, i, b, j, o, old), factor, o, old, j);
  }
}

/// A matrix as a batch of one.
template <class T>
inline view<T, 3> as_batch(matrix<T> m) {
  return {m.data, {1, m.extent(0), m.extent(1)}, {0, m.stride(0), m.stride(1)}};
}
/// Matrix `i` of a batch.
template <class T>
inline matrix<T> batch_element(view<T, 3> x, index_t i) {
  return {x.data + i * x.stride(0), {x.extent(1), x.extent(2)}, {x.stride(1), x.stride(2)}};
}

/// The definition: c[batch][i][j] for a.rows × b.rows outputs.
inline void gemm_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, view<float, 3> c) {
  ROTOSCALE_REQUIRE(gemm_is_defined(a, b, o) && c.extent(1) == a.rows && c.extent(2) == b.rows);
  for (index_t n = 0; n < c.extent(0); ++n) {
    for (index_t i = 0; i < a.rows; ++i) {
      gemm_row_ref(batch_element(a, n), batch_element(b, n), o, batch_element(c, n), i);
    }
  }
}
/// gemm_ref for one matrix.
inline void gemm_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c) {
  gemm_ref(a, b, o, as_batch(c));
}

}  // namespace ROTOSCALE_ISA

}  // namespace rotoscale
