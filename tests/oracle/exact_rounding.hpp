// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reference for rounding in 128-bit integers. It covers targets too wide for the list of format_oracle.hpp (FP32), and
// checks the others again. The value is an integer times a power of two. Dividing by the unit in the last place leaves
// a quotient and a remainder, and every rounding compares the remainder with the divisor.
#pragma once

#include "oracle/format_oracle.hpp"

namespace rotoscale::oracle {

class exact_rounder {
 public:
  explicit exact_rounder(const format_facts& facts) : f(facts) {}

  std::uint64_t operator()(double x, direction d, excess e, draw random = {}) const {
    const bool negative = std::signbit(x);
    if (std::isnan(x))
      return f.nan_code == 0 ? finite_code(f, negative && f.is_signed, f.max_code) : nan_of(f, negative);
    if (negative && !f.is_signed) return 0;
    if (std::isinf(x)) return beyond(f, negative, e, true);
    const double m = std::fabs(x);
    if (m < (f.zero ? 0x1p-1074 : f.min_positive)) return finite_code(f, negative, 0);

    // m = n * 2^power. The format's last place at m is 2^place.
    int power = 0;
    const auto n = static_cast<natural>(std::ldexp(std::frexp(m, &power), 53));
    power -= 53;
    const int least_exponent = f.zero ? 1 - f.bias : -f.bias;
    const int place = std::max(std::ilogb(m), least_exponent) - f.mantissa_bits;
    natural quotient = 0, remainder = 0, divisor = 1;
    if (place <= power) {
      quotient = n << (power - place);
    } else if (place - power < 120) {
      divisor = natural{1} << (place - power);
      quotient = n / divisor;
      remainder = n % divisor;
    } else {  // less than 2^-60 of a unit: all such remainders round the same way
      divisor = natural{1} << 120;
      remainder = 1;
    }
    if (remainder != 0 && goes_up(quotient, remainder, divisor, negative, d, random)) ++quotient;
    return code_of(quotient, place, negative, d, e);
  }

  const format_facts& f;

 private:
  using natural = unsigned __int128;

  bool goes_up(natural quotient, natural remainder, natural divisor, bool negative, direction d, draw random) const {
    const bool odd = quotient % 2 == 1;
    switch (d) {
      case direction::nearest_even: return 2 * remainder > divisor || (2 * remainder == divisor && odd);
      case direction::nearest_away: return 2 * remainder >= divisor;
      case direction::toward_zero: return false;
      case direction::up: return !negative;
      case direction::down: return negative;
      case direction::to_odd: return !odd;
      case direction::stochastic: {
        // remainder < 2^53, so remainder * 2^32 fits.
        const natural one = natural{1} << random.count;
        return remainder * one / divisor + random.word % one >= one;
      }
    }
    return false;
  }

  /// Code of quotient * 2^place.
  std::uint64_t code_of(natural quotient, int place, bool negative, direction d, excess e) const {
    if (quotient == 0) return finite_code(f, negative, 0);
    // At most 53 bits: exact in double.
    const double m = std::ldexp(static_cast<double>(static_cast<std::uint64_t>(quotient)), place);
    if (m > f.max) return beyond(f, negative, e, leads_away(d, negative));
    const int exponent = std::ilogb(m);
    const int least_exponent = f.zero ? 1 - f.bias : -f.bias;
    if (exponent < least_exponent || f.exponent_bits == 0) {
      return finite_code(f, negative, static_cast<std::uint64_t>(std::ldexp(m, f.mantissa_bits - least_exponent)));
    }
    const auto field = static_cast<std::uint64_t>(exponent + f.bias);
    const auto mantissa = static_cast<std::uint64_t>(std::ldexp(std::ldexp(m, -exponent) - 1.0, f.mantissa_bits));
    return finite_code(f, negative, (field << f.mantissa_bits) + mantissa);
  }
};

}  // namespace rotoscale::oracle
