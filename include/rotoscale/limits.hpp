// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Standard library traits of small_float: numeric_limits, hash, to_string, operator<< and std::formatter. All follow
// from the format's fields; docs/reference/formats.md lists the values.
#pragma once

#include <charconv>
#include <cmath>
#include <functional>
#include <iosfwd>
#include <limits>
#include <string>
#include <type_traits>
#include <version>
#if defined(__cpp_lib_format)
#include <format>
#endif

#include "rotoscale/small_float.hpp"

namespace rotoscale {

namespace detail {

/// Is the format fixed point (INT8)? Without an exponent field no number has an implicit leading bit.
ROTOSCALE_HD constexpr bool is_fixed_point(format f) { return f.exponent_bits == 0 && f.has_subnormals; }

/// Significant bits of the numbers in [1, 2).
ROTOSCALE_HD constexpr int digits(format f) { return f.mantissa_bits + (is_fixed_point(f) ? 0 : 1); }

/// Code of the least normal number; for INT8, which has none, of the least positive number.
ROTOSCALE_HD constexpr std::uint64_t min_code(format f) {
  if (is_fixed_point(f)) return 1;
  return f.has_subnormals || f.has_zero ? std::uint64_t{1} << f.mantissa_bits : 0;
}

/// Code of the least finite number: 0 for unsigned formats, -2 for INT8 (which conversions never produce).
ROTOSCALE_HD constexpr std::uint64_t lowest_code(format f) {
  if (!f.is_signed) return 0;
  return f.twos_complement ? f.sign_mask() : f.signed_code(true, f.max_code());
}

/// Code of 2^e, rounded if the format lacks that number.
ROTOSCALE_HD constexpr std::uint64_t power_of_two_code(format f, int e) {
  return round_to(f, {value_class::finite, false, e, std::uint64_t{1} << 63});
}

/// floor(x * log10(2)). 30103 / 100000 is exact enough for |x| <= 2136 (tested), which covers FP64.
ROTOSCALE_HD constexpr int floor_log10_2(int x) {
  const int product = x * 30103;
  return product / 100000 - (product % 100000 < 0 ? 1 : 0);
}

/// floor(log10(largest number)).
constexpr int max_exponent10(format f) {
  const int guess = floor_log10_2(f.max_exponent());
  double power = 1.0;
  for (int i = 0; i <= guess; ++i) power *= 10.0;
  const auto largest = bit_cast<double>(convert(f, f.max_code(), formats::fp64));
  return largest >= power ? guess + 1 : guess;
}

/// `x` as float, or as double if float cannot hold it. The NaN of a format with only one NaN has no sign.
template <format F>
constexpr auto printed_value(small_float<F> x) {
  using number = std::conditional_t<fits_fp32(F), float, double>;
  if (F.specials == specials::fnuz && x.is_nan()) return std::numeric_limits<number>::quiet_NaN();
  return static_cast<number>(x);
}

}  // namespace detail

/// The shortest text that identifies this number among FP32 numbers, or FP64 numbers if FP32 does not hold the format:
/// "0.5", "-448", "-0", "5.877472e-39", "inf", "nan". Parsed and converted back, it gives the same code, with two
/// exceptions: a NaN becomes the canonical NaN of its sign, and INT8's -2 becomes -127/64.
template <format F>
std::string to_string(small_float<F> x) {
  const auto value = detail::printed_value(x);
  if (x.is_nan()) return std::signbit(value) ? "-nan" : "nan";  // some to_chars append a payload
  char text[32];                                                // FP64 takes at most 24 characters
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

template <class Traits, format F>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, small_float<F> x) {
  return out << to_string(x);
}

}  // namespace rotoscale

// C++23 deprecates float_denorm_style, but numeric_limits must still have a member of that type.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/// As for float, with these readings of the standard:
/// - `digits` counts the implicit leading bit.
/// - INT8, which is fixed point, has 7 digits and no subnormals.
/// - min() of E8M0 is its code 0.
/// - is_iec559 refers to the encoding, since there is no arithmetic.
/// - A signaling NaN is a code as in IEEE 754; nothing traps.
template <rotoscale::format F>
struct std::numeric_limits<rotoscale::small_float<F>> {
 private:
  using number = rotoscale::small_float<F>;
  ROTOSCALE_HD static constexpr number of(std::uint64_t code) {
    return number::from_bits(static_cast<typename number::storage>(code));
  }
  static constexpr int least_exponent = rotoscale::unpack(F, rotoscale::detail::min_code(F)).exponent;

