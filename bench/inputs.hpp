// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Inputs that all benchmarks share: reproducible numbers in [-1, 1) and the linear layers of the demo's model.
#pragma once

#include <vector>

#include "rotoscale/config.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::bench {

inline std::vector<float> random_values(index_t count, std::uint64_t stream) {
  const random_stream random{1, stream};
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0x1p-31f * static_cast<float>(random.word(i)) - 1.0f;
  return x;
}

/// Tokens of one step of examples/demo.sh: batch 16, sequence 128.
inline constexpr index_t batch = 16;
inline constexpr index_t sequence = 128;
inline constexpr index_t tokens = batch * sequence;

struct linear_shape {
  const char* name;
  index_t out, in;
};
/// One decoder layer of the default model_config, which the demo uses.
inline constexpr linear_shape linear_shapes[] = {
    {"qkv", 256, 128}, {"o", 128, 128}, {"gate_up", 704, 128}, {"down", 128, 352}};

}  // namespace rotoscale::bench
