// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The Hadamard rotation: equal to its matrix where sums are exact, equal to its stated order of FP32 operations
// everywhere.
#include "rotoscale/hadamard.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "rotoscale/philox.hpp"

using namespace rotoscale;

namespace {

double entry(int i, int j) { return __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0 : -1.0; }

/// The order of operations once more, as a recursion: sums and differences of neighbours, then each kind by itself.
std::vector<float> transform(const std::vector<float>& x) {
  const std::size_t n = x.size();
  if (n == 1) return x;
  std::vector<float> sums, differences;
  for (std::size_t i = 0; i < n; i += 2) {
    volatile float sum = x[i] + x[i + 1];  // volatile: rounded to FP32, never fused
    volatile float difference = x[i] - x[i + 1];
    sums.push_back(float{sum});
    differences.push_back(float{difference});
  }
  sums = transform(sums);
  differences = transform(differences);
  std::vector<float> result(n);
  for (std::size_t i = 0; i < n / 2; ++i) {
    result[2 * i] = sums[i];
    result[2 * i + 1] = differences[i];
  }
  return result;
}

std::vector<float> random_values(int n, std::uint64_t seed, bool integers) {
  const random_stream random{seed, 0};
  std::vector<float> x;
  for (int i = 0; i < n; ++i) {
    const std::uint32_t word = random.word(static_cast<std::uint64_t>(i));
    x.push_back(integers ? static_cast<float>(static_cast<int>(word % 2001) - 1000)
                         : fp32_from_bits((word & 0x807FFFFFu) | (120u + (word >> 24) % 16) << 23));
  }
  return x;
}

}  // namespace

TEST_CASE("integers: equal to the matrix product, and an involution") {
  for (const int n : {1, 4, 16, 64}) {
    const auto x = random_values(n, static_cast<std::uint64_t>(n), true);
    auto y = x;
    hadamard(y.data(), n);
    for (int i = 0; i < n; ++i) {
      double sum = 0;  // at most 64 * 1000: exact, in FP32 as well
      for (int j = 0; j < n; ++j) sum += entry(i, j) * static_cast<double>(x[static_cast<std::size_t>(j)]);
      CHECK(static_cast<double>(y[static_cast<std::size_t>(i)]) == sum / std::sqrt(static_cast<double>(n)));
    }
    hadamard(y.data(), n);
    CHECK(y == x);
  }
}

TEST_CASE("any values: butterflies with strides 1, 2, 4, ..., then one multiplication, by bytes") {
  for (const int n : {2, 4, 8, 16, 32, 64, 128}) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      auto x = random_values(n, seed, false);
      auto want = transform(x);
      const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
      CHECK(hadamard_factor(n) == factor);
      for (float& v : want) v *= factor;
      hadamard(x.data(), n);
      REQUIRE(std::memcmp(x.data(), want.data(), x.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("a stride leaves the elements between alone") {
  auto x = random_values(48, 9, false);
  const auto before = x;
  std::vector<float> packed;
  for (int i = 0; i < 16; ++i) packed.push_back(x[static_cast<std::size_t>(3 * i)]);
  hadamard(packed.data(), 16);
  hadamard(x.data(), 16, 3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    CHECK(fp32_bits(x[i]) == fp32_bits(i % 3 == 0 ? packed[i / 3] : before[i]));
  }
}

TEST_CASE("rotate_run: signs first, each run by itself, no points no change") {
  const auto x = random_values(64, 10, false);
  const rotation r{16, {0xA5C30F17u, 0x1234CAFEu}};
  auto got = x;
  rotate_run(got.data(), 64, r);
  for (std::size_t first = 0; first < 64; first += 16) {
    std::vector<float> run(x.begin() + static_cast<std::ptrdiff_t>(first),
                           x.begin() + static_cast<std::ptrdiff_t>(first + 16));
    for (std::size_t i = 0; i < 16; ++i) {
      if ((r.signs[(first + i) / 32] >> ((first + i) % 32)) % 2 == 1) run[i] = -run[i];
    }
    hadamard(run.data(), 16);
    for (std::size_t i = 0; i < 16; ++i) REQUIRE(fp32_bits(got[first + i]) == fp32_bits(run[i]));
  }
  auto same = x;
  rotate_run(same.data(), 64, {0, {0xFFFFFFFFu}});
  CHECK(same == x);
}

TEST_CASE("NaN from any source comes out canonical; without a rotation it is left alone") {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu, 0x7F800000u, 0xFF800000u}) {
    std::array<float, 32> x{};
    x[3] = fp32_from_bits(bits);
    x[5] = std::numeric_limits<float>::infinity();
    rotate_run(x.data(), 32, {16});
    int nans = 0;
    for (const float v : x) {
      if (v != v) CHECK(fp32_bits(v) == fp32_nan_bits);
      nans += v != v;
    }
    CHECK(nans >= 8);
    CHECK(x[16] == 0.0f);  // the other run
    float alone = fp32_from_bits(bits);
    rotate_run(&alone, 1, {0, 0});
    CHECK(fp32_bits(alone) == bits);
  }
}

TEST_CASE("compile time equals run time") {
  constexpr auto make = [] {
    std::array<float, 32> x{};
    for (int i = 0; i < 32; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i * i) / 7.0f;
    return x;
  };
  constexpr auto at_compile_time = [&] {
    auto x = make();
    rotate_run(x.data(), 32, {16, 0x12345678u});
    return x;
  }();
  auto x = make();
  rotate_run(x.data(), 32, {16, 0x12345678u});
  CHECK(x == at_compile_time);
}
