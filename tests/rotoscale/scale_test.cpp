// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block scales: every rule against its definition in exact arithmetic. oracle/published_scales_test has shipped
// quantizers.
#include "rotoscale/scale.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "oracle/exact_quotient.hpp"
#include "oracle/format_oracle.hpp"
#include "rotoscale/block.hpp"
#include "rotoscale/parallel.hpp"

namespace scale_test {

using namespace rotoscale;

using nan_rule = block_policy::nan_rule;
using infinity_rule = block_policy::infinity_rule;

const float infinity = std::numeric_limits<float>::infinity();
/// All element formats: signed, of at most 8 bits.
std::vector<oracle::format_facts> elements() {
  std::vector<oracle::format_facts> found;
  for (const auto& f : oracle::all_formats()) {
    if (f.is_signed && f.value.bits() <= 8) found.push_back(f);
  }
  return found;
}

constexpr scale_rule rules[] = {scale_rule::floor, scale_rule::ceil, scale_rule::even, scale_rule::rceil};
/// Policies that differ at the ends of the range.
constexpr block_policy end_policies[] = {policies::te_rocm, policies::ocp, policies::nvidia, policies::aiter_nonzero};

/// Scale byte of a positive finite amax by the rule's definition.
int byte_by_definition(double amax, const oracle::format_facts& element, scale_rule rule, const block_policy& policy) {
  const int emax = std::ilogb(element.max);
  const int floor = std::ilogb(amax);
  int e = floor - emax;
  switch (rule) {
    case scale_rule::floor: break;
    case scale_rule::ceil:
      if (std::ldexp(1.0, floor) != amax) ++e;
      break;
    case scale_rule::even: {  // amax rounded, halves away, to the bits of the element's largest number
      const double step = oracle::magnitudes(element).back() - element.max;
      const double rounded = std::floor(std::ldexp(amax, emax - floor) / step + 0.5) * step;
      if (rounded >= std::ldexp(2.0, emax)) ++e;
      if (e + emax == 128) {  // as Inf
        if (policy.infinity == infinity_rule::nan_scale) return 255;
        if (policy.infinity == infinity_rule::largest_scale) return 254;
      }
      break;
    }
    case scale_rule::rceil:  // the least power of two at which amax does not saturate
      e -= 2;
      while (std::ldexp(element.max, e) < amax) ++e;
      break;
  }
  return std::min(std::max(e + 127, int{policy.least_byte}), 254);
}

/// Every rule against its definition, for amax with FP32 bits [first, last) of one exponent, one in `stride`. The byte
/// is monotonic in amax, so bisection finds its changes, and the definition is evaluated there.
std::uint64_t wrong_bytes(const oracle::format_facts& element, std::uint32_t first, std::uint32_t last,
                          std::uint32_t stride) {
  std::uint64_t wrong = 0;
  for (const scale_rule rule : rules) {
    const block_policy& policy = end_policies[(first >> 23) % 4];
    const auto wanted = [&](std::uint32_t u) {
      return byte_by_definition(static_cast<double>(fp32_from_bits(u)), element, rule, policy);
    };
    const int low = wanted(first), high = wanted(last - 1);
    std::uint32_t change = last;  // first magnitude with the byte `high`
    if (low != high) {
      std::uint32_t below = first;
      for (change = last - 1; change - below > 1;) {
        const std::uint32_t middle = below + (change - below) / 2;
        (wanted(middle) == low ? below : change) = middle;
      }
    }
    const format f = element.value;
    for (std::uint32_t u = first; u < change; u += stride) wrong += shared_scale(u, f, rule, policy) != low;
    for (std::uint32_t u = change; u < last; u += stride) wrong += shared_scale(u, f, rule, policy) != high;
    wrong += shared_scale(change - 1, f, rule, policy) != low;
    wrong += shared_scale(last - 1, f, rule, policy) != high;
  }
  return wrong;
}

/// FP32 amax with the given stride, denser in the binade of 1.
void compare_rules(std::uint32_t stride) {
  for (const auto& element : elements()) {
    CAPTURE(element.name);
    thread_pool pool;
    std::atomic<std::uint64_t> wrong{0};
    pool.for_each(254 + 23, [&](index_t i) {
      if (i < 254) {
        const auto field = static_cast<std::uint32_t>(i + 1);
        wrong += wrong_bytes(element, field << 23, (field + 1) << 23, field == 127 ? std::min(stride, 31u) : stride);
      } else {  // subnormal: one exponent each
        wrong += wrong_bytes(element, 1u << (i - 254), 2u << (i - 254), stride);
      }
    });
    CHECK(wrong.load() == 0);
  }
}

TEST_CASE("every rule and element by its definition: both sides of every change, and amax between") {
  compare_rules(4099);
  // A NaN that a policy keeps in amax makes the scale NaN.
  for (const scale_rule rule : rules) {
    for (const block_policy& policy : end_policies) {
      CHECK(shared_scale(fp32_nan_bits, formats::e2m1, rule, policy) == 255);
    }
  }
}

TEST_SUITE("slow") {
  TEST_CASE("every rule and element by its definition: all FP32 amax") { compare_rules(1); }
}

TEST_CASE("zero byte and least byte are the policy's") {
  const block_policy policy{125, 3, nan_rule::ignore, infinity_rule::largest_scale};
  CHECK(shared_scale(0, formats::e2m1, scale_rule::floor, policy) == 125);
  CHECK(shared_scale(1, formats::e2m1, scale_rule::floor, policy) == 3);
  CHECK(shared_scale(fp32_infinity_bits, formats::e2m1, scale_rule::floor, policy) == 0xFE);
}

TEST_CASE("floating-point scales: amax / largest element * factor, each step rounded once") {
  const random_stream random{3, 3};
  const float largest_finite = std::numeric_limits<float>::max();
  for (const format& element : {formats::e2m1, formats::e2m3, formats::e4m3, formats::int8}) {
    for (const format& scale : {formats::ue4m3, formats::ue5m3}) {
      const oracle::rounder round(oracle::facts_of(scale));
      const auto largest = static_cast<float>(oracle::facts_of(element).max);
      CAPTURE(round.f.name);
      std::uint64_t wrong = 0;
      for (std::uint32_t i = 1; i < 50000; ++i) {
        // All exponents with few mantissa bits, and any bits with an exponent near 1.
        const std::uint32_t word = random.word(i);
        const std::uint32_t u =
            i < 32640 ? i << 16 : (word & 0x007FFFFFu) | (127 - 12 + random.word(i + 70000) % 24) << 23;
        const float amax = fp32_from_bits(u);
        const float by_tensor = tensor_encode_factor(amax * static_cast<float>(1 + word % 100), element, scale);
        for (const float factor : {1.0f, 448.0f, 0.3f, 0x1.234567p-100f, largest_finite, by_tensor}) {
          if (!(factor > 0.0f)) continue;
          const float quotient = oracle::exact_quotient(amax, largest);
          const float wanted = quotient == 0.0f ? 0.0f : oracle::exact_product(quotient, factor);
          const block_policy& policy = i % 2 == 0 ? policies::ocp : policies::aiter_nonzero;
          const auto code =
              round(static_cast<double>(wanted), oracle::direction::nearest_even, oracle::excess::saturate);
          wrong += shared_scale(u, element, scale, factor, policy) != std::max<std::uint64_t>(code, policy.least_byte);
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("floating-point scales of zero, NaN and Inf are the policy's") {
  for (const format& scale : {formats::ue4m3, formats::ue5m3}) {
    const auto byte = [&](std::uint32_t amax, const block_policy& policy) {
      return std::uint64_t{shared_scale(amax, formats::e2m1, scale, 1.0f, policy)};
    };
    const oracle::format_facts& f = oracle::facts_of(scale);
    CHECK(byte(0, {5, 3, nan_rule::ignore, infinity_rule::nan_scale}) == 5);
    CHECK(byte(1, {5, 3, nan_rule::ignore, infinity_rule::nan_scale}) == 3);
    CHECK(byte(1, policies::ocp) == 0);
    CHECK(byte(fp32_nan_bits, policies::nvidia) == f.nan_code);
    CHECK(byte(fp32_infinity_bits, policies::ocp) == f.nan_code);
    CHECK(byte(fp32_infinity_bits, policies::nvidia) == f.max_code);
    CHECK(byte(fp32_infinity_bits, policies::primus) == f.max_code);
    CHECK(byte(0x7F7FFFFFu, policies::ocp) == f.max_code);
  }
}

TEST_CASE("the tensor's factor: largest scale times largest element, over amax, at most FLT_MAX") {
  const random_stream random{4, 4};
  const float largest_finite = std::numeric_limits<float>::max();
  for (const format& element : {formats::e2m1, formats::e4m3}) {
    for (const format& scale : {formats::ue4m3, formats::ue5m3}) {
      const double product = oracle::facts_of(scale).max * oracle::facts_of(element).max;  // few bits: exact
      for (std::uint32_t i = 1; i < 100000; ++i) {
        const std::uint32_t u = i < 32640 ? i << 16 : random.word(i) & fp32_magnitude_mask;
        if (u == 0 || u >= fp32_infinity_bits) continue;
        const float amax = fp32_from_bits(u);
        const float want = std::min(oracle::exact_quotient(static_cast<float>(product), amax), largest_finite);
        REQUIRE(fp32_bits(tensor_encode_factor(amax, element, scale)) == fp32_bits(want));
      }
      CHECK(tensor_encode_factor(0.0f, element, scale) == 1.0f);
      CHECK(tensor_encode_factor(0x1p-149f, element, scale) == largest_finite);
    }
  }
  CHECK(tensor_encode_factor(1.0f, formats::e2m1, formats::ue4m3) == 2688.0f);
}

TEST_CASE("the inverse of an element's scale: 1 / (scale * (1 / factor)), each step rounded, at most FLT_MAX") {
  const random_stream random{5, 5};
  const float largest_finite = std::numeric_limits<float>::max();
  for (const format& scale : {formats::ue4m3, formats::ue5m3}) {
    const oracle::format_facts& f = oracle::facts_of(scale);
    for (std::uint64_t code = 0; code <= f.max_code; ++code) {
      for (std::uint32_t i = 0; i < 500; ++i) {
        // Factors 2^-120 to 2^127, and the largest.
        const std::uint32_t word = random.word(500 * code + i);
        const float factor =
            i == 0 ? largest_finite : fp32_from_bits((word & 0x007FFFFFu) | (7 + (word >> 23) % 248) << 23);
        const auto value = static_cast<float>(oracle::magnitude_of(f, code));
        const float divisor = code == 0 ? 0.0f : oracle::exact_product(value, oracle::exact_quotient(1.0f, factor));
        float inverse = divisor == 0.0f ? infinity : 0.0f;  // of Inf: zero
        if (divisor > 0.0f && divisor < infinity) inverse = oracle::exact_quotient(1.0f, divisor);
        REQUIRE(fp32_bits(scale_inverse(scale, static_cast<std::uint8_t>(code), factor)) ==
                fp32_bits(std::min(inverse, largest_finite)));
      }
    }
  }
}

TEST_CASE("scale bytes as exponents and as FP32") {
  for (int byte = 0; byte < 255; ++byte) {
    CHECK(scale_exponent(static_cast<std::uint8_t>(byte)) == byte - 127);
    CHECK(static_cast<double>(scale_value(static_cast<std::uint8_t>(byte))) == std::ldexp(1.0, byte - 127));
  }
  CHECK(fp32_bits(scale_value(0)) == 0x00400000u);
  CHECK(fp32_bits(scale_value(255)) == fp32_nan_bits);
  for (const format& scale : {formats::e8m0, formats::ue4m3, formats::ue5m3}) {
    const auto& f = oracle::facts_of(scale);
    for (std::uint64_t code = 0; code <= f.max_code; ++code) {
      CHECK(static_cast<double>(scale_value(scale, static_cast<std::uint8_t>(code))) == oracle::magnitude_of(f, code));
    }
    CHECK(fp32_bits(scale_value(scale, static_cast<std::uint8_t>(f.nan_code))) == fp32_nan_bits);
  }
}

}  // namespace scale_test
