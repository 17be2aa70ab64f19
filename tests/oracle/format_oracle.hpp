// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Formats and rounding once more, from their definitions and sharing no code with the library: a format is the sorted
// list of its finite magnitudes as doubles (all exact), and rounding compares a double with its neighbours in the list.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "rotoscale/format.hpp"

namespace rotoscale::oracle {

/// What the specifications say of one format, and the library's value for it.
struct format_facts {
  std::string name;
  format value;
  int exponent_bits, mantissa_bits, bias;
  bool is_signed;
  std::uint64_t max_code, nan_code, infinity_code;  ///< magnitudes; 0 where the format has none
  double max, min_normal, min_positive;
};

inline constexpr format e4m3fnuz{4, 3, 8, true, specials::fnuz};
inline constexpr format e5m2fnuz{5, 2, 16, true, specials::fnuz};

/// The table of OCP MX v1.0 / OFP8 r1.0, typed in as numbers; BF16 and FP16 as IEEE 754 has them.
inline const std::vector<format_facts>& all_formats() {
  static const std::vector<format_facts> all{
      {"e2m1", formats::e2m1, 2, 1, 1, true, 0x7, 0, 0, 6.0, 1.0, 0.5},
      {"e2m3", formats::e2m3, 2, 3, 1, true, 0x1F, 0, 0, 7.5, 1.0, 0.125},
      {"e3m2", formats::e3m2, 3, 2, 3, true, 0x1F, 0, 0, 28.0, 0.25, 0.0625},
      {"e4m3", formats::e4m3, 4, 3, 7, true, 0x7E, 0x7F, 0, 448.0, 0x1p-6, 0x1p-9},
      {"e5m2", formats::e5m2, 5, 2, 15, true, 0x7B, 0x7E, 0x7C, 57344.0, 0x1p-14, 0x1p-16},
      {"e8m0", formats::e8m0, 8, 0, 127, false, 0xFE, 0xFF, 0, 0x1p127, 0x1p-127, 0x1p-127},
      {"bf16", formats::bf16, 8, 7, 127, true, 0x7F7F, 0x7FC0, 0x7F80, 0x1.FEp127, 0x1p-126, 0x1p-133},
      {"fp16", formats::fp16, 5, 10, 15, true, 0x7BFF, 0x7E00, 0x7C00, 65504.0, 0x1p-14, 0x1p-24},
      {"e4m3fnuz", e4m3fnuz, 4, 3, 8, true, 0x7F, 0x80, 0, 240.0, 0x1p-7, 0x1p-10},
      {"e5m2fnuz", e5m2fnuz, 5, 2, 16, true, 0x7F, 0x80, 0, 57344.0, 0x1p-15, 0x1p-17},
  };
  return all;
}

inline bool is_fnuz(const format_facts& f) { return f.nan_code == 0x80; }

/// Magnitude of a finite code without its sign.
inline double magnitude_of(const format_facts& f, std::uint64_t code) {
  const int field = static_cast<int>(code >> f.mantissa_bits);
  const double mantissa =
      std::ldexp(static_cast<double>(code % (std::uint64_t{1} << f.mantissa_bits)), -f.mantissa_bits);
  if (!f.is_signed) return std::ldexp(1.0, field - f.bias);  // E8M0
  return field == 0 ? std::ldexp(mantissa, 1 - f.bias) : std::ldexp(1.0 + mantissa, field - f.bias);
}

/// Magnitudes of codes 0..max_code, then the number that would follow with an unbounded exponent.
inline std::vector<double> magnitudes(const format_facts& f) {
  std::vector<double> list;
  for (std::uint64_t code = 0; code <= f.max_code; ++code) list.push_back(magnitude_of(f, code));
  const double max = list.back();
  list.push_back(max + std::ldexp(1.0, std::ilogb(max) - f.mantissa_bits));
  return list;
}

enum class direction { nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic };
enum class excess { saturate, to_inf, to_nan };

class rounder {
 public:
  explicit rounder(const format_facts& facts) : f(facts), list(magnitudes(facts)) {}

  std::uint64_t operator()(double x, direction d, excess e, std::uint32_t random = 0) const {
    const std::uint64_t sign =
        std::signbit(x) && f.is_signed ? std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
    if (std::isnan(x)) {
      if (f.nan_code == 0) return sign | f.max_code;
      return is_fnuz(f) ? f.nan_code : sign | f.nan_code;
    }
    if (!f.is_signed && std::signbit(x)) return 0;
    const double m = std::fabs(x);
    const bool away_mode = d == direction::nearest_even || d == direction::nearest_away || d == direction::stochastic ||
                           std::isinf(x) || d == (std::signbit(x) ? direction::down : direction::up);
    if (m >= list.back()) return beyond(sign, e, away_mode);
    if (m < list.front()) return 0;  // below E8M0's least number: that number, whose code is 0
    const auto above = std::upper_bound(list.begin(), list.end(), m);
    const auto code = static_cast<std::uint64_t>(above - list.begin()) - 1;
    const std::uint64_t rounded = code + (goes_up(m, code, std::signbit(x), d, random) ? 1 : 0);
    if (rounded > f.max_code) return beyond(sign, e, away_mode);
    return rounded == 0 && (is_fnuz(f) || !f.is_signed) ? 0 : sign | rounded;
  }

  const format_facts& f;
  const std::vector<double> list;

 private:
  bool goes_up(double m, std::uint64_t code, bool negative, direction d, std::uint32_t random) const {
    const double low = list[code], high = list[code + 1];
    if (m == low) return false;
    // E8M0's significand is the integer 1, an odd number: a tie goes up, and "to odd" stays.
    const bool odd = f.mantissa_bits == 0 || code % 2 == 1;
    const double middle = low + (high - low) / 2;  // one bit more than the format has: exact
    switch (d) {
      case direction::nearest_even: return m > middle || (m == middle && odd);
      case direction::nearest_away: return m >= middle;
      case direction::toward_zero: return false;
      case direction::up: return !negative;
      case direction::down: return negative;
      case direction::to_odd: return !odd;
      case direction::stochastic: {
        // m - low is exact for sources of up to 24 bits; high - low is a power of two.
        const double thirty_two_bits = std::floor(std::ldexp((m - low) / (high - low), 32));
        return thirty_two_bits + static_cast<double>(random) >= 4294967296.0;
      }
    }
    return false;
  }

  std::uint64_t beyond(std::uint64_t sign, excess e, bool away) const {
    if (e == excess::to_inf && f.infinity_code != 0) return sign | (away ? f.infinity_code : f.max_code);
    if (e != excess::saturate && f.nan_code != 0) return is_fnuz(f) ? f.nan_code : sign | f.nan_code;
    return sign | f.max_code;
  }
};

}  // namespace rotoscale::oracle
