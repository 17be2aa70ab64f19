// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// numeric_limits against the specifications (for BF16 and FP16 also NumPy's finfo), against the standard library for
// FP32 and FP64, and against all codes. Also hash, comparison and text.
#include "rotoscale/limits.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_set>

#include "rotoscale/names.hpp"

namespace limits_test {

using namespace rotoscale;

enum kind { numbers_only, one_nan, ieee };

/// One row of the specification: numbers, and the codes that are easy to get wrong.
struct row {
  kind top;
  int digits, digits10, max_digits10, min_exponent, min_exponent10, max_exponent, max_exponent10;
  double min, lowest, max, epsilon, denorm_min;
  unsigned min_code, lowest_code, max_code, nan_code;
};

template <class Number>
void check(const row& r) {
  using limits = std::numeric_limits<Number>;
  CAPTURE(to_string(Number::format));
  CHECK(limits::is_specialized);
  CHECK(limits::is_signed == (r.lowest < 0));
  CHECK_FALSE(limits::is_integer);
  CHECK_FALSE(limits::is_exact);
  CHECK(limits::is_bounded);
  CHECK_FALSE(limits::is_modulo);
  CHECK_FALSE(limits::traps);
  CHECK_FALSE(limits::tinyness_before);
  CHECK_FALSE(limits::has_denorm_loss);
  CHECK(limits::round_style == std::round_to_nearest);
  CHECK(limits::radix == 2);
  CHECK(limits::has_infinity == (r.top == ieee));
  CHECK(limits::has_quiet_NaN == (r.top != numbers_only));
  CHECK(limits::has_signaling_NaN == (r.top == ieee));
  CHECK(limits::has_denorm == (r.denorm_min < r.min ? std::denorm_present : std::denorm_absent));
  CHECK(limits::digits == r.digits);
  CHECK(limits::digits10 == r.digits10);
  CHECK(limits::max_digits10 == r.max_digits10);
  CHECK(limits::min_exponent == r.min_exponent);
  CHECK(limits::min_exponent10 == r.min_exponent10);
  CHECK(limits::max_exponent == r.max_exponent);
  CHECK(limits::max_exponent10 == r.max_exponent10);
  CHECK(static_cast<double>(limits::min()) == r.min);
  CHECK(static_cast<double>(limits::lowest()) == r.lowest);
  CHECK(static_cast<double>(limits::max()) == r.max);
  CHECK(static_cast<double>(limits::epsilon()) == r.epsilon);
  CHECK(static_cast<double>(limits::denorm_min()) == r.denorm_min);
  CHECK(static_cast<double>(limits::round_error()) == 0.5);
  CHECK(limits::min().bits() == r.min_code);
  CHECK(limits::lowest().bits() == r.lowest_code);
  CHECK(limits::max().bits() == r.max_code);
  CHECK(limits::quiet_NaN().bits() == r.nan_code);
  CHECK(limits::infinity().bits() == (r.top == ieee ? r.max_code + 1 : 0));
}

/// Conversions give every number but INT8's -2, to keep its range symmetric.
template <class Number>
bool is_converted_to(Number x) {
  return Number::format != formats::int8 || x.bits() != 0x80;
}

template <class Number, class Visitor>
void for_all_codes(Visitor&& visit) {
  for (std::uint32_t code = 0; code < std::uint32_t{1} << Number::format.bits(); ++code) {
    visit(Number::from_bits(static_cast<typename Number::storage>(code)));
  }
}

/// Computes the members from the standard's definitions by trying every code.
template <class Number>
void check_by_search() {
  using limits = std::numeric_limits<Number>;
  CAPTURE(to_string(Number::format));
  double lowest = INFINITY, largest = -INFINITY, least_positive = INFINITY, next_to_one = INFINITY;
  for_all_codes<Number>([&](Number x) {
    const auto value = static_cast<double>(x);
    if (!std::isfinite(value)) return;
    lowest = std::fmin(lowest, value);
    largest = std::fmax(largest, value);
    if (value > 0) least_positive = std::fmin(least_positive, value);
    if (value > 1) next_to_one = std::fmin(next_to_one, value);
    // max_digits10 significant digits tell every normal number from all others.
    if (std::fabs(value) < static_cast<double>(limits::min())) return;
    char text[64];
    std::snprintf(text, sizeof text, "%.*e", limits::max_digits10 - 1, value);
    if (is_converted_to(x)) REQUIRE(Number(std::strtod(text, nullptr)) == x);
  });
  CHECK(static_cast<double>(limits::lowest()) == lowest);
  CHECK(static_cast<double>(limits::max()) == largest);
  CHECK(static_cast<double>(limits::denorm_min()) == least_positive);
  CHECK(static_cast<double>(limits::epsilon()) == next_to_one - 1);
  CHECK(std::ldexp(1.0, limits::max_exponent - 1) <= largest);
  CHECK(std::ldexp(1.0, limits::max_exponent) > largest);
  CHECK(std::ldexp(1.0, limits::min_exponent - 1) == static_cast<double>(limits::min()));
  CHECK(std::pow(10.0, limits::max_exponent10) <= largest);
  CHECK(std::pow(10.0, limits::max_exponent10 + 1) > largest);
  CHECK(std::pow(10.0, limits::min_exponent10) >= static_cast<double>(limits::min()));
  CHECK(std::pow(10.0, limits::min_exponent10 - 1) < static_cast<double>(limits::min()));
  CHECK(limits::digits10 == static_cast<int>(std::floor((limits::digits - 1) * std::log10(2.0))));
  CHECK(limits::max_digits10 == static_cast<int>(std::ceil(limits::digits * std::log10(2.0) + 1)));
}

/// Members that are no numbers of the type.
template <class L>
constexpr auto properties() {
  return std::tuple{L::is_signed,     L::is_integer,        L::is_exact,     L::has_infinity,
                    L::has_quiet_NaN, L::has_signaling_NaN, L::has_denorm,   L::has_denorm_loss,
                    L::round_style,   L::is_iec559,         L::is_bounded,   L::is_modulo,
                    L::digits,        L::digits10,          L::max_digits10, L::radix,
                    L::min_exponent,  L::min_exponent10,    L::max_exponent, L::max_exponent10};
}
template <class L>
constexpr auto values() {
  return std::array{L::min(),         L::lowest(),   L::max(),       L::epsilon(),
                    L::round_error(), L::infinity(), L::quiet_NaN(), L::denorm_min()};
}

/// Compares every member with the standard library's for the type of the same encoding.
template <class Number, class Native>
void check_like() {
  using ours = std::numeric_limits<Number>;
  using theirs = std::numeric_limits<Native>;
  CHECK((properties<ours>() == properties<theirs>()));
  for (std::size_t i = 0; i < values<ours>().size(); ++i) {
    CHECK(values<ours>()[i].bits() == bit_cast<typename Number::storage>(values<theirs>()[i]));
  }
}

/// Calls check with a number of each type.
template <class Check>
void for_types(const Check& check) {
  const auto each = [&]<class... N>(const std::tuple<N...>&) { (check(N{}), ...); };
  each(std::tuple<e2m1, e2m3, e3m2, e4m3, e5m2, e4m3fnuz, e5m2fnuz, e4m3b11fnuz, mx_int8, e8m0, ue4m3, ue5m3, bf16,
                  fp16, tf32>());
}

template <class Number>
std::string shown(typename Number::storage code) {
  return to_string(Number::from_bits(code));
}

template <class Number>
void check_texts() {
  CAPTURE(to_string(Number::format));
  for_all_codes<Number>([&](Number x) {
    const std::string text = to_string(x);
    CAPTURE(text);
    const Number back(std::strtof(text.c_str(), nullptr), rounding::nearest_even, overflow::to_inf);
    if (x.is_nan()) {
      REQUIRE(back.is_nan());
      const bool minus = Number::format.is_signed && Number::format.specials != specials::fnuz &&
                         (x.bits() >> (Number::format.bits() - 1)) != 0;
      REQUIRE(text == (minus ? "-nan" : "nan"));
    } else if (is_converted_to(x)) {
      REQUIRE(back == x);
    }
  });
}

TEST_CASE("every member has the value of the specification") {
  check<e2m1>({numbers_only, 2, 0, 2, 1, 0, 3, 0, 1.0, -6.0, 6.0, 0.5, 0.5, 0x2, 0xF, 0x7, 0});
  check<e2m3>({numbers_only, 4, 0, 3, 1, 0, 3, 0, 1.0, -7.5, 7.5, 0.125, 0.125, 0x8, 0x3F, 0x1F, 0});
  check<e3m2>({numbers_only, 3, 0, 2, -1, 0, 5, 1, 0.25, -28.0, 28.0, 0.25, 0.0625, 0x4, 0x3F, 0x1F, 0});
  check<e4m3>({one_nan, 4, 0, 3, -5, -1, 9, 2, 0x1p-6, -448.0, 448.0, 0.125, 0x1p-9, 0x08, 0xFE, 0x7E, 0x7F});
  check<e5m2>({ieee, 3, 0, 2, -13, -4, 16, 4, 0x1p-14, -57344.0, 57344.0, 0.25, 0x1p-16, 0x04, 0xFB, 0x7B, 0x7E});
  check<e4m3fnuz>({one_nan, 4, 0, 3, -6, -2, 8, 2, 0x1p-7, -240.0, 240.0, 0.125, 0x1p-10, 0x08, 0xFF, 0x7F, 0x80});
  check<e5m2fnuz>(
      {one_nan, 3, 0, 2, -14, -4, 16, 4, 0x1p-15, -57344.0, 57344.0, 0.25, 0x1p-17, 0x04, 0xFF, 0x7F, 0x80});
  check<e4m3b11fnuz>({one_nan, 4, 0, 3, -9, -3, 5, 1, 0x1p-10, -30.0, 30.0, 0.125, 0x1p-13, 0x08, 0xFF, 0x7F, 0x80});
  check<mx_int8>(
      {numbers_only, 7, 1, 4, -5, -1, 1, 0, 1.0 / 64, -2.0, 127.0 / 64, 1.0 / 64, 1.0 / 64, 0x01, 0x80, 0x7F, 0});
  check<e8m0>({one_nan, 1, 0, 2, -126, -38, 128, 38, 0x1p-127, 0x1p-127, 0x1p127, 1.0, 0x1p-127, 0x00, 0, 0xFE, 0xFF});
  check<ue4m3>({one_nan, 4, 0, 3, -5, -1, 9, 2, 0x1p-6, 0.0, 448.0, 0.125, 0x1p-9, 0x08, 0x00, 0x7E, 0x7F});
  check<ue5m3>({one_nan, 4, 0, 3, -13, -4, 17, 5, 0x1p-14, 0.0, 114688.0, 0.125, 0x1p-17, 0x08, 0x00, 0xFE, 0xFF});
  check<tf32>({ieee, 11, 3, 5, -125, -37, 128, 38, 0x1p-126, -0x1.FFCp127, 0x1.FFCp127, 0x1p-10, 0x1p-136, 0x400,
               0x7FBFF, 0x3FBFF, 0x3FE00});
  // numpy.finfo of float16 and of ml_dtypes.bfloat16: precision, iexp, min, max, eps, smallest_subnormal.
  check<fp16>({ieee, 11, 3, 5, -13, -4, 16, 4, 6.103515625e-05, -65504.0, 65504.0, 0.0009765625, 5.960464477539063e-08,
               0x0400, 0xFBFF, 0x7BFF, 0x7E00});
  check<bf16>({ieee, 8, 2, 4, -125, -37, 128, 38, 1.1754943508222875e-38, -3.3895313892515355e+38,
               3.3895313892515355e+38, 0.0078125, 9.183549615799121e-41, 0x0080, 0xFF7F, 0x7F7F, 0x7FC0});
  CHECK(std::numeric_limits<fp16>::is_iec559);
  CHECK_FALSE(std::numeric_limits<bf16>::is_iec559);
  CHECK_FALSE(std::numeric_limits<e5m2>::is_iec559);
}

TEST_CASE("no code contradicts them") {
  for_types([](auto x) { check_by_search<decltype(x)>(); });
  // User formats: flushing, without mantissa, unsigned with infinities.
  check_by_search<small_float<format{4, 2, 7, true, specials::none, false}>>();
  check_by_search<small_float<format{3, 0, 3, true, specials::none}>>();
  check_by_search<small_float<format{5, 3, 15, false, specials::ieee}>>();
}

TEST_CASE("FP32 and FP64 have the limits of float and double") {
  check_like<small_float<formats::fp32>, float>();
  check_like<small_float<formats::fp64>, double>();
}

TEST_CASE("the integer logarithm is that of real numbers") {
  for (int x = -2136; x <= 2136; ++x) {
    CAPTURE(x);
    REQUIRE(detail::floor_log10_2(x) == static_cast<int>(std::floor(static_cast<long double>(x) * log10l(2.0L))));
  }
}

TEST_CASE("equality and hash are those of the code") {
  static_assert(e2m1(1.0f) == e2m1(1.1f) && e2m1(1.0f) != e2m1(2.0f));
  CHECK(e4m3(0.0f) != e4m3(-0.0f));
  CHECK(std::numeric_limits<e4m3>::quiet_NaN() == std::numeric_limits<e4m3>::quiet_NaN());
  CHECK(e4m3fnuz(0.0f) == e4m3fnuz(-0.0f));  // one code
  std::unordered_set<e5m2> all;
  for_all_codes<e5m2>([&](e5m2 x) { all.insert(x); });
  CHECK(all.size() == 256);
  for_all_codes<e5m2>([&](e5m2 x) { CHECK(all.contains(x)); });
  CHECK(std::hash<e5m2>()(e5m2(0.0f)) != std::hash<e5m2>()(e5m2(-0.0f)));
}

TEST_CASE("texts") {
  CHECK(shown<e2m1>(0x1) == "0.5");
  CHECK(shown<e2m1>(0x8) == "-0");
  CHECK(shown<e4m3>(0xFE) == "-448");
  CHECK(shown<e4m3>(0x01) == "0.001953125");
  CHECK(shown<e4m3>(0xFF) == "-nan");
  CHECK(shown<e4m3fnuz>(0x80) == "nan");
  CHECK(shown<e5m2>(0x7C) == "inf");
  CHECK(shown<e5m2>(0xFC) == "-inf");
  CHECK(shown<e5m2>(0x7B) == "57344");
  CHECK(shown<mx_int8>(0x80) == "-2");
  CHECK(shown<mx_int8>(0x81) == "-1.984375");
  CHECK(shown<e8m0>(0x00) == "5.877472e-39");
  CHECK(shown<e8m0>(0xFE) == "1.7014118e+38");
  CHECK(shown<fp16>(0x3555) == "0.33325195");
  CHECK(to_string(small_float<formats::fp64>(0.1)) == "0.1");
  CHECK(to_string(small_float<formats::fp64>(-2.2250738585072014e-308)) == "-2.2250738585072014e-308");
}

TEST_CASE("text that is read gives the code again") {
  for_types([](auto x) { check_texts<decltype(x)>(); });
}

}  // namespace limits_test
