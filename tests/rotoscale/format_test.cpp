// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Formats against the tables of their specifications.
#include "rotoscale/format.hpp"

#include <doctest/doctest.h>

#include "oracle/format_oracle.hpp"

using namespace rotoscale;

TEST_CASE("every format has the fields, extremes and special codes of its specification") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    CHECK(f.value.exponent_bits == f.exponent_bits);
    CHECK(f.value.mantissa_bits == f.mantissa_bits);
    CHECK(f.value.bias == f.bias);
    CHECK(f.value.is_signed == f.is_signed);
    CHECK(f.value.bits() == f.exponent_bits + f.mantissa_bits + (f.is_signed ? 1 : 0));
    CHECK(f.value.max_code() == f.max_code);
    CHECK(f.value.has_nan() == (f.nan_code != 0));
    if (f.nan_code != 0) CHECK(f.value.nan_code() == f.nan_code);
    CHECK(f.value.has_infinity() == (f.infinity_code != 0));
    if (f.infinity_code != 0) CHECK(f.value.infinity_code() == f.infinity_code);
    CHECK(std::ldexp(1.0, f.value.max_exponent()) <= f.max);
    CHECK(std::ldexp(2.0, f.value.max_exponent()) > f.max);
    CHECK(std::ldexp(1.0, f.value.min_exponent()) == f.min_normal);
    CHECK(oracle::magnitude_of(f, f.max_code) == f.max);
    CHECK(oracle::magnitude_of(f, f.is_signed ? 1 : 0) == f.min_positive);
  }
}

TEST_CASE("which codes are NaN and which are Inf") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    const int magnitude_bits = f.exponent_bits + f.mantissa_bits;
    for (std::uint64_t code = 0; code < std::uint64_t{1} << f.value.bits(); ++code) {
      const std::uint64_t magnitude = code & ((std::uint64_t{1} << magnitude_bits) - 1);
      // IEEE types: above Inf. FNUZ: the code of -0. Others: the one above the largest number, if they have NaN.
      bool nan = false;
      if (f.infinity_code != 0) {
        nan = magnitude > f.infinity_code;
      } else if (oracle::is_fnuz(f)) {
        nan = code == 0x80;
      } else {
        nan = f.nan_code != 0 && magnitude > f.max_code;
      }
      REQUIRE(f.value.is_nan(code) == nan);
      REQUIRE(f.value.is_infinity(code) == (f.infinity_code != 0 && magnitude == f.infinity_code));
    }
  }
}

TEST_CASE("negative zero") {
  CHECK(formats::e2m1.has_negative_zero());
  CHECK(formats::e5m2.has_negative_zero());
  CHECK_FALSE(formats::e8m0.has_negative_zero());
  CHECK_FALSE(oracle::e4m3fnuz.has_negative_zero());
}

TEST_CASE("formats are compared by value and can be template arguments") {
  static_assert(formats::e2m1 == format{2, 1, 1, true, specials::none});
  static_assert(!(formats::e4m3 == formats::e5m2));
  static_assert(std::uint64_t{0xFF} == formats::e8m0.nan_code());
}
