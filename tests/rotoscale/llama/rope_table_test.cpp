// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// RoPE's frequencies and table against the oracle, including Llama 3.1's scaling.
#include "rotoscale/nn/rope_table.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "oracle/reference_layers.hpp"

namespace rope_table_test {

using namespace rotoscale;

TEST_CASE("frequencies and table agree with the oracle") {
  for (const bool scaled : {false, true}) {
    for (const int head_dim : {2, 32, 128}) {
      nn::rope_options c;
      c.head_dim = head_dim;
      c.theta = 500000.0;
      std::optional<oracle::rope_scaling> scaling;
      if (scaled) {
        c.scaling = nn::rope_scaling{"llama3", 8.0, 1.0, 4.0, 8192};
        scaling = oracle::rope_scaling{8.0, 1.0, 4.0, 8192.0};
      }
      const auto want = oracle::rope_frequencies(static_cast<std::size_t>(head_dim), c.theta, scaling);
      constexpr index_t seq = 300;
      const nn::rope_table table = nn::make_rope_table(c, seq);
      const auto half = want.size();
      REQUIRE(table.cosine.size() == seq * half);
      REQUIRE(table.sine.size() == seq * half);
      for (std::size_t i = 0; i < half; ++i) {
        // Twelve FP64 operations apart.
        CHECK(std::abs(nn::rope_frequency(c, static_cast<index_t>(i)) / want[i] - 1.0) < 12 * 0x1p-53);
        for (std::size_t t = 0; t < seq; ++t) {
          // Half a unit in the last place of FP32 numbers up to 1, plus the angle's error.
          const double angle = static_cast<double>(t) * want[i];
          CHECK(std::abs(static_cast<double>(table.cosine[t * half + i]) - std::cos(angle)) < 0x1p-25 + 1e-12);
          CHECK(std::abs(static_cast<double>(table.sine[t * half + i]) - std::sin(angle)) < 0x1p-25 + 1e-12);
        }
      }
    }
  }
}

TEST_CASE("linear and yarn: frequencies and amplitude of transformers' functions") {
  nn::rope_options c;
  c.head_dim = 16;
  c.scaling = nn::rope_scaling{"linear", 4.0};
  for (index_t i = 0; i < 8; ++i) {
    CHECK(nn::rope_frequency(c, i) == std::pow(10000.0, -2.0 * static_cast<double>(i) / 16) / 4.0);
  }
  CHECK(nn::rope_amplitude(c) == 1.0);
  // _compute_yarn_parameters(head_dim 16, theta 10000, factor 4, original 64), in FP64.
  const auto agree = [&](const std::vector<double>& want, double amplitude) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      CHECK(std::abs(nn::rope_frequency(c, static_cast<index_t>(i)) / want[i] - 1.0) < 1e-14);
    }
    CHECK(std::abs(nn::rope_amplitude(c) - amplitude) < 1e-15);
    const nn::rope_table table = nn::make_rope_table(c, 2);
    CHECK(table.cosine[0] == static_cast<float>(nn::rope_amplitude(c)));
    CHECK(std::abs(static_cast<double>(table.sine[8]) - amplitude * std::sin(want[0])) < 0x1p-24);
  };
  c.scaling = nn::rope_scaling{"yarn", 4.0, 1.0, 4.0, 64};
  agree({1.0, 0.23717082451262847, 0.05, 0.007905694150420948, 0.0025, 0.0007905694150420947, 0.00025,
         7.905694150420948e-05},
        1.138629436111989);
  c.scaling->beta_fast = 16.0;
  c.scaling->beta_slow = 2.0;
  c.scaling->truncate = false;
  c.scaling->mscale = 0.7;
  c.scaling->mscale_all_dim = 0.5;
  agree({1.0, 0.14849024701094485, 0.025, 0.007905694150420948, 0.0025, 0.0007905694150420947, 0.00025,
         7.905694150420948e-05},
        1.0259286501478284);
  c.scaling->attention_factor = 1.5;
  CHECK(nn::rope_amplitude(c) == 1.5);
}

}  // namespace rope_table_test
