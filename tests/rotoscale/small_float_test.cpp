// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// small_float forwards to the conversions that round_test proves. These tests check the forwarding.
#include "rotoscale/small_float.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <type_traits>

#include "oracle/format_oracle.hpp"

namespace small_float_test {

using namespace rotoscale;

template <class Float>
void check_all_codes() {
  const oracle::rounder expected(oracle::facts_of(Float::format));
  CAPTURE(expected.f.name);
  for (std::uint32_t code = 0; code < 1u << Float::format.bits(); ++code) {
    const Float x = Float::from_bits(static_cast<typename Float::storage>(code));
    REQUIRE(x.bits() == code);
    REQUIRE(x.is_nan() == std::isnan(static_cast<float>(x)));
    if (x.is_nan() || (Float::format.twos_complement && code == 0x80)) continue;  // -2 is never stored
    REQUIRE(Float(static_cast<float>(x), rounding::nearest_even, overflow::to_inf).bits() == code);
    REQUIRE(Float(static_cast<double>(static_cast<float>(x)), rounding::nearest_even, overflow::to_inf).bits() == code);
  }
  // A tie displaced by less than FP32 resolves: a conversion through float would round twice.
  for (std::size_t i = 0; i + 1 < expected.list.size(); ++i) {
    const double middle = (expected.list[i] + expected.list[i + 1]) / 2;
    for (const double x : {std::nextafter(middle, 0.0), std::nextafter(middle, 1e300)}) {
      REQUIRE(Float(x).bits() == expected(x, oracle::direction::nearest_even, oracle::excess::saturate));
      REQUIRE(Float(x, rounding::up, overflow::to_nan).bits() ==
              expected(x, oracle::direction::up, oracle::excess::to_nan));
    }
  }
}

TEST_CASE("all codes, both sources") {
  check_all_codes<e2m1>();
  check_all_codes<e2m3>();
  check_all_codes<e3m2>();
  check_all_codes<e4m3>();
  check_all_codes<e5m2>();
  check_all_codes<e8m0>();
  check_all_codes<e4m3fnuz>();
  check_all_codes<e5m2fnuz>();
  check_all_codes<e4m3b11fnuz>();
  check_all_codes<mx_int8>();
  check_all_codes<ue4m3>();
  check_all_codes<ue5m3>();
  check_all_codes<bf16>();
  check_all_codes<fp16>();
  check_all_codes<tf32>();
}

TEST_CASE("FP32 and FP64 are small_floats too") {
  CHECK(small_float<formats::fp32>(0.1).bits() == fp32_bits(0.1f));
  CHECK(small_float<formats::fp64>(0.1).bits() == bit_cast<std::uint64_t>(0.1));
}

TEST_CASE("rounding arguments reach the rounding") {
  CHECK(e2m1(1.1f, rounding::stochastic, overflow::saturate, 0xFFFFFFFFu).bits() == 3);
  CHECK(e2m1(1.1f, rounding::stochastic, overflow::saturate, 0).bits() == 2);
  CHECK(e2m1(2.5f, rounding::nearest_away).bits() == 5);
  CHECK(e4m3(1e9f, rounding::nearest_even, overflow::to_nan).is_nan());
  CHECK(e2m1(1.25f, rounding::stochastic, overflow::saturate, {0xFFFFFFFEu, 1}).bits() == 2);
  CHECK(e2m1(1.25, rounding::stochastic, overflow::saturate, {0x00000001u, 1}).bits() == 3);
  CHECK(e2m1(1.25, rounding::stochastic, overflow::saturate, {0x00000002u, 2}).bits() == 3);
}

TEST_CASE("no hidden arithmetic or conversion; the storage is the least that fits") {
  static_assert(!std::is_convertible_v<float, e4m3> && !std::is_convertible_v<e4m3, float>);
  static_assert(!std::is_convertible_v<e4m3, e5m2>);
  static_assert(std::is_same_v<e2m1::storage, std::uint8_t> && std::is_same_v<bf16::storage, std::uint16_t>);
  static_assert(std::is_same_v<small_float<formats::fp32>::storage, std::uint32_t>);
  static_assert(std::is_same_v<small_float<formats::fp64>::storage, std::uint64_t>);
  static_assert(std::is_same_v<ue4m3::storage, std::uint8_t> && std::is_same_v<tf32::storage, std::uint32_t>);
  static_assert(std::is_trivially_copyable_v<bf16> && std::is_trivially_copyable_v<mx_int8>);
  CHECK(e4m3().bits() == 0);
}

}  // namespace small_float_test
