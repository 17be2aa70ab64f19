// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a GPT-2, with the key names of Hugging Face's config.json.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "rotoscale/config.hpp"

namespace rotoscale::gpt2 {

/// Shape of a model. The inner width is 4 n_embd.
struct model_config {
  int vocab_size = 50257;            ///< tokens
  int n_positions = 1024;            ///< longest sequence, in tokens
  int n_embd = 768;                  ///< width of the residual stream
  int n_layer = 12;                  ///< decoder layers
  int n_head = 12;                   ///< heads of attention
  double layer_norm_epsilon = 1e-5;  ///< LayerNorm's epsilon
  double initializer_range = 0.02;   ///< standard deviation of initial weights
};

template <class Visitor>
void describe(Visitor&& v, model_config& c) {
  v("vocab_size", c.vocab_size, "tokens");
  v("n_positions", c.n_positions, "longest sequence, tokens");
  v("n_embd", c.n_embd, "residual width");
  v("n_layer", c.n_layer, "decoder layers");
  v("n_head", c.n_head, "heads of attention");
  v("layer_norm_epsilon", c.layer_norm_epsilon, "LayerNorm epsilon");
  v("initializer_range", c.initializer_range, "standard deviation of initial weights");
}

/// A sentence that names the wrong field, or nothing.
inline std::optional<std::string> find_fault(const model_config& c) {
  // Products of two sizes fit any index, and random streams count linear layers in 14 bits.
  const struct {
    const char* name;
    int value, largest;
  } sizes[] = {{"vocab_size", c.vocab_size, 1 << 24},
               {"n_positions", c.n_positions, 1 << 24},
               {"n_embd", c.n_embd, 1 << 22},
               {"n_layer", c.n_layer, 4000},
               {"n_head", c.n_head, 1 << 22}};
  for (const auto& [name, value, largest] : sizes) {
    if (value < 1 || value > largest) {
      return std::string(name) + ": must be 1 to " + std::to_string(largest) + ", is " + std::to_string(value);
    }
  }
  if (c.n_embd % c.n_head != 0) {
    return "n_head: " + std::to_string(c.n_head) + " does not divide n_embd " + std::to_string(c.n_embd);
  }
  const auto usable = [](double x) { return x > 0 && std::isfinite(x); };
  if (!usable(c.layer_norm_epsilon)) return "layer_norm_epsilon: must be positive and finite";
  if (!usable(c.initializer_range)) return "initializer_range: must be positive and finite";
  return std::nullopt;
}

}  // namespace rotoscale::gpt2
