// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The Hadamard rotation equals its matrix if sums are exact, and always equals its stated order of FP32 operations.
#include "rotoscale/hadamard.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "rotoscale/philox.hpp"

namespace hadamard_test {

using namespace rotoscale;

double entry(int i, int j) { return __builtin_popcount(static_cast<unsigned>(i & j)) % 2 == 0 ? 1.0 : -1.0; }

/// The stated order as a recursion: sums and differences of neighbours, then each kind separately.
std::vector<float> transform(const std::vector<float>& x) {
  const std::size_t n = x.size();
  if (n < 2) return std::vector<float>(x.begin(), x.end());
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

TEST_CASE("integers: the matrix product, times the factor; an involution where the factor is a power of two") {
  for (int n = 2; n <= max_run_length; n *= 2) {
    CAPTURE(n);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto x = random_values(n, seed, true);
      auto y = x;
      hadamard(y.data(), n);
      const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
      CHECK(hadamard_factor(n) == factor);
      for (int i = 0; i < n; ++i) {
        double sum = 0;  // at most 256 * 1000: exact also in FP32, so that only the factor's product rounds
        for (int j = 0; j < n; ++j) sum += entry(i, j) * static_cast<double>(x[static_cast<std::size_t>(j)]);
        REQUIRE(y[static_cast<std::size_t>(i)] == static_cast<float>(sum * static_cast<double>(factor)));
      }
      if (std::ilogb(n) % 2 != 0) continue;
      hadamard(y.data(), n);
      REQUIRE(y == x);
    }
  }
}

TEST_CASE("any values: butterflies with strides 1, 2, 4, ..., then one multiplication, by bytes") {
  for (int n = 2; n <= max_run_length; n *= 2) {
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      auto x = random_values(n, seed, false);
      auto want = transform(x);
      for (float& v : want) v *= hadamard_factor(n);
      hadamard(x.data(), n);
      REQUIRE(std::memcmp(x.data(), want.data(), x.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("unrotate_run undoes rotate_run: exactly for integers and even powers of two, else within its roundings") {
  const random_stream random{11, 0};
  for (int points = 2; points <= max_run_length; points *= 2) {
    CAPTURE(points);
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      rotation r{points, {}};
      for (std::uint32_t i = 0; i < 8; ++i) r.signs[i] = random.word(8 * seed + i);
      for (const bool integers : {true, false}) {
        const auto x = random_values(max_run_length, seed, integers);
        auto y = x;
        rotate_run(y.data(), max_run_length, r);
        REQUIRE(y != x);
        unrotate_run(y.data(), max_run_length, r);
        if (integers && std::ilogb(points) % 2 == 0) {
          REQUIRE(y == x);
          continue;
        }
        // Each transform has log2(points) sums, the factor and its product. Each has a relative error of at most 2^-24
        // per element, hence in the 2-norm, which the exact transform preserves. Twice that, plus 1 % for higher
        // orders.
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          error += std::pow(static_cast<double>(y[i]) - static_cast<double>(x[i]), 2);
          norm += std::pow(static_cast<double>(x[i]), 2);
        }
        REQUIRE(std::sqrt(error / norm) <= 2.02 * (std::ilogb(points) + 2) * 0x1p-24);
      }
    }
  }
  auto x = random_values(32, 3, false);
  const auto before = x;
  unrotate_run(x.data(), 32, {0, {0xFFFFFFFFu}});
  CHECK(x == before);
}

TEST_CASE("signs: bit i of the 256-bit mask negates element i of the run, whatever the points") {
  for (const int points : {2, 16, 256}) {
    for (int bit = 0; bit < max_run_length; ++bit) {
      rotation r{points, {}};
      r.signs[bit / 32] = 1u << (bit % 32);
      auto got = random_values(max_run_length, 5, false);
      auto want = got;
      auto& negated = want[static_cast<std::size_t>(bit)];
      negated = -negated;
      for (int first = 0; first < max_run_length; first += points) hadamard(want.data() + first, points);
      rotate_run(got.data(), max_run_length, r);
      REQUIRE(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
      for (int i = 0; i < max_run_length; ++i) REQUIRE(r.negates(i) == (i == bit));
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
    rotate_run(&alone, 1, {});
    CHECK(fp32_bits(alone) == bits);
  }
}

TEST_CASE("compile time equals run time") {
  constexpr auto make = [] {
    std::array<float, 256> x{};
    for (int i = 0; i < 256; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i * i) / 7.0f;
    return x;
  };
  constexpr auto rotated = [](auto x, int points) {
    rotate_run(x.data(), 256, {points, {0x12345678u, 1, 2, 3, 4, 5, 6, 0xFEDCBA98u}});
    return x;
  };
  constexpr auto few = rotated(make(), 2), sixteen = rotated(make(), 16), many = rotated(make(), 256);
  CHECK(rotated(make(), 2) == few);
  CHECK(rotated(make(), 16) == sixteen);
  CHECK(rotated(make(), 256) == many);
}

}  // namespace hadamard_test
