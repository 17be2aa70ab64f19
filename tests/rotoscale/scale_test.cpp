// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block scales: the published table of shipped quantizers, and every rule against its definition in exact arithmetic.
#include "rotoscale/scale.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "oracle/format_oracle.hpp"

using namespace rotoscale;

namespace {

using nan_rule = block_policy::nan_rule;
using infinity_rule = block_policy::infinity_rule;

/// A shipped quantizer as the library states it.
struct implementation {
  std::string name;
  scale_rule rule;
  block_policy policy;
  std::vector<int> bytes;  ///< one for each amax of `table_amax`
};

const float infinity = std::numeric_limits<float>::infinity();
const std::vector<float> table_amax{
    0.0f,  0x1p-130f, 0x1p-125f, 0x1p-124f,       1.0f,    1.5f, std::nextafter(1.5f, 2.0f),
    1.75f, 6.0f,      7.0f,      0x1.FFFFFEp127f, infinity};

/// Bytes recomputed from the sources of each implementation. All but torchao reduce with fmaxf, which drops NaN.
const std::vector<implementation> table{
    {"te_rocm", scale_rule::even, policies::te_rocm, {127, 0, 0, 1, 125, 125, 125, 126, 127, 128, 253, 253}},
    {"primus_turbo",
     scale_rule::even,
     {0, 0, nan_rule::ignore, infinity_rule::exponent_128},
     {0, 0, 0, 1, 125, 125, 125, 126, 127, 128, 253, 253}},
    {"aiter even",
     scale_rule::even,
     {0, 0, nan_rule::ignore, infinity_rule::exponent_128},
     {0, 0, 0, 1, 125, 125, 125, 126, 127, 128, 253, 253}},
    {"aiter round up",
     scale_rule::rceil,
     {0, 1, nan_rule::ignore, infinity_rule::nan_scale},
     {0, 1, 1, 1, 125, 125, 126, 126, 127, 128, 253, 255}},
    {"aiter round down",
     scale_rule::floor,
     {0, 0, nan_rule::ignore, infinity_rule::nan_scale},
     {0, 0, 0, 1, 125, 125, 125, 125, 127, 127, 252, 255}},
    {"aiter ceil",
     scale_rule::ceil,
     {0, 1, nan_rule::ignore, infinity_rule::nan_scale},
     {0, 1, 1, 1, 125, 126, 126, 126, 128, 128, 253, 255}},
    {"torchao rceil", scale_rule::rceil, policies::ocp, {0, 0, 0, 1, 125, 125, 126, 126, 127, 128, 253, 255}},
    {"transformer engine rceil",
     scale_rule::rceil,
     {0, 0, nan_rule::ignore, infinity_rule::largest_scale},
     {0, 0, 0, 1, 125, 125, 126, 126, 127, 128, 253, 254}},
    {"torchao floor", scale_rule::floor, policies::ocp, {0, 0, 0, 1, 125, 125, 125, 125, 127, 127, 252, 255}},
    {"torchao even", scale_rule::even, policies::ocp, {0, 0, 0, 1, 125, 125, 125, 126, 127, 128, 255, 255}},
};

const std::vector<format> elements{formats::e2m1, formats::e2m3, formats::e3m2, formats::e4m3, formats::e5m2};

double max_of(const format& element) {
  for (const auto& f : oracle::all_formats()) {
    if (f.value == element) return f.max;
  }
  return 0;
}

/// The scale exponent of a positive finite amax by the rule's definition, not yet clamped.
int exponent_by_definition(double amax, const format& element, scale_rule rule) {
  const int emax = std::ilogb(max_of(element));
  const int floor = std::ilogb(amax);
  switch (rule) {
    case scale_rule::floor: return floor - emax;
    case scale_rule::ceil: return floor - emax + (std::ldexp(1.0, floor) != amax);
    case scale_rule::even:  // rounded, ties away, to the element's mantissa: up to the next power from 2 - half a place
      return floor - emax + (std::ldexp(amax, -floor) >= 2.0 - std::ldexp(1.0, -element.mantissa_bits - 1));
    case scale_rule::rceil: {  // the least power of two at which amax does not saturate
      int k = floor - emax - 2;
      while (std::ldexp(max_of(element), k) < amax) ++k;
      return k;
    }
  }
  return 0;
}

int byte_by_definition(double amax, const format& element, scale_rule rule) {
  return std::max(0, exponent_by_definition(amax, element, rule) + 127);
}

}  // namespace

