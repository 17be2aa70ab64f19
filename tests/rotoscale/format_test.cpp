// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Formats against the tables of their specifications.
#include "rotoscale/format.hpp"

#include <doctest/doctest.h>

#include "oracle/format_oracle.hpp"

namespace format_test {

using namespace rotoscale;

void check_fields(const oracle::format_facts& f) {
  CHECK(f.value.exponent_bits == f.exponent_bits);
  CHECK(f.value.mantissa_bits == f.mantissa_bits);
  CHECK(f.value.bias == f.bias);
  CHECK(f.value.is_signed == f.is_signed);
  CHECK(f.value.has_subnormals == f.subnormals);
  CHECK(f.value.has_zero == f.zero);
  CHECK(f.value.twos_complement == f.twos_complement);
  CHECK(f.value.magnitude_bits() == f.exponent_bits + f.mantissa_bits);
  CHECK(f.value.bits() == f.exponent_bits + f.mantissa_bits + (f.is_signed ? 1 : 0));
  CHECK(f.value.sign_mask() == oracle::sign_bit(f));
  CHECK(f.value.max_code() == f.max_code);
  CHECK(f.value.has_nan() == (f.nan_code != 0));
  if (f.nan_code != 0) CHECK(f.value.nan_code() == f.nan_code);
  CHECK(f.value.has_infinity() == (f.infinity_code != 0));
  if (f.infinity_code != 0) CHECK(f.value.infinity_code() == f.infinity_code);
  CHECK(f.value.has_negative_zero() == oracle::has_negative_zero(f));
  CHECK(f.value.max_exponent() == std::ilogb(f.max));
  if (f.min_normal != 0) CHECK(f.value.min_exponent() == std::ilogb(f.min_normal));
  CHECK(oracle::magnitude_of(f, f.max_code) == f.max);
}

TEST_CASE("every format has the fields, extremes and special codes of its specification") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    check_fields(f);
    std::uint64_t least = 0;  // code of the least positive number
    while (oracle::magnitude_of(f, least) == 0.0) ++least;
    CHECK(oracle::magnitude_of(f, least) == f.min_positive);
  }
  for (const auto& f : oracle::wide_formats()) {
    CAPTURE(f.name);
    check_fields(f);
    CHECK(oracle::magnitude_of(f, 1) == f.min_positive);
  }
}

TEST_CASE("which codes are NaN, Inf and negative; codes of magnitudes and signs") {
  for (const auto& f : oracle::all_formats()) {
    CAPTURE(f.name);
    for (std::uint64_t code = 0; code < oracle::code_count(f); ++code) {
      const bool negative = f.is_signed && code >= oracle::sign_bit(f);
      REQUIRE(f.value.is_nan(code) == oracle::is_nan_code(f, code));
      REQUIRE(f.value.is_negative(code) == negative);
      if (oracle::is_nan_code(f, code)) {
        REQUIRE_FALSE(f.value.is_infinity(code));
        continue;
      }
      REQUIRE(f.value.is_infinity(code) == std::isinf(oracle::value_of(f, code)));
      if (f.value.is_infinity(code) || f.value.magnitude(code) > f.max_code) continue;
      REQUIRE(oracle::magnitude_of(f, f.value.magnitude(code)) == std::fabs(oracle::value_of(f, code)));
      REQUIRE(f.value.signed_code(negative, f.value.magnitude(code)) == code);
    }
    if (f.is_signed) {
      CHECK(f.value.signed_code(true, 0) == oracle::negated(f, 0));
    } else {
      CHECK(f.value.signed_code(true, 1) == 1);
    }
  }
}

TEST_CASE("two's complement: -1/64 is 0xFF, -2 is 0x80, there is one zero") {
  constexpr format f = formats::int8;
  CHECK(f.signed_code(true, 1) == 0xFF);
  CHECK(f.signed_code(true, 127) == 0x81);
  CHECK(f.signed_code(true, 0) == 0x00);
  CHECK(f.magnitude(0x80) == 128);
  CHECK_FALSE(f.has_negative_zero());
}

TEST_CASE("formats are compared by value and can be template arguments") {
  static_assert(formats::e2m1 == format{2, 1, 1, true, specials::none});
  static_assert(!(formats::e4m3 == formats::e5m2));
  static_assert(!(formats::e4m3 == formats::ue4m3));
  static_assert(std::uint64_t{0xFF} == formats::e8m0.nan_code());
}

}  // namespace format_test
