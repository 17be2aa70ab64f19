// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a Llama-3-style model, with the key names of Hugging Face's config.json.
#pragma once

#include <optional>
#include <string>

#include "rotoscale/nn/rope_table.hpp"
#include "rotoscale/train/shape_faults.hpp"

namespace rotoscale::llama {

using namespace train;

/// Shape of a model. find_fault checks it.
struct model_config {
  int vocab_size = 256;                          ///< tokens; 256: bytes
  int hidden_size = 128;                         ///< width of the residual stream
  int intermediate_size = 352;                   ///< width of SwiGLU
  int num_hidden_layers = 4;                     ///< decoder layers
  int num_attention_heads = 4;                   ///< query heads
  int num_key_value_heads = 2;                   ///< key and value heads, a divisor of the query heads
  int head_dim = 0;                              ///< 0: hidden_size / num_attention_heads
  int max_position_embeddings = 2048;            ///< longest sequence, in tokens
  double rms_norm_eps = 1e-5;                    ///< RMSNorm's epsilon
  double rope_theta = 10000.0;                   ///< RoPE's base
  std::optional<nn::rope_scaling> rope_scaling;  ///< stretched frequencies, or none
  bool tie_word_embeddings = false;              ///< the output head is the embedding
  double initializer_range = 0.02;               ///< standard deviation of initial weights

  /// Width of a head.
  index_t head_size() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
  /// Width of all query heads.
  index_t query_size() const { return num_attention_heads * head_size(); }
  /// Width of all key heads, and of all value heads.
  index_t key_value_size() const { return num_key_value_heads * head_size(); }
  /// Frequencies of RoPE.
  nn::rope_options rope() const { return {head_size(), rope_theta, rope_scaling}; }
};

template <class Visitor>
void describe(Visitor&& v, model_config& c) {
  v("vocab_size", c.vocab_size, "tokens (256: bytes)");
  v("hidden_size", c.hidden_size, "residual width");
  v("intermediate_size", c.intermediate_size, "SwiGLU width");
  v("num_hidden_layers", c.num_hidden_layers, "decoder layers");
  v("num_attention_heads", c.num_attention_heads, "query heads");
  v("num_key_value_heads", c.num_key_value_heads, "key-value heads (grouped-query attention)");
  v("head_dim", c.head_dim, "head width; 0: hidden_size / num_attention_heads");
  v("max_position_embeddings", c.max_position_embeddings, "longest sequence, tokens");
  v("rms_norm_eps", c.rms_norm_eps, "RMSNorm epsilon");
  v("rope_theta", c.rope_theta, "RoPE base");
  v("rope_scaling", c.rope_scaling, "RoPE scaling, or null");
  v("tie_word_embeddings", c.tie_word_embeddings, "head shares the embedding");
  v("initializer_range", c.initializer_range, "standard deviation of initial weights");
}

/// A sentence that names the wrong field, or nullopt.
inline std::optional<std::string> find_fault(const model_config& c) {
  if (auto f = find_size_fault({{"vocab_size", c.vocab_size},
                                {"hidden_size", c.hidden_size},
                                {"intermediate_size", c.intermediate_size},
                                {"num_hidden_layers", c.num_hidden_layers, max_layers},
                                {"num_attention_heads", c.num_attention_heads},
                                {"num_key_value_heads", c.num_key_value_heads},
                                {"max_position_embeddings", c.max_position_embeddings}})) {
    return f;
  }
  const size_field heads{"num_attention_heads", c.num_attention_heads};
  if (auto f = find_divisor_fault({"num_key_value_heads", c.num_key_value_heads}, heads)) return f;
  if (c.head_dim < 0 || c.head_dim > 65536) return "head_dim: must be between 0 and 65536";
  if (c.head_dim == 0) {
    if (auto f = find_divisor_fault(heads, {"hidden_size", c.hidden_size})) return f;
  }
  if (c.head_size() % 2 != 0) return "head_dim: must be even for RoPE, is " + std::to_string(c.head_size());
  if (auto f = find_number_fault({{"rms_norm_eps", c.rms_norm_eps},
                                  {"rope_theta", c.rope_theta},
                                  {"initializer_range", c.initializer_range}})) {
    return f;
  }
  if (!c.rope_scaling) return std::nullopt;
  if (auto f = find_fault(*c.rope_scaling)) return "rope_scaling." + *f;
  return std::nullopt;
}

}  // namespace rotoscale::llama
