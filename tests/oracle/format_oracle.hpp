// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reference for formats and rounding, written from their definitions. It shares no code with the library. A format is
// the sorted list of its finite magnitudes as doubles, all exact. Rounding compares a double with its neighbours in the
// list. exact_rounding.hpp covers formats too wide for a list.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "rotoscale/format.hpp"

namespace rotoscale::oracle {

/// One format by its specification, and the library's value for it.
struct format_facts {
  std::string name;
  format value;
  int exponent_bits, mantissa_bits, bias;
  bool is_signed;
  std::uint64_t max_code, nan_code, infinity_code;  ///< magnitudes (except FNUZ's NaN); 0 if the format has none
  double max, min_normal, min_positive;             ///< min_normal 0: every number is subnormal
  bool subnormals = true, zero = true, twos_complement = false;
};

/// Named formats that fit a list, typed in as numbers. Sources: OCP MX v1.0 and OFP8 r1.0, IEEE 754 (FP16), the FNUZ
/// types of AMD, Graphcore and Google, NVFP4, and PTX (unsigned scales, TF32).
inline const std::vector<format_facts>& named_formats() {
  static const std::vector<format_facts> all{
      {"e2m1", formats::e2m1, 2, 1, 1, true, 0x7, 0, 0, 6.0, 1.0, 0.5},
      {"e2m3", formats::e2m3, 2, 3, 1, true, 0x1F, 0, 0, 7.5, 1.0, 0.125},
      {"e3m2", formats::e3m2, 3, 2, 3, true, 0x1F, 0, 0, 28.0, 0.25, 0.0625},
      {"e4m3", formats::e4m3, 4, 3, 7, true, 0x7E, 0x7F, 0, 448.0, 0x1p-6, 0x1p-9},
      {"e5m2", formats::e5m2, 5, 2, 15, true, 0x7B, 0x7E, 0x7C, 57344.0, 0x1p-14, 0x1p-16},
      {"e8m0", formats::e8m0, 8, 0, 127, false, 0xFE, 0xFF, 0, 0x1p127, 0x1p-127, 0x1p-127, false, false},
      {"bf16", formats::bf16, 8, 7, 127, true, 0x7F7F, 0x7FC0, 0x7F80, 0x1.FEp127, 0x1p-126, 0x1p-133},
      {"fp16", formats::fp16, 5, 10, 15, true, 0x7BFF, 0x7E00, 0x7C00, 65504.0, 0x1p-14, 0x1p-24},
      {"e4m3fnuz", formats::e4m3fnuz, 4, 3, 8, true, 0x7F, 0x80, 0, 240.0, 0x1p-7, 0x1p-10},
      {"e5m2fnuz", formats::e5m2fnuz, 5, 2, 16, true, 0x7F, 0x80, 0, 57344.0, 0x1p-15, 0x1p-17},
      {"e4m3b11fnuz", formats::e4m3b11fnuz, 4, 3, 11, true, 0x7F, 0x80, 0, 30.0, 0x1p-10, 0x1p-13},
      {"int8", formats::int8, 0, 7, 0, true, 0x7F, 0, 0, 1.984375, 0, 0.015625, true, true, true},
      {"ue4m3", formats::ue4m3, 4, 3, 7, false, 0x7E, 0x7F, 0, 448.0, 0x1p-6, 0x1p-9},
      {"ue5m3", formats::ue5m3, 5, 3, 15, false, 0xFE, 0xFF, 0, 114688.0, 0x1p-14, 0x1p-17},
      {"tf32", formats::tf32, 8, 10, 127, true, 0x3FBFF, 0x3FE00, 0x3FC00, 0x1.FFCp127, 0x1p-126, 0x1p-136},
  };
  return all;
}

/// A format by its fields, whose codes and numbers are typed.
inline format_facts facts(const char* name, const format& f, std::uint64_t max_code, std::uint64_t nan_code,
                          std::uint64_t infinity_code, double max, double min_normal, double min_positive) {
  return {
      name,          f,   f.exponent_bits, f.mantissa_bits, f.bias,           f.is_signed, max_code,         nan_code,
      infinity_code, max, min_normal,      min_positive,    f.has_subnormals, f.has_zero,  f.twos_complement};
}

/// Formats that format.hpp does not name, to show that the library depends on no named format:
///
/// - AMD's "E4M3 IEEE" and E3M4.
/// - Formats without mantissa or exponent bits (sign and magnitude).
/// - A format that flushes subnormals.
/// - A format whose lowest code is an ordinary number.
inline const std::vector<format_facts>& custom_formats() {
  constexpr auto none = specials::none;
  static const std::vector<format_facts> all{
      facts("e4m3 ieee", {4, 3, 7}, 0x77, 0x7C, 0x78, 240.0, 0x1p-6, 0x1p-9),
      facts("e3m4", {3, 4, 3}, 0x6F, 0x78, 0x70, 15.5, 0.25, 0x1p-6),
      facts("e3m0", {3, 0, 3, true, none}, 0x7, 0, 0, 16.0, 0.25, 0.25),
      facts("e1m2", {1, 2, 1, true, none}, 0x7, 0, 0, 1.75, 1.0, 0.25),
      facts("e0m3", {0, 3, 0, true, none}, 0x7, 0, 0, 1.75, 0, 0.25),
      facts("e4m3 flushing", {4, 3, 7, true, none, false}, 0x7F, 0, 0, 480.0, 0x1p-6, 0x1p-6),
      facts("ue6m2", {6, 2, 31, false, specials::nan_only, false, false}, 0xFE, 0xFF, 0, 0x1.8p32, 0x1p-31, 0x1p-31),
      facts("e3m2 without zero", {3, 2, 3, true, none, false, false}, 0x1F, 0, 0, 28.0, 0.125, 0.125),
      facts("int4", {0, 3, 0, true, none, true, true, true}, 0x7, 0, 0, 1.75, 0, 0.25),
  };
  return all;
}

inline const std::vector<format_facts>& all_formats() {
  static const std::vector<format_facts> all = [] {
    auto both = named_formats();
    both.insert(both.end(), custom_formats().begin(), custom_formats().end());
    return both;
  }();
  return all;
}

/// IEEE 754's binary32 and binary64, too wide for a list.
inline const std::vector<format_facts>& wide_formats() {
  static const std::vector<format_facts> all{
      {"fp32", formats::fp32, 8, 23, 127, true, 0x7F7FFFFF, 0x7FC00000, 0x7F800000, 0x1.FFFFFEp127, 0x1p-126, 0x1p-149},
      {"fp64", formats::fp64, 11, 52, 1023, true, 0x7FEFFFFFFFFFFFFF, 0x7FF8000000000000, 0x7FF0000000000000,
       0x1.FFFFFFFFFFFFFp1023, 0x1p-1022, 0x1p-1074},
  };
  return all;
}

/// The facts of a format. Throws if the tables do not contain it.
inline const format_facts& facts_of(const format& f) {
  for (const auto* list : {&all_formats(), &wide_formats()}) {
    for (const auto& facts : *list) {
      if (facts.value == f) return facts;
    }
  }
  throw std::invalid_argument("no facts about this format");
}

inline std::uint64_t sign_bit(const format_facts& f) {
  return f.is_signed ? std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
}
/// FNUZ: NaN has the code of negative zero.
inline bool is_fnuz(const format_facts& f) { return f.nan_code != 0 && f.nan_code == sign_bit(f); }
inline bool has_negative_zero(const format_facts& f) {
  return f.is_signed && f.zero && !f.twos_complement && !is_fnuz(f);
}
/// All codes: 0 .. code_count - 1. Not for FP64.
inline std::uint64_t code_count(const format_facts& f) {
  return std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits + (f.is_signed ? 1 : 0));
}

