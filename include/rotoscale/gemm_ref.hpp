// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The emulated GEMM, defined: operands are stored codes, C = A · Bᵀ, accumulation is an mma_model. gemm.hpp has the
// blocked, threaded path that equals it by bytes.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/mma_ref.hpp"

namespace rotoscale {

namespace detail {

inline mma_product product_ref(const mma_model& m, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                               index_t k) {
  mma_product p = mma_multiply(m, mma_element(m, a.element, operand_code(a, i, k)),
                               mma_element(m, b.element, operand_code(b, j, k)));
  if (a.block != 0) mma_scale(p, a.scale, operand_scale(a, i, k));
  if (b.block != 0) mma_scale(p, b.scale, operand_scale(b, j, k));
  return p;
}

/// Length of all parts of K but the last.
inline index_t part_length(index_t k, const gemm_options& o) {
  if (o.split_run != 0) return k / o.split_k;
  const index_t unit = o.split_k * o.split_grain;
  return (k + unit - 1) / unit * o.split_grain;
}

/// The k at a position of the parts, one after the other.
inline index_t k_at(index_t k, const gemm_options& o, index_t position) {
  if (o.split_run == 0) return position;
  const index_t part = k / o.split_k, within = position % part;
  return (within / o.split_run * o.split_k + position / part) * o.split_run + within % o.split_run;
}

/// part(first, last) of each part's positions, joined by add(x, y).
template <class Part, class Add>
inline auto sum_of_parts(index_t k, const gemm_options& o, const Part& part, const Add& add) {
  const index_t length = part_length(k, o);
  const index_t count = k == 0 ? 1 : (k + length - 1) / length;
  decltype(part(k, k)) waiting[64] = {};  // sums of 1, 2, 4, ... parts
  int depth = 0;
  for (index_t n = 0; n < count; ++n) {
    const index_t first = (o.order == split_order::descending ? count - 1 - n : n) * length;
    auto x = part(first, first + length < k ? first + length : k);
    if (o.order == split_order::pairwise) {
      for (index_t carry = n; carry % 2 != 0; carry /= 2) x = add(waiting[--depth], x);
    } else if (n > 0) {
      x = add(waiting[--depth], x);
    }
    waiting[depth++] = x;
  }
  for (; depth > 1; --depth) waiting[depth - 2] = add(waiting[depth - 2], waiting[depth - 1]);
  return waiting[0];
}

/// mma_model{group 0}: one sum of c and products at positions [first, last), one rounding.
inline unpacked exact_chain_ref(const gemm_options& o, const gemm_operand& a, index_t i, const gemm_operand& b,
                                index_t j, index_t first, index_t last, unpacked c) {
  special_terms terms;
  exact_sum sum;
  const auto add = [&](const mma_term& t) {
    terms.see(t);
    sum.add(t.negative, t.significand, t.low);
  };
  add(term_of(c, 0));
  for (index_t p = first; p < last; ++p) add(scaled(product_ref(o.model, a, i, b, j, k_at(a.k, o, p))));
  unpacked result;
  return terms.decide(true, result) ? result : round_result(o.model, sum.value());
}

/// Products at positions [first, last) after c. Steps of one product are FP32 fused multiply-adds of decoded elements.
inline unpacked chain_ref(const gemm_options& o, const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                          index_t first, index_t last, unpacked c) {
  const mma_model& m = o.model;
  if (m.group == 0) return exact_chain_ref(o, a, i, b, j, first, last, c);
  if (m.sum == mma_sum::exact && m.group == 1) {
    float acc = fp32_value(c);
    for (index_t p = first; p < last; ++p) {
      const index_t k = k_at(a.k, o, p);
      acc = __builtin_fmaf(operand_value(a, i, k), operand_value(b, j, k), acc);
    }
    return unpack(formats::fp32, fp32_bits(acc));
  }
  const index_t length = m.instruction_k != 0 ? m.instruction_k : m.group;
  mma_product products[max_mma_group];
  for (index_t k0 = first; k0 < last; k0 += length) {
    const int count = static_cast<int>(last - k0 < length ? last - k0 : length);
    for (int k = 0; k < count; ++k) products[k] = product_ref(m, a, i, b, j, k_at(a.k, o, k0 + k));
    c = mma_instruction(m, products, count, c);
  }
  return c;
}

}  // namespace detail

/// The accumulator of one output element before the last step; `c` is what it starts from.
inline float accumulate_ref(const gemm_operand& a, index_t i, const gemm_operand& b, index_t j, const gemm_options& o,
                            float c) {
  const auto part = [&](index_t first, index_t last) {
    const index_t interval = o.promotion == 0 ? last - first : o.promotion;
    float promoted = 0.0f;
    for (index_t p = first; p < last || p == first; p += interval) {
      const unpacked start = o.start_from_c && p == 0 ? unpack(formats::fp32, fp32_bits(c)) : unpacked{};
      const float acc =
          fp32_value(detail::chain_ref(o, a, i, b, j, p, p + interval < last ? p + interval : last, start));
      promoted = p == first ? acc : promoted + acc;
      if (interval <= 0) break;
    }
    return o.split_k == 1 ? promoted : round_to_format(o.split_sum, promoted);
  };
  return detail::sum_of_parts(a.k, o, part, [&](float x, float y) { return round_to_format(o.split_sum, x + y); });
}

/// Last step of every GEMM of this library.
inline float finish_output(float acc, float factor, const gemm_options& o, float old) {
  const float scaled = o.accumulate ? __builtin_fmaf(acc, factor, o.beta * old) : acc * factor;
  if (fp32_is_nan(fp32_bits(scaled))) return fp32_from_bits(o.model.nan_bits);
  if (o.output == formats::fp32) return scaled;
  return decode(o.output, encode(o.output, scaled, o.output_rounding, overflow::to_inf));
}

/// A result's code in o.output, as a kernel stores it.
inline std::uint64_t output_code(float x, const gemm_options& o) {
  if (!fp32_is_nan(fp32_bits(x))) return encode(o.output, x, rounding::nearest_even, overflow::to_inf);
  return o.model.nan_bits >> (32 - o.output.bits());
}

inline float combined_factor(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  return (a.factor ? *a.factor : 1.0f) * (b.factor ? *b.factor : 1.0f) * o.alpha;
}

/// May these operands be multiplied under this model? gemm_ref and gemm assert it; callers with user input ask first.
/// Blocks of packed codes must begin on a byte, and where one step takes several products their scales must agree with
/// the model's groups.
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
  // A step's sum must fit into 64 bits. Scales alone align scaled_groups, so that elements' exponents come on top;
  // significands of products and scales are below 4 each.
  const int exponents = m.sum == mma_sum::scaled_groups ? a.element.max_exponent() + b.element.max_exponent() : 0;
  const int bits = m.fraction_bits > m.late_bits ? m.fraction_bits : m.late_bits + 1;
  if (exponents + 4 + highest_bit(static_cast<std::uint64_t>(instruction)) + 1 + bits > 62) return false;
  const auto fits = [&](const gemm_operand& x) {
    if (x.scale_order == placement::aiter_data_16x16) return false;  // for codes
    if (x.code_order != placement::row_major && x.transposed) return false;
    if (!layout{x.code_order, x.rows, x.row_bytes()}.is_defined()) return false;
    if (x.block != 0 && (x.scale.is_signed || !fits_fp32(x.scale))) return false;
    // Beyond FP32, but products with their scales must have room in an exact_sum.
    if (x.element.min_exponent() - x.element.mantissa_bits < -176 || x.element.max_exponent() > 176) return false;
    return x.block * storage_bits(x.element) % 8 == 0 && x.block % unit == 0 && x.block_rows >= 1 &&
           x.element.mantissa_bits <= formats::fp32.mantissa_bits;
  };
  return fits(a) && fits(b);
}