TEST_CASE("the bytes of shipped quantizers at equal amax") {
  for (const auto& i : table) {
    for (std::size_t at = 0; at < table_amax.size(); ++at) {
      CAPTURE(i.name);
      CAPTURE(table_amax[at]);
      CHECK(int{shared_scale(fp32_bits(table_amax[at]), formats::e2m1, i.rule, i.policy)} == i.bytes[at]);
    }
    // Where a policy lets NaN into amax at all, the scale is NaN.
    CHECK(shared_scale(fp32_nan_bits, formats::e2m1, i.rule, i.policy) == 255);
  }
}

TEST_CASE("every rule and element over one binade: all mantissas for rceil, one in 61 for the others") {
  for (const format& element : elements) {
    for (const auto rule : {scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil}) {
      std::uint64_t wrong = 0;
      const std::uint32_t step = rule == scale_rule::rceil ? 1 : 61;
      for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += step) {
        // The double steps of `rceil` are exact: ldexp of the maximum, a number of few bits.
        const std::uint32_t u = 0x3F800000u | mantissa;
        const int got = shared_scale(u, element, rule, policies::ocp);
        wrong += got != byte_by_definition(static_cast<double>(fp32_from_bits(u)), element, rule);
      }
      CAPTURE(element.exponent_bits);
      CAPTURE(element.mantissa_bits);
      CAPTURE(static_cast<int>(rule));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("every exponent, with the mantissas around the thresholds; subnormal amax as well") {
  std::vector<std::uint32_t> mantissas{0, 1, 2, 0x7FFFFE, 0x7FFFFF};
  for (std::uint32_t step = 1; step < 32; ++step) {
    for (const int by : {-1, 0, 1}) mantissas.push_back(step * 0x40000u + static_cast<std::uint32_t>(by));
  }
  for (const format& element : elements) {
    for (const auto rule : {scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil}) {
      for (std::uint32_t field = 0; field < 255; ++field) {
        for (const std::uint32_t mantissa : mantissas) {
          const std::uint32_t u = field << 23 | mantissa;
          if (u == 0) continue;
          const bool carries = rule == scale_rule::even && u + (1u << (22 - element.mantissa_bits)) >= 0x7F800000u;
          const int want = carries ? 255 : byte_by_definition(static_cast<double>(fp32_from_bits(u)), element, rule);
          REQUIRE(int{shared_scale(u, element, rule, policies::ocp)} == want);
        }
      }
    }
  }
}

TEST_CASE("the even rule's thresholds: mantissa 1.75 for one bit, 1.875 for two, 1.9375 for three") {
  const auto even = [](float amax, const format& element) {
    return int{shared_scale(fp32_bits(amax), element, scale_rule::even, policies::te_rocm)};
  };
  CHECK(even(1.75f, formats::e2m1) == even(1.0f, formats::e2m1) + 1);
  CHECK(even(std::nextafter(1.75f, 1.0f), formats::e2m1) == even(1.0f, formats::e2m1));
  CHECK(even(1.875f, formats::e5m2) == even(1.0f, formats::e5m2) + 1);
  CHECK(even(std::nextafter(1.875f, 1.0f), formats::e5m2) == even(1.0f, formats::e5m2));
  CHECK(even(1.9375f, formats::e4m3) == even(1.0f, formats::e4m3) + 1);
  CHECK(even(std::nextafter(1.9375f, 1.0f), formats::e4m3) == even(1.0f, formats::e4m3));
}

TEST_CASE("zero byte and least byte are the policy's") {
  const block_policy policy{125, 3, nan_rule::ignore, infinity_rule::largest_scale};
  CHECK(shared_scale(0, formats::e2m1, scale_rule::floor, policy) == 125);
  CHECK(shared_scale(1, formats::e2m1, scale_rule::floor, policy) == 3);
  CHECK(shared_scale(fp32_infinity_bits, formats::e2m1, scale_rule::floor, policy) == 0xFE);
}

TEST_CASE("scale bytes as exponents and as FP32") {
  for (int byte = 0; byte < 255; ++byte) {
    CHECK(scale_exponent(static_cast<std::uint8_t>(byte)) == byte - 127);
    CHECK(static_cast<double>(scale_value(static_cast<std::uint8_t>(byte))) == std::ldexp(1.0, byte - 127));
  }
  CHECK(fp32_bits(scale_value(0)) == 0x00400000u);
  CHECK(fp32_bits(scale_value(255)) == fp32_nan_bits);
}
