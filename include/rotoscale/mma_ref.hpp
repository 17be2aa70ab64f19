// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Evaluates an mma_model step by step, in integers: the specification of every fast path.
#pragma once

#include "rotoscale/detail/exact_sum.hpp"
#include "rotoscale/mma.hpp"
#include "rotoscale/mma_terms.hpp"

namespace rotoscale {

namespace detail {

/// significand * 2^low in units of 2^unit, truncated toward zero.
ROTOSCALE_HD constexpr std::int64_t cut(const mma_term& t, int unit) {
  if (t.kind != value_class::finite) return 0;
  const int up = t.low - unit;
  const std::uint64_t magnitude = up >= 0 ? t.significand << up : up <= -64 ? 0 : t.significand >> -up;
  return t.negative ? -static_cast<std::int64_t>(magnitude) : static_cast<std::int64_t>(magnitude);
}

ROTOSCALE_HD constexpr std::int64_t floor_shift(std::int64_t x, int n) {
  return n >= 63 ? (x < 0 ? -1 : 0) : x >> n;  // C++20: an arithmetic shift
}

/// The value integer * 2^unit.
ROTOSCALE_HD constexpr unpacked integer_value(std::int64_t integer, int unit) {
  if (integer == 0) return {};
  const bool negative = integer < 0;
  const std::uint64_t magnitude =
      negative ? 0 - static_cast<std::uint64_t>(integer) : static_cast<std::uint64_t>(integer);
  const int top = highest_bit(magnitude);
  return {value_class::finite, negative, unit + top, magnitude << (63 - top)};
}

/// A step's sum, rounded to the accumulator's format. Every mma_result except fp64_nearest is an FP32 number.
ROTOSCALE_HD constexpr unpacked round_result(const mma_model& m, const unpacked& sum) {
  if (sum.kind != value_class::finite) return sum;
  constexpr format e8m13{8, 13, 127};
  constexpr format fp32 = formats::fp32, fp16 = formats::fp16;
  const bool nearest = m.result == mma_result::fp32_nearest || m.result == mma_result::fp16_nearest;
  const format f = m.result == mma_result::fp16_nearest ? fp16 : m.result == mma_result::e8m13 ? e8m13 : fp32;
  if (!nearest && sum.exponent > f.max_exponent()) return {value_class::infinity, sum.negative};
  unpacked r = unpack(f, round_to(f, sum, nearest ? rounding::nearest_even : rounding::toward_zero, overflow::to_inf));
  if (r.kind == value_class::zero) r.negative = m.sum == mma_sum::exact && sum.negative;
  return r;
}

/// Collects NaN, Inf and zeros among the terms of a sum, which may decide its result.
class special_terms {
 public:
  ROTOSCALE_HD constexpr void see(const mma_term& t) {
    nan_ = nan_ || t.kind == value_class::nan;
    if (t.kind == value_class::infinity) (t.negative ? minus_ : plus_) = true;
    zeros_ = zeros_ && t.kind == value_class::zero;
    all_negative_ = all_negative_ && t.negative;
  }
  ROTOSCALE_HD constexpr bool decide(bool minus_zero, unpacked& result) const {
    if (nan_ || (plus_ && minus_)) {
      result = {value_class::nan};
    } else if (plus_ || minus_) {
      result = {value_class::infinity, minus_};
    } else if (zeros_) {
      result = {value_class::zero, minus_zero && all_negative_};
    } else {
      return false;
    }
    return true;
  }

