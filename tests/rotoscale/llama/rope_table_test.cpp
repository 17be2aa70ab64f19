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

TEST_CASE("linear scaling divides all frequencies") {
  const nn::rope_options c{16, 10000.0, nn::rope_scaling{"linear", 4.0}};
  for (index_t i = 0; i < 8; ++i) {
    CHECK(nn::rope_frequency(c, i) == std::pow(10000.0, -2.0 * static_cast<double>(i) / 16) / 4.0);
  }
}

}  // namespace rope_table_test
