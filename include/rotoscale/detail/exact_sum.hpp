// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A Kulisch accumulator: exact sums of numbers of any format, of products, and of products times two block scales. One
// rounding follows at the end. Two's complement fixed point in 64-bit limbs.
#pragma once

#include "rotoscale/round.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

class exact_sum {
 public:
  /// Adds (-1)^negative * significand * 2^exponent. The bits must be within [2^least, 2^most).
  ROTOSCALE_HD constexpr void add(bool negative, std::uint64_t significand, int exponent) {
    if (significand == 0) return;
    const int position = exponent - least;
    ROTOSCALE_ASSERT(position >= 0 && exponent + highest_bit(significand) < most);
    const int first = position / 64, shift = position % 64;
    const std::uint64_t part[2] = {significand << shift, shift == 0 ? 0 : significand >> (64 - shift)};
    std::uint64_t carry = 0;
    for (int i = first; i < limbs && (i < first + 2 || carry != 0); ++i) {
      const std::uint64_t x = i - first < 2 ? part[i - first] : 0;
      const std::uint64_t old = limb_[i];
      if (negative) {
        limb_[i] = old - x - carry;
        carry = old < x || (old == x && carry != 0);
      } else {
        limb_[i] = old + x + carry;
        carry = limb_[i] < old || (limb_[i] == old && carry != 0);
      }
    }
  }

  /// The sum. If it has more than 64 bits, the significand's last bit is sticky.
  ROTOSCALE_HD constexpr unpacked value() const {
    unpacked u;
    u.negative = limb_[limbs - 1] >> 63 != 0;
    std::uint64_t magnitude[limbs] = {};
    std::uint64_t carry = u.negative ? 1 : 0;
    int top = -1;
    for (int i = 0; i < limbs; ++i) {
      magnitude[i] = (u.negative ? ~limb_[i] : limb_[i]) + carry;
      carry = carry != 0 && magnitude[i] == 0;
      if (magnitude[i] != 0) top = i;
    }
    if (top < 0) return {};
    const int high = highest_bit(magnitude[top]);
    u.kind = value_class::finite;
    u.exponent = least + 64 * top + high;
    u.significand = magnitude[top] << (63 - high);
    if (top > 0 && high < 63) u.significand |= magnitude[top - 1] >> (high + 1);
    bool rest = top > 0 && high < 63 ? magnitude[top - 1] << (63 - high) != 0 : top > 0 && magnitude[top - 1] != 0;
    for (int i = 0; i < top - 1; ++i) rest = rest || magnitude[i] != 0;
    u.significand |= rest ? 1 : 0;
    return u;
  }

 private:
  // Products of two FP32 numbers are multiples of 2^-298 below 2^256. Two E8M0 scales move them by up to 254 either
  // way. Another 64 bits at each end hold the rest of a significand, carries and the sign.
  static constexpr int least = -640;
  static constexpr int limbs = 20;
  static constexpr int most = least + 64 * limbs - 1;
  static_assert(least <= -298 - 254 - 64 && most >= 256 + 254 + 64);

  std::uint64_t limb_[limbs] = {};
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