inline bool is_nan_code(const format_facts& f, std::uint64_t code) {
  if (is_fnuz(f)) return code == f.nan_code;
  const std::uint64_t magnitude = f.is_signed ? code % sign_bit(f) : code;
  if (f.infinity_code != 0) return magnitude > f.infinity_code;
  return f.nan_code != 0 && magnitude > f.max_code;
}

/// The code of -m, where `magnitude` is the code of m.
inline std::uint64_t negated(const format_facts& f, std::uint64_t magnitude) {
  if (magnitude == 0 && f.zero && !has_negative_zero(f)) return 0;
  return f.twos_complement ? code_count(f) - magnitude : sign_bit(f) + magnitude;
}

/// Value of a finite magnitude code.
inline double magnitude_of(const format_facts& f, std::uint64_t code) {
  const auto field = static_cast<int>(code >> f.mantissa_bits);
  const double mantissa =
      std::ldexp(static_cast<double>(code % (std::uint64_t{1} << f.mantissa_bits)), -f.mantissa_bits);
  if (field != 0 || !f.zero) return std::ldexp(1.0 + mantissa, field - f.bias);
  return f.subnormals ? std::ldexp(mantissa, 1 - f.bias) : 0.0;
}

/// Value of any code except NaN, with the sign of zero.
inline double value_of(const format_facts& f, std::uint64_t code) {
  const bool negative = f.is_signed && code >= sign_bit(f);
  const std::uint64_t magnitude = !negative ? code : f.twos_complement ? code_count(f) - code : code - sign_bit(f);
  const double m = f.infinity_code != 0 && magnitude == f.infinity_code ? std::numeric_limits<double>::infinity()
                                                                        : magnitude_of(f, magnitude);
  return negative ? -m : m;
}

