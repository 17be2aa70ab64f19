// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Random streams by purpose: every use has a separate stream, so that no two share a word.
#pragma once

#include "rotoscale/philox.hpp"

namespace rotoscale::nn {

/// Top byte of a random_stream: which purpose its words serve (docs/reference/layers.md).
enum class random_purpose : std::uint64_t {
  rounding = 1,
  signs = 2,
  initial_weights = 3,
  data_order = 4,
  sampling = 5,
  dropout = 6,
  initial_adapters = 7,
  synthetic_tokens = 8
};

/// The purpose is the top byte of the stream, `rest` (below 2^56) what tells its uses apart.
ROTOSCALE_HD constexpr random_stream stream_for(std::uint64_t seed, random_purpose purpose, std::uint64_t rest) {
  return {seed, static_cast<std::uint64_t>(purpose) << 56 | rest};
}

}  // namespace rotoscale::nn