 private:
  bool nan_ = false, plus_ = false, minus_ = false, zeros_ = true, all_negative_ = true;
};
ROTOSCALE_HD constexpr bool special_sum(const mma_product* p, int count, const mma_term& c, bool minus_zero,
                                        unpacked& result) {
  special_terms terms;
  terms.see(c);
  for (int i = 0; i < count; ++i) terms.see(p[i].value);
  return terms.decide(minus_zero, result);
}

ROTOSCALE_HD constexpr unpacked exact_step(const mma_product* p, int count, const mma_term& c) {
  exact_sum sum;
  sum.add(c.negative, c.significand, c.low);
  for (int i = 0; i < count; ++i) {
    const mma_term t = scaled_term(p[i]);
    sum.add(t.negative, t.significand, t.low);
  }
  return sum.value();
}

/// A step of mma_sum::aligned: "T-FDPA", with block scales "ST-FDPA".
ROTOSCALE_HD constexpr unpacked aligned_step(const mma_model& m, const mma_product* p, int count, const mma_term& c) {
  int exponent = m.least_exponent;
  const auto raise = [&](const mma_term& t) {
    if (t.kind == value_class::finite && t.exponent > exponent) exponent = t.exponent;
  };
  raise(c);
  for (int i = 0; i < count; ++i) raise(scaled_term(p[i]));
  const int unit = exponent - m.fraction_bits;
  std::int64_t sum = cut(c, unit);
  for (int i = 0; i < count; ++i) sum += cut(scaled_term(p[i]), unit);
  return integer_value(sum, unit);
}

/// A step of mma_sum::scaled_groups: "GST-FDPA". If all terms are zero, the exponent is least_exponent.
ROTOSCALE_HD constexpr unpacked scaled_groups_step(const mma_model& m, const mma_product* p, int count,
                                                   const mma_term& c) {
  mma_term group[max_mma_group] = {};
  int groups = 0;
  int exponent = c.kind == value_class::finite && c.exponent > m.least_exponent ? c.exponent : m.least_exponent;
  for (int first = 0; first < count; first += m.subgroup, ++groups) {
    const int size = count - first < m.subgroup ? count - first : m.subgroup;
    if (subgroup_term(p + first, size, group[groups]) && group[groups].exponent > exponent)
      exponent = group[groups].exponent;
  }
  const int unit = exponent - m.fraction_bits;
  std::int64_t sum = cut(c, unit);
  for (int g = 0; g < groups; ++g) sum += cut(group[g], unit);
  return integer_value(sum, unit);
}

/// late_c: the exponent if all products are zero.
inline constexpr int no_exponent = -100000;

/// late_c: adds c to products * 2^(products_exponent - fraction_bits) and rounds the sum down.
ROTOSCALE_HD constexpr unpacked late_sum(const mma_model& m, std::int64_t products, int products_exponent,
                                         const mma_term& c) {
  // Both terms are rounded down.
  const int c_exponent = c.kind == value_class::finite ? c.exponent : formats::fp32.min_exponent();
  if (products_exponent == no_exponent) products_exponent = c_exponent;
  const int exponent = products_exponent > c_exponent ? products_exponent : c_exponent;
  const int unit = exponent - m.late_bits - 1;
  const int products_unit = products_exponent - m.fraction_bits;
  std::int64_t sum = products_unit >= unit ? products * (std::int64_t{1} << (products_unit - unit))
                                           : floor_shift(products, unit - products_unit);
  if (!(m.sum == mma_sum::late_c_split && c_exponent < exponent - m.fraction_bits - 1)) {
    const int c_unit = exponent - m.fraction_bits;
    std::int64_t floored = cut(c, c_unit);
    if (c.negative && c.kind == value_class::finite && c.low < c_unit) --floored;  // a nonzero bit was cut off
    sum += floored * (std::int64_t{1} << (c_unit - unit));
  }
  if (sum == 0) return {};
  // Round the sum down to late_bits fraction bits.
  const int top = highest_bit(sum < 0 ? 0 - static_cast<std::uint64_t>(sum) : static_cast<std::uint64_t>(sum));
  const int drop = top - m.late_bits;
  return drop > 0 ? integer_value(floor_shift(sum, drop), unit + drop) : integer_value(sum, unit);
}

/// A step of mma_sum::late_c, "TR-FDPA", or late_c_split, "GTR-FDPA".
ROTOSCALE_HD constexpr unpacked late_step(const mma_model& m, const mma_product* p, int count, const mma_term& c) {
  const int parts = m.sum == mma_sum::late_c_split ? 2 : 1;
  // Align each part (all products, or even and odd k) at its own largest exponent; truncate toward zero.
  std::int64_t part[2] = {};
  int part_exponent[2] = {no_exponent, no_exponent};
  for (int i = 0; i < count; ++i) {
    const mma_term t = scaled_term(p[i]);
    if (t.kind == value_class::finite && t.exponent > part_exponent[i % parts]) part_exponent[i % parts] = t.exponent;
  }
  for (int i = 0; i < count; ++i) part[i % parts] += cut(scaled_term(p[i]), part_exponent[i % parts] - m.fraction_bits);
  const int products_exponent = part_exponent[0] > part_exponent[1] ? part_exponent[0] : part_exponent[1];
  // Add the parts, rounded down.
  std::int64_t products = 0;
  for (int h = 0; h < parts; ++h) {
    if (part_exponent[h] != no_exponent) products += floor_shift(part[h], products_exponent - part_exponent[h]);
  }
  return late_sum(m, products, products_exponent, c);
}

/// Rounds to FP32, nearest even, and flushes subnormals to zeros of their sign.
ROTOSCALE_HD constexpr unpacked round_flushing(const unpacked& u) {
  constexpr format fp32 = formats::fp32;
  unpacked r = unpack(fp32, round_to(fp32, u, rounding::nearest_even, overflow::to_inf));
  if (r.kind == value_class::finite && r.exponent < fp32.min_exponent()) r = {value_class::zero, r.negative};
  return r;
}

/// Exact sum of two numbers. Zeros and special values follow IEEE round to nearest.
ROTOSCALE_HD constexpr unpacked add(const unpacked& a, const unpacked& b) {
  mma_product p;
  p.value = to_term(a, -100000);
  const mma_term t = to_term(b, -100000);
  unpacked r;
  return special_sum(&p, 1, t, true, r) ? r : exact_step(&p, 1, t);
}

/// A step of mma_sum::rounded_tree (CDNA2): a tree of pairwise sums of rounded products, which is then added to c. A
/// subnormal c counts as +0.
ROTOSCALE_HD constexpr unpacked rounded_tree_step(const mma_model& m, const mma_product* p, int count,
                                                  const unpacked& c) {
  const bool subnormal = c.kind == value_class::finite && c.exponent < formats::fp32.min_exponent();
  unpacked acc = subnormal ? unpacked{} : c;
  for (int first = 0; first < count; first += m.subgroup) {
    unpacked tree[max_mma_group] = {};
    for (int i = 0; i < m.subgroup; ++i) {
      unpacked zero, product;
      if (first + i >= count) continue;
      const mma_term none = to_term(zero, 0);
      if (!special_sum(p + first + i, 1, none, false, product)) product = exact_step(p + first + i, 1, none);
      tree[i] = round_flushing(product);
    }
    for (int width = m.subgroup; width > 1; width /= 2) {
      for (int i = 0; i < width / 2; ++i) tree[i] = round_flushing(add(tree[2 * i], tree[2 * i + 1]));
    }
    acc = round_flushing(add(acc, tree[0]));
  }
  return acc;
}

/// Rounds to FP32, nearest even. A result below the least normal number becomes a zero of its sign (x86's FTZ).
/// Rounding to 24 bits without a least exponent decides what is below.
ROTOSCALE_HD constexpr unpacked round_ftz(const unpacked& u) {
  constexpr format fp32 = formats::fp32;
  constexpr std::uint64_t carries = std::uint64_t{0x1FFFFFF} << 39;  // 25 ones round up to a power of two
  const int below = fp32.min_exponent() - 1;
  const bool tiny = u.exponent < below || (u.exponent == below && u.significand < carries);
  if (u.kind == value_class::finite && tiny) return {value_class::zero, u.negative};
  return unpack(fp32, round_to(fp32, u, rounding::nearest_even, overflow::to_inf));
}

/// NaN result of an operation on x, then y: the first NaN operand (keeps_nan). A NaN without significand is new.
ROTOSCALE_HD constexpr unpacked nan_of(const mma_model& m, const unpacked& x, const unpacked& y) {
  if (m.keeps_nan && x.kind == value_class::nan && x.significand != 0) return x;
  if (m.keeps_nan && y.kind == value_class::nan && y.significand != 0) return y;
  return mma_number(formats::fp32, m.nan_bits);
}

/// c plus one product: a fused multiply-add with FTZ.
ROTOSCALE_HD constexpr unpacked fma_ftz(const mma_model& m, const mma_product& p, const unpacked& c) {
  const mma_term t = to_term(c, formats::fp32.min_exponent());
  unpacked r;
  if (!special_sum(&p, 1, t, true, r)) return round_ftz(exact_step(&p, 1, t));
  return r.kind == value_class::nan ? nan_of(m, {p.value.kind, p.value.negative, 0, p.value.significand}, c) : r;
}
ROTOSCALE_HD constexpr unpacked add_ftz(const mma_model& m, const unpacked& x, const unpacked& y) {
  const unpacked sum = add(x, y);
  return sum.kind == value_class::nan ? nan_of(m, x, y) : round_ftz(sum);
}

/// A step of mma_sum::split_chains (AMX's TDPBF16PS) or mma_sum::swapped_chain (AVX512_BF16's VDPBF16PS). A subnormal c
/// counts as a zero of its sign. Missing products are +0.
ROTOSCALE_HD constexpr unpacked flushing_chains_step(const mma_model& m, const mma_product* p, int count,
                                                     const unpacked& c) {
  const unpacked start = c.kind == value_class::nan ? c : round_ftz(c);
  const bool split = m.sum == mma_sum::split_chains;
  unpacked chain[2] = {};
  if (!split) chain[0] = start;
  for (int i = 0; i < m.group + m.group % 2; ++i) {
    const int at = split ? i : i ^ 1;
    unpacked& acc = chain[split ? i % 2 : 0];
    acc = fma_ftz(m, at < count ? p[at] : mma_product{}, acc);
  }
  return split ? add_ftz(m, start, add_ftz(m, chain[0], chain[1])) : chain[0];
}

}  // namespace detail

/// An element of an operand as `m` takes it.
ROTOSCALE_HD constexpr mma_term mma_element(const mma_model& m, format f, std::uint64_t code) {
  format seen = f;
  if (m.operand.exponent_bits != 0) {
    seen = m.operand;
    constexpr format fp32_format = formats::fp32, tf32_format = formats::tf32;
    // TF32 units drop the low 13 bits even of a NaN, which may leave Inf.
    const bool drops = f == fp32_format && seen == tf32_format;
    code = drops ? code >> 13 : convert(f, code, seen, rounding::nearest_even, overflow::to_inf);
  }
  mma_term t = to_term(unpack(seen, code), seen.min_exponent());
  const bool subnormal = t.kind == value_class::finite && (code & seen.magnitude_mask()) <= seen.mantissa_mask();
  if (subnormal && m.sum == mma_sum::rounded_tree) return {};
  if (subnormal && (m.sum == mma_sum::split_chains || m.sum == mma_sum::swapped_chain))
    return {value_class::zero, t.negative};
  if (m.keeps_nan && t.kind == value_class::nan) t.significand = mma_number(seen, code).significand;
  return t;
}

/// The product of an element of A and an element of B under `m`.
ROTOSCALE_HD constexpr mma_product mma_multiply(const mma_model& m, const mma_term& a, const mma_term& b) {
  mma_product p;
  if (m.sparse && a.kind == value_class::zero && !a.negative) return p;
  const bool infinite = a.kind == value_class::infinity || b.kind == value_class::infinity;
  const bool zero = a.kind == value_class::zero || b.kind == value_class::zero;
  p.value.negative = a.negative != b.negative;
  if (a.kind == value_class::nan || b.kind == value_class::nan || (infinite && zero)) {
    const mma_term& first = a.kind == value_class::nan ? a : b;
    p.value.kind = value_class::nan;
    if (m.keeps_nan && first.kind == value_class::nan) p.value = first;
  } else if (infinite || zero) {
    p.value.kind = infinite ? value_class::infinity : value_class::zero;
  } else {
    p.value.kind = value_class::finite;
    p.value.significand = a.significand * b.significand;
    p.value.low = a.low + b.low;
    p.value.exponent = a.exponent + b.exponent;
    const bool late = m.sum == mma_sum::late_c || m.sum == mma_sum::late_c_split;
    if (late && p.value.low + highest_bit(p.value.significand) >= 128) p.value.kind = value_class::infinity;
  }
  return p;
}

/// Multiplies a block scale into a product. A NaN scale gives NaN, a zero scale zero.
ROTOSCALE_HD constexpr void mma_scale(mma_product& p, format scale, std::uint64_t code) {
  const mma_term t = to_term(unpack(scale, code), scale.min_exponent());
  if (t.kind == value_class::nan) p.value.kind = value_class::nan;
  if (t.kind == value_class::zero && p.value.kind == value_class::finite)
    p.value = {value_class::zero, p.value.negative};
  p.scale_significand *= t.significand;
  p.scale_low += t.low;
  p.scale_exponent += t.exponent;
}

/// One step: c plus `count` <= group products. c and the result are numbers of the accumulator's format.
ROTOSCALE_HD constexpr unpacked mma_step(const mma_model& m, const mma_product* p, int count, const unpacked& c) {
  if (m.sum == mma_sum::rounded_tree) return detail::rounded_tree_step(m, p, count, c);
  if (m.sum == mma_sum::split_chains || m.sum == mma_sum::swapped_chain)
    return detail::flushing_chains_step(m, p, count, c);
  constexpr int fp32_least = formats::fp32.min_exponent(), fp16_least = formats::fp16.min_exponent();
  const mma_term term = to_term(c, m.result == mma_result::fp16_nearest ? fp16_least : fp32_least);
  unpacked sum;
  if (detail::special_sum(p, count, term, m.sum == mma_sum::exact, sum)) return sum;
  switch (m.sum) {
    case mma_sum::exact: sum = detail::exact_step(p, count, term); break;
    case mma_sum::aligned: sum = detail::aligned_step(m, p, count, term); break;
    case mma_sum::scaled_groups: sum = detail::scaled_groups_step(m, p, count, term); break;
    case mma_sum::rounded_tree:
    case mma_sum::split_chains:
    case mma_sum::swapped_chain: break;
    case mma_sum::late_c:
    case mma_sum::late_c_split: sum = detail::late_step(m, p, count, term); break;
  }
  return detail::round_result(m, sum);
}

/// With c_last: the accumulator plus an instruction's sum, one IEEE addition.
ROTOSCALE_HD constexpr unpacked mma_add_last(const mma_model& m, const unpacked& c, const unpacked& sum) {
  mma_model last;
  last.result = m.result == mma_result::fp16_nearest ? mma_result::fp16_nearest : mma_result::fp32_nearest;
  return detail::round_result(last, detail::add(c, sum));
}

/// c plus the products of one instruction in its order. Without instruction_k, `count` is arbitrary.
ROTOSCALE_HD constexpr unpacked mma_instruction(const mma_model& m, const mma_product* p, int count,
                                                const unpacked& c) {
  unpacked acc = m.c_last ? unpacked{} : c;
  for (index_t s = 0; s < mma_step_count(m, count); ++s) {
    const mma_step_products step = mma_step_at(m, count, s);
    if (m.interleave == 0) {
      acc = mma_step(m, p + step.first, static_cast<int>(step.count), acc);
    } else {
      mma_product runs[max_mma_group] = {};
      for (index_t i = 0; i < step.count; ++i) runs[i] = p[step[i]];
      acc = mma_step(m, runs, static_cast<int>(step.count), acc);
    }
  }
  return m.c_last ? mma_add_last(m, c, acc) : acc;
}

/// FP64 units (mma_result::fp64_nearest): c plus `count` products of FP64 codes, one IEEE fused multiply-add each, in
/// ascending k. NaN as measured on an H200: a step returns the NaN of b, else of the accumulator, else of a, made
/// quiet; 0xFFF8000000000000 if no operand is NaN.
inline std::uint64_t fp64_chain(const std::uint64_t* a, const std::uint64_t* b, std::int64_t count, std::uint64_t c) {
  constexpr std::uint64_t new_nan = 0xFFF8000000000000u, quiet = std::uint64_t{1} << 51;
  constexpr format fp64 = formats::fp64;
  for (std::int64_t k = 0; k < count; ++k) {
    if (fp64.is_nan(b[k]) || fp64.is_nan(c) || fp64.is_nan(a[k])) {
      c = (fp64.is_nan(b[k]) ? b[k] : fp64.is_nan(c) ? c : a[k]) | quiet;
    } else {
      c = bit_cast<std::uint64_t>(__builtin_fma(bit_cast<double>(a[k]), bit_cast<double>(b[k]), bit_cast<double>(c)));
      if (fp64.is_nan(c)) c = new_nan;
    }
  }
  return c;
}

/// Value of an accumulator as FP32, exact.
ROTOSCALE_HD constexpr float fp32_value(const unpacked& u) {
  constexpr format fp32 = formats::fp32;
  return fp32_from_bits(static_cast<std::uint32_t>(round_to(fp32, u, rounding::nearest_even, overflow::to_inf)));
}
/// The same under `m`: with keeps_nan, a NaN has its own bits, made quiet.
ROTOSCALE_HD constexpr float fp32_value(const mma_model& m, const unpacked& u) {
  if (!m.keeps_nan || u.kind != value_class::nan) return fp32_value(u);
  const auto fraction = static_cast<std::uint32_t>(u.significand >> 40);
  return fp32_from_bits((u.negative ? fp32_sign_mask : 0) | fp32_nan_bits | fraction);
}

}  // namespace rotoscale
