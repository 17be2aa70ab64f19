// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The error bounds that nn/math.hpp states, against the C library in double precision, special values, and the stated
// order of sums.
#include "rotoscale/nn/math.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace rotoscale;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Distance in units of FP32's last place at `exact`, which is normal.
double last_places(float got, double exact) {
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}

/// Worst error over the FP32 numbers with bits first, first + stride, ... <= last.
template <class Ours, class Exact>
double worst(std::uint32_t first, std::uint32_t last, std::uint32_t stride, const Ours& ours, const Exact& exact) {
  double most = 0.0;
  for (std::uint64_t u = first; u <= last; u += stride) {
    const float x = fp32_from_bits(static_cast<std::uint32_t>(u));
    const double error = last_places(ours(x), exact(static_cast<double>(x)));
    if (!(error <= most)) most = error;
  }
  return most;
}

// Lambdas: a function that is always inline has no address that a compiler could call at every optimization.
constexpr auto our_exp = [](float x) { return nn::exp(x); };
constexpr auto our_log = [](float x) { return nn::log(x); };

double worst_exp(std::uint32_t stride) {
  const auto exact = [](double x) { return std::exp(x); };
  const double positive = worst(0, fp32_bits(88.72f), stride, our_exp, exact);
  const double negative = worst(fp32_bits(-0.0f), fp32_bits(-87.33f), stride, our_exp, exact);
  return std::fmax(positive, negative);
}

double worst_log(std::uint32_t stride) {
  // log 1 is no normal number; it has a case of its own.
  const auto exact = [](double x) { return std::log(x); };
  const double below = worst(0x00800000u, fp32_bits(1.0f) - 1, stride, our_log, exact);
  const double above = worst(fp32_bits(1.0f) + 1, 0x7F7FFFFFu, stride, our_log, exact);
  return std::fmax(below, above);
}

}  // namespace

TEST_CASE("exp is within 2 units in the last place") { CHECK(worst_exp(149) < 2.0); }

TEST_CASE("exp2 is within 1.02e-4 of 2^x, and exact at 0") {
  double most = 0;
  for (std::uint32_t u = 0; u < fp32_bits(60.0f); u += 4999) {
    for (const float x : {fp32_from_bits(u), -fp32_from_bits(u)}) {
      most = std::max(most, std::abs(static_cast<double>(nn::exp2(x)) / std::exp2(static_cast<double>(x)) - 1));
    }
  }
  CHECK(most < 1.02e-4);
  CHECK(most > 1e-4);
  CHECK(nn::exp2(0.0f) == 1.0f);
  CHECK(nn::exp2(-0.0f) == 1.0f);
  for (int n = -60; n <= 127; ++n) CHECK(nn::exp2(static_cast<float>(n)) == std::ldexp(1.0f, n));
  CHECK(fp32_bits(nn::exp2(std::nextafter(-60.0f, -61.0f))) == 0u);
  CHECK(fp32_bits(nn::exp2(-infinity)) == 0u);
  CHECK(fp32_bits(nn::exp2(-std::numeric_limits<float>::max())) == 0u);
  CHECK(std::isnan(nn::exp2(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(nn::exp2(-std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(nn::exp2(infinity)));
}

TEST_CASE("exp_of_difference has exp's bits at and below 0") {
  for (std::uint64_t u = 0x80000000u; u <= 0xFF800000u; u += 149) {
    const float x = fp32_from_bits(static_cast<std::uint32_t>(u));
    REQUIRE(fp32_bits(nn::exp_of_difference(x)) == fp32_bits(nn::exp(x)));
  }
  CHECK(nn::exp_of_difference(0.0f) == 1.0f);
  CHECK(nn::exp_of_difference(-infinity) == 0.0f);
  CHECK(std::isnan(nn::exp_of_difference(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("exp: ends of its range and special values") {
  CHECK(nn::exp(0.0f) == 1.0f);
  CHECK(nn::exp(-0.0f) == 1.0f);
  CHECK(last_places(nn::exp(88.72f), std::exp(static_cast<double>(88.72f))) < 2.0);
  CHECK(nn::exp(std::nextafter(88.72f, 100.0f)) == infinity);
  CHECK(nn::exp(infinity) == infinity);
  // No subnormal results: the last one is normal, then comes zero.
  CHECK(nn::exp(-87.33f) >= std::numeric_limits<float>::min());
  CHECK(fp32_bits(nn::exp(std::nextafter(-87.33f, -100.0f))) == 0u);
  CHECK(fp32_bits(nn::exp(-infinity)) == 0u);
  CHECK(fp32_bits(nn::exp(-std::numeric_limits<float>::max())) == 0u);
  CHECK(std::isnan(nn::exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(nn::exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("log is within 3 units in the last place") {
  CHECK(worst_log(149) < 3.0);
  // Where cancellation would show: every number near 1.
  const auto exact = [](double x) { return std::log(x); };
  CHECK(worst(fp32_bits(1.0f) - 100000, fp32_bits(1.0f) - 1, 1, our_log, exact) < 3.0);
  CHECK(worst(fp32_bits(1.0f) + 1, fp32_bits(1.0f) + 100000, 1, our_log, exact) < 3.0);
}

TEST_CASE("log: special values") {
  CHECK(fp32_bits(nn::log(1.0f)) == 0u);
  CHECK(nn::log(infinity) == infinity);
  // A NaN must not become a plausible loss.
  CHECK(std::isnan(nn::log(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(nn::log(-std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("ordered_sum adds in the stated order, bit for bit") {
  for (index_t n = 0; n <= 100; ++n) {
    std::vector<float> x;
    for (index_t i = 0; i < n; ++i)
      x.push_back(std::ldexp(std::sin(static_cast<float>(i + 1)), static_cast<int>(i % 23)));
    // Lane j takes the elements j, j + 16, ...; then the lanes are folded by halves.
    std::vector<float> lane(16, 0.0f);
    for (std::size_t i = 0; i < x.size(); ++i) lane[i % 16] += x[i];
    for (const std::size_t width : {8u, 4u, 2u, 1u}) {
      for (std::size_t j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    const float got = nn::ordered_sum(n, [&](index_t i, float sum) { return sum + x[static_cast<std::size_t>(i)]; });
    CHECK(fp32_bits(got) == fp32_bits(lane[0]));
  }
}

TEST_SUITE("slow") {
  TEST_CASE("exp and log: every FP32 number of their range") {
    CHECK(worst_exp(1) < 2.0);
    CHECK(worst_log(1) < 3.0);
  }
}
