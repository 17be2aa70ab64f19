// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The error bounds stated in nn/math.hpp, against the C library in double precision. Also special values, the stated
// order of sums, and the steps in docs/reference/numerics.md, by bits.
#include "rotoscale/nn/math.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "rotoscale/ex2_approx.hpp"

namespace math_test {

using namespace rotoscale;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Distance in units of FP32's last place at `exact`, which is normal.
double last_places(float got, double exact) {
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
}

/// Largest error over the FP32 numbers with bits first, first + stride, ... <= last.
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

// Lambdas, because an always-inline function has no address at some optimization levels.
constexpr auto our_exp = [](float x) { return nn::exp(x); };
constexpr auto our_log = [](float x) { return nn::log(x); };

double worst_exp(std::uint32_t stride) {
  const auto exact = [](double x) { return std::exp(x); };
  const double positive = worst(0, fp32_bits(88.72f), stride, our_exp, exact);
  const double negative = worst(fp32_bits(-0.0f), fp32_bits(-87.33f), stride, our_exp, exact);
  return std::fmax(positive, negative);
}

double worst_log(std::uint32_t stride) {
  // log 1 is 0, not a normal number; another case tests it.
  const auto exact = [](double x) { return std::log(x); };
  const double below = worst(0x00800000u, fp32_bits(1.0f) - 1, stride, our_log, exact);
  const double above = worst(fp32_bits(1.0f) + 1, 0x7F7FFFFFu, stride, our_log, exact);
  return std::fmax(below, above);
}

/// The steps of one function in docs/reference/numerics.md. A value is 32 bits of any type.
class stated_function {
 public:
  explicit stated_function(const std::string& name) {
    const char* golden = std::getenv("ROTOSCALE_GOLDEN");
    REQUIRE_MESSAGE(golden != nullptr, "ROTOSCALE_GOLDEN must name tests/golden");
    std::ifstream text(std::filesystem::path(golden).parent_path().parent_path() / "docs/reference/numerics.md");
    std::string line;
    while (std::getline(text, line) && line != name + "(x)") {
    }
    while (std::getline(text, line) && line != "```") {
      for (char& c : line) c = c == ',' || c == '(' || c == ')' ? ' ' : c;
      std::istringstream words(line);
      std::vector<std::string> step;
      for (std::string word; words >> word;) step.push_back(word);
      REQUIRE(step.size() >= 4);
      REQUIRE(std::stoul(step[0]) == steps_.size() + 1);
      steps_.push_back({step.begin() + 1, step.end()});
    }
    REQUIRE(!steps_.empty());
  }
  std::size_t size() const { return steps_.size(); }

  float operator()(float x) const {
    std::map<std::string, std::uint32_t> now{{"x", fp32_bits(x)}};
    for (const auto& step : steps_) {
      if (step.size() == 7) {  // y = A if B < C
        REQUIRE(step[3] == "if");
        if (!holds(step, now)) continue;
      }
      now[step[0]] = step.size() == 7 ? value(step[2], now, false) : result(step, now);
    }
    return fp32_from_bits(now.at("y"));
  }

 private:
  using values = std::map<std::string, std::uint32_t>;
  static bool is_integer(const std::string& name) { return name[0] >= 'A' && name[0] <= 'Z'; }

  static std::uint32_t value(const std::string& word, const values& now, bool integer) {
    if (const auto found = now.find(word); found != now.end()) return found->second;
    if (word == "inf") return fp32_infinity_bits;
    if (integer) return static_cast<std::uint32_t>(std::stoul(word, nullptr, 0));
    const std::size_t bar = word.find('/');
    const float numerator = std::stof(word);
    return fp32_bits(bar == word.npos ? numerator : numerator / std::stof(word.substr(bar + 1)));
  }
  static bool holds(const std::vector<std::string>& step, const values& now) {
    const bool integer = is_integer(step[4]);
    const std::uint32_t a = value(step[4], now, integer), b = value(step[6], now, integer);
    if (step[5] == ">=") return a >= b;
    const float left = fp32_from_bits(a), right = fp32_from_bits(b);
    return step[5] == "<" ? left < right : step[5] == ">" ? left > right : left != right;
  }
  static std::uint32_t result(const std::vector<std::string>& step, const values& now) {
    const bool integer = is_integer(step[0]);
    const auto at = [&](std::size_t i) { return value(step[i], now, integer); };
    const auto number = [&](std::size_t i) { return fp32_from_bits(at(i)); };
    if (step.size() == 3) return at(2);
    if (step[2] == "fma") return fp32_bits(std::fma(number(3), number(4), number(5)));
    if (step[2] == "number") return fp32_bits(static_cast<float>(static_cast<std::int32_t>(now.at(step[3]))));
    REQUIRE(step.size() == 5);
    const char op = step[3][0];
    if (integer) {
      const std::uint32_t a = at(2), b = at(4);
      return op == '+' ? a + b : op == '-' ? a - b : op == '<' ? a << b : a >> b;
    }
    const float a = number(2), b = number(4);
    return fp32_bits(op == '+' ? a + b : op == '-' ? a - b : op == '*' ? a * b : a / b);
  }

