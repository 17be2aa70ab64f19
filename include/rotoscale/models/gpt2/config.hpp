// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a GPT-2, with the key names of Hugging Face's config.json.
#pragma once

#include <optional>
#include <string>

#include "rotoscale/train/shape_faults.hpp"

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

/// A sentence that names the wrong field, or nullopt. The inner width is within a size's limit too.
inline std::optional<std::string> find_fault(const model_config& c) {
  if (auto f = train::find_size_fault({{"vocab_size", c.vocab_size},
                                       {"n_positions", c.n_positions},
                                       {"n_embd", c.n_embd, 1 << 22},
                                       {"n_layer", c.n_layer, train::max_layers},
                                       {"n_head", c.n_head, 1 << 22}})) {
    return f;
  }
  if (auto f = train::find_divisor_fault({"n_head", c.n_head}, {"n_embd", c.n_embd})) return f;
  return train::find_number_fault(
      {{"layer_norm_epsilon", c.layer_norm_epsilon}, {"initializer_range", c.initializer_range}});
}

}  // namespace rotoscale::gpt2
