// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The branch-free conversions equal encode() and convert(), for single numbers and in lanes.
#include "rotoscale/detail/fast_round.hpp"

#include <doctest/doctest.h>

#include "rotoscale/parallel.hpp"
#include "rotoscale/philox.hpp"

namespace fast_round_test {

using namespace rotoscale;
using namespace rotoscale::detail;

constexpr auto width = static_cast<std::uint32_t>(lane_count);

/// Number of a register's inputs u, u + step, ... that any conversion gets wrong.
template <format F>
int wrong_codes(std::uint32_t u, std::uint32_t step) {
  int wrong = 0;
  lanes_u32 lanes;
  for (std::uint32_t l = 0; l < width; ++l) lanes[l] = u + l * step;
  fast_encode<F>(lanes);
  for (std::uint32_t l = 0; l < width; ++l) {
    std::uint32_t one = u + l * step;
    const auto want = encode(F, fp32_from_bits(one));
    fast_encode<F>(one);
    wrong += one != want;
    wrong += lanes[l] != want;
  }
  return wrong;
}

template <format F>
int wrong_stochastic_codes(std::uint32_t u, std::uint32_t step, std::uint32_t word, int count) {
  int wrong = 0;
  lanes_u32 x, magnitudes;
  for (std::uint32_t l = 0; l < width; ++l) x[l] = u + l * step;
  magnitudes = x & fp32_magnitude_mask;
  stochastic_magnitude<F>(magnitudes, broadcast(word << (32 - count)));
  add_sign<F>(magnitudes, x);
  for (std::uint32_t l = 0; l < width; ++l) {
    const std::uint32_t bits = u + l * step;
    const auto want = encode(F, fp32_from_bits(bits), rounding::stochastic, overflow::saturate, {word, count});
    std::uint32_t one = bits & fp32_magnitude_mask;
    stochastic_magnitude<F>(one, word << (32 - count));
    add_sign<F>(one, bits);
    wrong += one != want;
    wrong += magnitudes[l] != want;
  }
  return wrong;
}

int wrong_bf16(std::uint32_t u, std::uint32_t step) {
  int wrong = 0;
  lanes_u32 lanes, numbers;
  for (std::uint32_t l = 0; l < width; ++l) lanes[l] = u + l * step;
  numbers = lanes;
  round_to_bf16(lanes);
  round_number_to_bf16(numbers);
  for (std::uint32_t l = 0; l < width; ++l) {
    std::uint32_t one = u + l * step, number = one;
    const auto want = static_cast<std::uint32_t>(
        encode(formats::bf16, fp32_from_bits(one), rounding::nearest_even, overflow::to_inf) << 16);
    round_number_to_bf16(number);
    wrong += !fp32_is_nan(one) && (number != want || numbers[l] != want);
    round_to_bf16(one);
    wrong += one != want;
    wrong += lanes[l] != want;
  }
  return wrong;
}

int wrong_anywhere(std::uint32_t u, std::uint32_t step) {
  return wrong_bf16(u, step) + wrong_codes<formats::e2m1>(u, step) + wrong_codes<formats::e2m3>(u, step) +
         wrong_codes<formats::e3m2>(u, step) + wrong_codes<formats::e4m3>(u, step) +
         wrong_codes<formats::e5m2>(u, step) + wrong_codes<formats::int8>(u, step);
}

int wrong_stochastic_anywhere(std::uint32_t u, std::uint32_t step, std::uint32_t word, int count) {
  return wrong_stochastic_codes<formats::e2m1>(u, step, word, count) +
         wrong_stochastic_codes<formats::e2m3>(u, step, word, count) +
         wrong_stochastic_codes<formats::e3m2>(u, step, word, count) +
         wrong_stochastic_codes<formats::e4m3>(u, step, word, count) +
         wrong_stochastic_codes<formats::e5m2>(u, step, word, count) +
         wrong_stochastic_codes<formats::int8>(u, step, word, count);
}

TEST_CASE("every sign, exponent and leading half of the mantissa, with what decides a tie below it") {
  long long wrong = 0;
  for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
    for (std::uint32_t high = 0; high < 0x10000; high += width) wrong += wrong_anywhere(high << 16 | low, 0x10000);
  }
  CHECK(wrong == 0);
}

TEST_CASE("stochastic: every sign, exponent and leading mantissa bits, words at the thresholds, all numbers of bits") {
  long long wrong = 0;
  const random_stream random{5, 6};
  for (std::uint32_t high = 0; high < 0x10000; high += width) {
    const std::uint32_t words[] = {0, ~0u, random.word(high), 0x80000000u - (high & 1)};
    for (const std::uint32_t word : words)
      wrong += wrong_stochastic_anywhere(high << 16 | (word & 0xFFFF), 0x10000, word, 32);
    const int count = 1 + static_cast<int>(high / width % 32);
    wrong += wrong_stochastic_anywhere(high << 16 | 1, 0x10000, random.word(high), count);
    // E2M1's fraction with mantissa bits m is m << 10. The words are the least that carries and the one below it.
    const std::uint32_t fraction = (high & 0x3F) << 26;
    wrong += wrong_stochastic_anywhere(high << 16, 0, 0u - fraction, 32);
    wrong += wrong_stochastic_anywhere(high << 16, 0, 0u - fraction - 1, 32);
  }
  CHECK(wrong == 0);
}

TEST_CASE("magnitudes of the unsigned scale format") {
  long long wrong = 0;
  for (std::uint32_t u = 0; u <= fp32_nan_bits - 4099; u += 4099) {
    std::uint32_t m = u;
    nearest_magnitude<formats::ue4m3>(m);
    wrong += m != encode(formats::ue4m3, fp32_from_bits(u));
  }
  CHECK(wrong == 0);
}

TEST_SUITE("slow") {
  TEST_CASE("all 2^32 numbers") {
    thread_pool pool;
    std::atomic<long long> wrong{0};
    const random_stream random{7, 8};
    pool.for_each(0x10000, [&](index_t high) {
      long long here = 0;
      for (std::uint32_t low = 0; low < 0x10000; low += width) {
        const std::uint32_t u = static_cast<std::uint32_t>(high) << 16 | low;
        here += wrong_anywhere(u, 1) + wrong_stochastic_anywhere(u, 1, random.word(u / width), 32);
      }
      wrong += here;
    });
    CHECK(wrong == 0);
  }
}

}  // namespace fast_round_test
