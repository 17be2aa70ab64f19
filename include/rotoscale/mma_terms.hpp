// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Numbers as matrix units see them: terms of a sum, and products with their block scales.
#pragma once

#include "rotoscale/detail/exact_sum.hpp"
#include "rotoscale/scale.hpp"

namespace rotoscale {

/// A number as a matrix unit sees it: significand * 2^low, and the exponent used for alignment. Subnormals align as the
/// least normal number; products are not renormalised.
struct mma_term {
  value_class kind = value_class::zero;  ///< zero, finite, Inf or NaN
  bool negative = false;                 ///< sign, also of zeros
  std::uint64_t significand = 0;         ///< an integer
  int low = 0;                           ///< exponent of the lowest bit of `significand`
  int exponent = 0;                      ///< exponent for alignment
};

/// The product of an element of A and one of B, with the scales of their blocks.
struct mma_product {
  mma_term value;                       ///< the product of the elements
  std::uint64_t scale_significand = 1;  ///< significand of the product of both scales
  int scale_low = 0;                    ///< exponent of the lowest bit of scale_significand
  int scale_exponent = 0;               ///< sum of the scales' exponents, by which scaled_groups aligns
};

/// Limit on the products of a step and of an instruction.
inline constexpr int max_mma_group = 512;

/// `u` as a term of a sum. Numbers below 2^least_exponent align as if they had that exponent.
ROTOSCALE_HD constexpr mma_term to_term(const unpacked& u, int least_exponent) {
  if (u.kind != value_class::finite) return {u.kind, u.negative};
  const int zeros = highest_bit(u.significand & (0 - u.significand));  // trailing zeros
  return {u.kind, u.negative, u.significand >> zeros, u.exponent - 63 + zeros,
          u.exponent < least_exponent ? least_exponent : u.exponent};
}

/// A product times its block scales.
ROTOSCALE_HD constexpr mma_term scaled_term(const mma_product& p) {
  mma_term t = p.value;
  t.significand *= p.scale_significand;
  t.low += p.scale_low;
  t.exponent += p.scale_exponent;
  return t;
}

/// Sums one subgroup's products exactly and applies their scales. Alignment uses the scales' exponent, even if the sum
/// cancels. Returns false if all products are zero.
ROTOSCALE_HD constexpr bool subgroup_term(const mma_product* p, int count, mma_term& t) {
  detail::exact_sum products;
  bool zeros = true;
  for (int i = 0; i < count; ++i) {
    products.add(p[i].value.negative, p[i].value.significand, p[i].value.low);
    zeros = zeros && p[i].value.kind == value_class::zero;
  }
  if (zeros || p[0].scale_significand == 0) return false;
  t = to_term(products.value(), 0);
  t.significand *= p[0].scale_significand;
  t.low += p[0].scale_low;
  t.exponent = p[0].scale_exponent;
  return true;
}

/// The number of a code, as mma_step takes c. A NaN has its fraction field at the top of `significand`.
ROTOSCALE_HD constexpr unpacked mma_number(format f, std::uint64_t code) {
  unpacked u = unpack(f, code);
  if (u.kind == value_class::nan) u.significand = (code & f.mantissa_mask()) << (63 - f.mantissa_bits);
  return u;
}

}  // namespace rotoscale
