// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Conversions equal the reference rounding, code by code. Delayed scaling equals Transformer Engine's.
#include "rotoscale/nn/cpu/quantize.hpp"

#include <limits>

#include "../numbers.hpp"

namespace cpu_quantize_test {

using namespace rotoscale;
using namespace rotoscale::testing;
namespace nn = rotoscale::nn;
namespace cpu = rotoscale::nn::cpu;
namespace op = rotoscale::nn::op;

/// One tensor's state of delayed scaling.
struct scaling_case {
  float scale = 3.0f, inverse = 1.0f / 3.0f, amax = 0.0f, largest = 448.0f;
  std::vector<float> history;

  explicit scaling_case(std::vector<float> past) : history(std::move(past)) {}
  void update(const nn::delayed_scaling& rule, float seen) {
    amax = seen;
    thread_pool pool(1);
    cpu::compute(op::update_scales::in{rule},
                 op::update_scales::out{
                     {1, static_cast<int>(history.size()), &scale, &inverse, &amax, history.data(), &largest}},
                 pool);
  }
};

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

TEST_CASE("fp8_bits is encode for every BF16 number times many scales") {
  const float scales[] = {1.0f, 448.0f, 57344.0f, 3.0f, 0x1p-20f, 0x1p20f, 1.0f / 3.0f, 0x1p-126f, 3.4e38f, 0.1f};
  long long wrong = 0;
  for (const float scale : scales) {
    for (std::uint32_t b = 0; b < 0x10000; ++b) {
      const float x = fp32_from_bits(b << 16) * scale;
      wrong += cpu::detail::fp8_bits<formats::e4m3>(x) != encode(formats::e4m3, x);
      wrong += cpu::detail::fp8_bits<formats::e5m2>(x) != encode(formats::e5m2, x);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("bf16_bits and fp8_bits are encode over a scan of FP32, ties and specials included") {
  long long wrong = 0;
  const auto check = [&](std::uint32_t u) {
    const float x = fp32_from_bits(u);
    wrong += cpu::detail::bf16_bits(x) != encode(formats::bf16, x, rounding::nearest_even, overflow::to_inf);
    wrong += cpu::detail::fp8_bits<formats::e4m3>(x) != encode(formats::e4m3, x);
    wrong += cpu::detail::fp8_bits<formats::e5m2>(x) != encode(formats::e5m2, x);
  };
  for (std::uint64_t u = 0; u < 0x100000000u; u += 9973) check(static_cast<std::uint32_t>(u));
  for (std::uint32_t high = 0; high < 0x10000; high += 3) {  // halfway between two BF16 numbers, and its neighbours
    for (const std::uint32_t low : {0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) check(high << 16 | low);
  }
  CHECK(wrong == 0);
}

TEST_CASE("delayed scaling: (largest / amax) / 2^margin from the most recent entry or the largest one") {
  using enum nn::amax_algorithm;
  scaling_case recent({64.0f, 2.0f, 1.0f});
  recent.update({3, most_recent, 0}, 4.0f);
  CHECK(recent.history == std::vector<float>{4.0f, 64.0f, 2.0f});  // shifted; the oldest entry is dropped
  CHECK(recent.scale == 112.0f);
  CHECK(recent.inverse == 1.0f / 112.0f);
  CHECK(recent.amax == 0.0f);

  scaling_case most({64.0f, 2.0f, 1.0f});
  most.update({3, max, 0}, 4.0f);
  CHECK(most.scale == 7.0f);
  most.update({3, max, 0}, 1.0f);
  most.update({3, max, 0}, 1.0f);
  CHECK(most.scale == 112.0f);  // 64 has left the window
  CHECK(most.history == std::vector<float>{1.0f, 1.0f, 4.0f});

  scaling_case margin({0.0f});
  margin.update({1, max, 3}, 4.0f);
  CHECK(margin.scale == 14.0f);
  CHECK(margin.inverse == 1.0f / 14.0f);
  margin.update({1, max, -2}, 4.0f);
  CHECK(margin.scale == 448.0f);
}

TEST_CASE("delayed scaling: an amax of zero or no number keeps the scale, an infinite scale is FLT_MAX") {
  using enum nn::amax_algorithm;
  for (const float seen : {0.0f, infinity, not_a_number}) {
    scaling_case s({0.0f, 0.0f});
    s.update({2, most_recent, 0}, seen);
    CHECK(s.scale == 3.0f);
    CHECK(s.inverse == 1.0f / 3.0f);
    CHECK(s.amax == 0.0f);
  }
  scaling_case zero_now({8.0f, 0.0f});  // "max" still sees the entry before
  zero_now.update({2, max, 0}, 0.0f);
  CHECK(zero_now.scale == 56.0f);
  zero_now.update({2, max, 0}, 0.0f);
  zero_now.update({2, max, 0}, 0.0f);
  CHECK(zero_now.scale == 56.0f);  // only zeros: unchanged

  scaling_case tiny({0.0f});
  tiny.update({1, max, 0}, 0x1p-130f);
  CHECK(tiny.scale == std::numeric_limits<float>::max());
  CHECK(tiny.inverse == 1.0f / std::numeric_limits<float>::max());
}

TEST_CASE("delayed scaling: tensors do not see each other") {
  std::vector<float> scale{1, 1}, inverse{1, 1}, amax{4, 0}, history{0, 0, 8, 0};
  const std::vector<float> largest{448, 57344};
  thread_pool pool(1);
  cpu::compute(
      op::update_scales::in{{2, nn::amax_algorithm::max, 0}},
      op::update_scales::out{{2, 2, scale.data(), inverse.data(), amax.data(), history.data(), largest.data()}}, pool);
  CHECK(scale == std::vector<float>{112, 7168});
  CHECK(history == std::vector<float>{4, 0, 0, 8});
}

}  // namespace cpu_quantize_test