 public:
  static constexpr bool is_specialized = true;
  static constexpr bool is_signed = F.is_signed;
  static constexpr bool is_integer = false;
  static constexpr bool is_exact = false;
  static constexpr bool has_infinity = F.has_infinity();
  static constexpr bool has_quiet_NaN = F.has_nan();
  static constexpr bool has_signaling_NaN = F.has_infinity() && F.mantissa_bits > 1;
  static constexpr std::float_denorm_style has_denorm =
      F.has_subnormals && F.exponent_bits > 0 && F.mantissa_bits > 0 ? std::denorm_present : std::denorm_absent;
  static constexpr bool has_denorm_loss = false;
  static constexpr std::float_round_style round_style = std::round_to_nearest;
  static constexpr bool is_iec559 =
      F == rotoscale::formats::fp16 || F == rotoscale::formats::fp32 || F == rotoscale::formats::fp64;
  static constexpr bool is_bounded = true;
  static constexpr bool is_modulo = false;
  static constexpr int digits = rotoscale::detail::digits(F);
  static constexpr int digits10 = rotoscale::detail::floor_log10_2(digits - 1);
  static constexpr int max_digits10 = rotoscale::detail::floor_log10_2(digits) + 2;
  static constexpr int radix = 2;
  static constexpr int min_exponent = least_exponent + 1;
  static constexpr int min_exponent10 = -rotoscale::detail::floor_log10_2(-least_exponent);
  static constexpr int max_exponent = F.max_exponent() + 1;
  static constexpr int max_exponent10 = rotoscale::detail::max_exponent10(F);
  static constexpr bool traps = false;
  static constexpr bool tinyness_before = false;

  ROTOSCALE_HD static constexpr number min() noexcept { return of(rotoscale::detail::min_code(F)); }
  ROTOSCALE_HD static constexpr number lowest() noexcept { return of(rotoscale::detail::lowest_code(F)); }
  ROTOSCALE_HD static constexpr number max() noexcept { return of(F.max_code()); }
  ROTOSCALE_HD static constexpr number epsilon() noexcept {
    return of(rotoscale::detail::power_of_two_code(F, 1 - digits));
  }
  ROTOSCALE_HD static constexpr number round_error() noexcept {
    return of(rotoscale::detail::power_of_two_code(F, -1));
  }
  ROTOSCALE_HD static constexpr number denorm_min() noexcept { return has_denorm == denorm_present ? of(1) : min(); }
  /// The next three return code 0 where the format lacks such a code.
  ROTOSCALE_HD static constexpr number infinity() noexcept { return of(has_infinity ? F.infinity_code() : 0); }
  ROTOSCALE_HD static constexpr number quiet_NaN() noexcept { return of(has_quiet_NaN ? F.nan_code() : 0); }
  ROTOSCALE_HD static constexpr number signaling_NaN() noexcept {
    return of(has_signaling_NaN ? F.infinity_code() | (F.nan_code() & F.mantissa_mask()) >> 1 : 0);
  }
};
#pragma GCC diagnostic pop

/// Hash of the code, consistent with ==: 0 and -0 differ, and a NaN equals itself.
template <rotoscale::format F>
struct std::hash<rotoscale::small_float<F>> {
  std::size_t operator()(rotoscale::small_float<F> x) const noexcept {
    return std::hash<typename rotoscale::small_float<F>::storage>{}(x.bits());
  }
};

#if defined(__cpp_lib_format)
/// Takes the format specifications of float (or double): "{}" is to_string, and "{:8.3f}" works.
template <rotoscale::format F>
struct std::formatter<rotoscale::small_float<F>>
    : std::formatter<decltype(rotoscale::detail::printed_value(rotoscale::small_float<F>()))> {
  template <class Context>
  auto format(rotoscale::small_float<F> x, Context& context) const {
    using number = decltype(rotoscale::detail::printed_value(x));
    return std::formatter<number>::format(rotoscale::detail::printed_value(x), context);
  }
};
#endif

namespace rotoscale {
static_assert(std::numeric_limits<e2m1>::digits == 2 && std::numeric_limits<mx_int8>::lowest().bits() == 0x80);
static_assert(float(std::numeric_limits<e8m0>::min()) == 0x1p-127f);
static_assert(std::numeric_limits<small_float<formats::fp32>>::min_exponent10 == -37);
}  // namespace rotoscale
