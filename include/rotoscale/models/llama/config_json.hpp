// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Hugging Face's config.json of a LlamaForCausalLM, as transformers 4 and 5 write it, and model_config.
#pragma once

#include <string>
#include <vector>

#include "rotoscale/models/config_keys.hpp"
#include "rotoscale/models/llama/config.hpp"
#include "rotoscale/models/rope_keys.hpp"

namespace rotoscale::llama {

namespace detail {

/// Checks RoPE and the types of layers, of which one is implemented.
inline void take_special_keys(nlohmann::ordered_json& json, const std::vector<std::string>& passed,
                              const io::detail::place& at) {
  if (const auto found = json.find("layer_types"); found != json.end()) {
    const io::detail::place here = at.key("layer_types");
    if (!found->is_null() && !found->is_array()) io::detail::fail_type("an array or null", *found, here);
    for (const auto& type : *found) {
      if (type != "full_attention") here.fail("only \"full_attention\" is supported");
    }
    json.erase("layer_types");
  }
  models::take_rope(json, passed, at);
}

inline const models::config_keys& keys() {
  using json = nlohmann::ordered_json;
  static const models::config_keys all{
      {{"architectures", {json::array({"LlamaForCausalLM"}), json::array({"LLaMAForCausalLM"}), nullptr}, true},
       {"model_type", {"llama"}, true},
       {"hidden_act", {"silu", "swish"}, true},  // two names of one function
       {"attention_bias", {false}, true},
       {"mlp_bias", {false}, true},
       {"add_cross_attention", {false}},
       {"cross_attention_hidden_size", {nullptr}},
       {"is_encoder_decoder", {false}},
       {"tie_encoder_decoder", {false}},
       {"pruned_heads", {json::object(), nullptr}},
       {"partial_rotary_factor", {1.0, nullptr}},
       {"rope_interleaved", {false}},  // transformers does not read it
       {"sliding_window", {nullptr}},
       {"quantization_config", {nullptr}}},
      {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"},
      {"num_key_value_heads", "head_dim"},
      {},
      take_special_keys};
  return all;
}

}  // namespace detail

/// Reads a model_config. Throws io::error naming `where` and a key that changes the architecture, is unknown and not in
/// `passed`, or has a value out of range.
inline model_config read_model_config(nlohmann::ordered_json json, const std::string& where,
                                      const std::vector<std::string>& passed = {}) {
  model_config defaults;  // of LlamaConfig
  defaults.rms_norm_eps = 1e-6;
  model_config config = models::read_fields(json, where, detail::keys(), passed, defaults);
  if (!json.contains("num_key_value_heads")) config.num_key_value_heads = config.num_attention_heads;
  if (const auto fault = find_fault(config)) throw io::error(where, *fault);
  return config;
}

/// The config.json that transformers 4 and 5 load as this model. `dtype`: of the weights in the same directory.
inline nlohmann::ordered_json model_config_json(model_config config, const std::string& dtype = "float32") {
  config.head_dim = static_cast<int>(config.head_size());
  nlohmann::ordered_json json = models::write_fields(config, detail::keys(), dtype);
  json["rope_scaling"] = models::rope_scaling_json(config.rope_scaling);
  return json;
}

/// The shape among the options of a run, whose fields are flags.
inline models::shape_options options_of(model_config c) {
  if (c.num_attention_heads > 0) c.head_dim = static_cast<int>(c.head_size());
  return {"Llama",
          "model",
          io::to_json(c),
          {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
           "num_key_value_heads", "head_dim", "tie_word_embeddings"},
          " (--max-position-embeddings)"};
}

}  // namespace rotoscale::llama