/// Row `i` of gemm_ref's result.
inline void gemm_row_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                         index_t i) {
  const float factor = combined_factor(a, b, o);
  for (index_t j = 0; j < b.rows; ++j) {
    const float old = o.accumulate || o.start_from_c ? c(i, j) : 0.0f;  // else C is not read
    c(i, j) = finish_output(accumulate_ref(a, i, b, j, o, old), factor, o, old);
  }
}

/// A matrix as a batch of one.
template <class T>
inline view<T, 3> as_batch(matrix<T> m) {
  return {m.data, {1, m.extent(0), m.extent(1)}, {0, m.stride(0), m.stride(1)}};
}
template <class T>
inline matrix<T> batch_element(view<T, 3> x, index_t i) {
  return {x.data + i * x.stride(0), {x.extent(1), x.extent(2)}, {x.stride(1), x.stride(2)}};
}

/// The definition: c[batch][i][j] over a.rows × b.rows.
inline void gemm_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, view<float, 3> c) {
  ROTOSCALE_ASSERT(gemm_is_defined(a, b, o) && c.extent(1) == a.rows && c.extent(2) == b.rows);
  for (index_t n = 0; n < c.extent(0); ++n) {
    for (index_t i = 0; i < a.rows; ++i) {
      gemm_row_ref(batch_element(a, n), batch_element(b, n), o, batch_element(c, n), i);
    }
  }
}
inline void gemm_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c) {
  gemm_ref(a, b, o, as_batch(c));
}

}  // namespace rotoscale
