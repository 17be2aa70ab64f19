// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text from a trained model, a byte at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/tokenizer.hpp"
#include "rotoscale/train/session.hpp"

namespace rotoscale::program {

struct sample_options {
  std::string prompt = "In the beginning";
  int tokens = 200;
  double temperature = 0.8;  ///< 0: always the likeliest token
  int top_k = 40;            ///< 0: all tokens
  std::uint64_t seed = 1;
  bool begins = false;  ///< with the tokenizer's begin of text
  bool cache = true;    ///< keep keys and values, so that a token costs one token's pass
};

/// Calls `emit` with each new byte. The same seed gives the same text.
void sample(train::session& s, const nn::step_inputs& now, const sample_options& options, const tokenizer& t,
            const std::function<void(std::string_view)>& emit);

}  // namespace rotoscale::program
