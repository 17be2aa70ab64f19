// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Random streams by purpose. Each use has a separate stream, so no word is used twice.
#pragma once

#include "rotoscale/philox.hpp"

namespace rotoscale::nn {

/// Top byte of a random_stream: purpose of its words (docs/reference/random-words.md).
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

/// The purpose is the top byte of the stream. `rest`, below 2^56, distinguishes uses of one purpose.
ROTOSCALE_HD constexpr random_stream stream_for(std::uint64_t seed, random_purpose purpose, std::uint64_t rest) {
  return {seed, static_cast<std::uint64_t>(purpose) << 56 | rest};
}

}  // namespace rotoscale::nn