/// The grid for rounding: magnitudes of codes 0..max_code, and the next number with an unbounded exponent. Subnormals
/// are included even if the format flushes them.
inline std::vector<double> magnitudes(const format_facts& f) {
  format_facts grid = f;
  grid.subnormals = true;
  std::vector<double> list;
  for (std::uint64_t code = 0; code <= f.max_code; ++code) list.push_back(magnitude_of(grid, code));
  list.push_back(f.mantissa_bits == 0 ? 2 * list.back() : 2 * list.back() - list[list.size() - 2]);
  return list;
}

enum class direction { nearest_even, nearest_away, toward_zero, up, down, to_odd, stochastic };
enum class excess { saturate, to_inf, to_nan };

/// The library's rounding enumerators, for loops.
inline constexpr int direction_count = 7;
inline constexpr int excess_count = 3;

/// Is the last digit of the grid's number `code` odd? Without mantissa bits every number except zero has the digit 1.
/// Ties round up (IEEE 754-2019 section 4.3.1, for one digit), and "to odd" keeps the number.
inline bool is_odd(const format_facts& f, std::uint64_t code) {
  if (f.mantissa_bits == 0) return code != 0 || !f.zero;
  return code % 2 == 1;
}

/// Code of the number with this magnitude code, after flushing.
inline std::uint64_t finite_code(const format_facts& f, bool negative, std::uint64_t magnitude) {
  const bool flushed = !f.subnormals && f.zero && magnitude < (std::uint64_t{1} << f.mantissa_bits);
  const std::uint64_t kept = flushed ? 0 : magnitude;
  return negative ? negated(f, kept) : kept;
}

inline std::uint64_t nan_of(const format_facts& f, bool negative) {
  return negative && f.is_signed && !is_fnuz(f) ? sign_bit(f) + f.nan_code : f.nan_code;
}

/// Code of a value above the largest number. `away`: the direction rounds away from zero.
inline std::uint64_t beyond(const format_facts& f, bool negative, excess e, bool away) {
  if (e == excess::to_inf && f.infinity_code != 0) return finite_code(f, negative, away ? f.infinity_code : f.max_code);
  if (e != excess::saturate && f.nan_code != 0) return nan_of(f, negative);
  return finite_code(f, negative, f.max_code);
}

inline bool leads_away(direction d, bool negative) {
  return d == direction::nearest_even || d == direction::nearest_away || d == direction::stochastic ||
         d == (negative ? direction::down : direction::up);
}

/// Random bits: the low `count` bits of `word`, as the fraction word / 2^count.
struct draw {
  std::uint32_t word;
  int count;
  draw(std::uint32_t w = 0, int n = 32) : word(w), count(n) {}
};

class rounder {
 public:
  explicit rounder(const format_facts& facts) : f(facts), list(magnitudes(facts)) {}

  std::uint64_t operator()(double x, direction d, excess e, draw random = {}) const {
    const bool negative = std::signbit(x);
    if (std::isnan(x))
      return f.nan_code == 0 ? finite_code(f, negative && f.is_signed, f.max_code) : nan_of(f, negative);
    if (negative && !f.is_signed) return 0;
    const double m = std::fabs(x);
    if (m >= list.back()) return beyond(f, negative, e, leads_away(d, negative) || std::isinf(x));
    if (m < list.front()) return finite_code(f, negative, 0);  // below the least number of a format without zero
    const auto above = std::upper_bound(list.begin(), list.end(), m);
    const auto code = static_cast<std::uint64_t>(above - list.begin()) - 1;
    const std::uint64_t rounded = code + (goes_up(m, code, negative, d, random) ? 1 : 0);
    if (rounded > f.max_code) return beyond(f, negative, e, leads_away(d, negative));
    return finite_code(f, negative, rounded);
  }

  /// floor(fraction * 2^count), where fraction is the position of m between number `code` and the next. Exact: low is
  /// zero or more than half of m, so m - low is exact, and high - low is a power of two.
  double scaled_fraction(double m, std::uint64_t code, int count) const {
    const double low = list[code], high = list[code + 1];
    return std::floor(std::ldexp((m - low) / (high - low), count));
  }

  const format_facts& f;
  const std::vector<double> list;

 private:
  bool goes_up(double m, std::uint64_t code, bool negative, direction d, draw random) const {
    const double low = list[code], high = list[code + 1];
    if (m == low) return false;
    const double middle = low + (high - low) / 2;  // one bit more than the format: exact
    switch (d) {
      case direction::nearest_even: return m > middle || (m == middle && is_odd(f, code));
      case direction::nearest_away: return m >= middle;
      case direction::toward_zero: return false;
      case direction::up: return !negative;
      case direction::down: return negative;
      case direction::to_odd: return !is_odd(f, code);
      case direction::stochastic: {
        const double one = std::ldexp(1.0, random.count);
        return scaled_fraction(m, code, random.count) + std::fmod(static_cast<double>(random.word), one) >= one;
      }
    }
    return false;
  }
};

}  // namespace rotoscale::oracle