  std::vector<std::vector<std::string>> steps_;
};

/// Compares over bits first, first + stride, ... <= last. All NaNs are equal.
template <class Ours>
int differences(const stated_function& stated, std::uint32_t first, std::uint32_t last, std::uint32_t stride,
                const Ours& ours) {
  int wrong = 0;
  for (std::uint64_t u = first; u <= last; u += stride) {
    const float x = fp32_from_bits(static_cast<std::uint32_t>(u)), want = stated(x), got = ours(x);
    wrong += std::isnan(want) ? !std::isnan(got) : fp32_bits(want) != fp32_bits(got);
  }
  return wrong;
}

TEST_CASE("exp, exp2 and log are the steps of docs/reference/numerics.md") {
  const stated_function exp("exp"), exp2("exp2"), log("log");
  CHECK(exp.size() + exp2.size() + log.size() == 50);
  const auto our_exp2 = [](float x) { return nn::exp2(x); };
  // Sparsely over all bits, densely where results are neither 0 nor Inf, including the ends.
  CHECK(differences(exp, 0, 0xFFFFFFFFu, 1000003, our_exp) == 0);
  CHECK(differences(log, 0x00800000u, 0xFFFFFFFFu, 1000003, our_log) == 0);
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    CHECK(differences(exp, sign | fp32_bits(0.001f), sign | fp32_bits(89.0f), 30011, our_exp) == 0);
    CHECK(differences(exp2, sign | fp32_bits(0.001f), sign | fp32_bits(61.0f), 30011, our_exp2) == 0);
  }
  CHECK(differences(log, fp32_bits(0.25f), fp32_bits(4.0f), 10007, our_log) == 0);
  for (const float end : {88.72f, -87.33f}) {
    CHECK(differences(exp, fp32_bits(end) - 3, fp32_bits(end) + 3, 1, our_exp) == 0);
  }
  CHECK(differences(exp2, fp32_bits(-60.0f) - 3, fp32_bits(-60.0f) + 3, 1, our_exp2) == 0);
  CHECK(differences(log, fp32_bits(0x1.6a09e6p-1f) - 3, fp32_bits(0x1.6a09e6p-1f) + 3, 1, our_log) == 0);
}

TEST_CASE("exp is within 2 units in the last place") { CHECK(worst_exp(149) < 2.0); }

TEST_CASE("exp2_normal has exp2's bits for all magnitudes to 60") {
  std::uint64_t differing = 0;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    const std::uint32_t last = fp32_bits(60.0f);
    for (std::uint32_t u = 0; u <= last; u += u + 1009 > last && u < last ? last - u : 1009) {
      const float x = fp32_from_bits(sign | u);
      differing += fp32_bits(nn::exp2_normal(x)) != fp32_bits(nn::exp2(x));
    }
  }
  CHECK(differing == 0);
}

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

/// FNV-1a over the bytes of ex2_approx(x) for `count` numbers, by bits from `first` in steps of `stride`, then for
/// their negatives.
std::uint64_t digest_of_ex2(std::uint32_t first, std::uint32_t count, std::uint32_t stride) {
  std::uint64_t digest = 0xCBF29CE484222325u;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (std::uint32_t i = 0; i < count; i += stride) {
      const std::uint32_t y = fp32_bits(ex2_approx(fp32_from_bits((first + i) | sign)));
      for (int shift = 0; shift < 32; shift += 8) digest = (digest ^ (y >> shift & 255)) * 0x100000001B3u;
    }
  }
  return digest;
}

TEST_CASE("ex2_approx has the bits of ex2.approx.ftz.f32 on an H200") {
  // On [1, 2) and (-2, -1]: the digest of the device's results. On [2^-8, 1) and (-1, -2^-8]: the digest of this
  // function, after a comparison of all 2^32 inputs with the device (`rotoscale-probe --exp2 1`).
  CHECK(digest_of_ex2(fp32_bits(1.0f), 1u << 23, 1) == 0xF0A568FA5763F43Bu);
  CHECK(digest_of_ex2(fp32_bits(0x1p-8f), 8u << 23, 7) == 0xCA1D1C80681E842Eu);
}

TEST_CASE("ex2_approx is within 2^-22 of 2^x, exact at integers, and flushes") {
  double most = 0;
  for (std::uint32_t u = 0; u < fp32_bits(126.0f); u += 4999) {
    for (const float x : {fp32_from_bits(u), -fp32_from_bits(u)}) {
      const double exact = std::exp2(static_cast<double>(x));
      most = std::max(most, std::abs(static_cast<double>(ex2_approx(x)) / exact - 1));
    }
  }
  CHECK(most < 0x1p-22);
  for (int n = -126; n <= 127; ++n) CHECK(ex2_approx(static_cast<float>(n)) == std::ldexp(1.0f, n));
  for (const float x : {0.0f, -0.0f, 1e-40f, -1e-40f}) CHECK(ex2_approx(x) == 1.0f);
  for (const float x : {std::nextafter(-126.0f, -127.0f), -127.5f, -1e30f, -infinity}) {
    CHECK(fp32_bits(ex2_approx(x)) == 0u);
  }
  for (const float x : {128.0f, 1e30f, infinity}) CHECK(ex2_approx(x) == infinity);
  for (const std::uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u}) {
    CHECK(fp32_bits(ex2_approx(fp32_from_bits(nan))) == 0x7FFFFFFFu);
  }
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
  // No subnormal results: the last nonzero result is normal.
  CHECK(nn::exp(-87.33f) >= std::numeric_limits<float>::min());
  CHECK(fp32_bits(nn::exp(std::nextafter(-87.33f, -100.0f))) == 0u);
  CHECK(fp32_bits(nn::exp(-infinity)) == 0u);
  CHECK(fp32_bits(nn::exp(-std::numeric_limits<float>::max())) == 0u);
  CHECK(std::isnan(nn::exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(nn::exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("log is within 3 units in the last place") {
  CHECK(worst_log(149) < 3.0);
  // Every number near 1, where cancellation would show.
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
    // Lane j sums the elements j, j + 16, ...; the lanes are folded by halves.
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

}  // namespace math_test
