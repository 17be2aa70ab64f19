// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Hugging Face's config.json of a GPT2LMHeadModel, and model_config.
#pragma once

#include <string>
#include <vector>

#include "rotoscale/models/config_keys.hpp"
#include "rotoscale/models/gpt2/config.hpp"

namespace rotoscale::gpt2 {

namespace detail {

inline const std::vector<models::implemented_value>& implemented_values() {
  using json = nlohmann::ordered_json;
  static const std::vector<models::implemented_value> values = {
      {"architectures", {json::array({"GPT2LMHeadModel"}), nullptr}, true},
      {"model_type", {"gpt2"}, true},
      {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, true},  // two names of one function
      {"tie_word_embeddings", {true, nullptr}},
      {"scale_attn_weights", {true}},
      {"scale_attn_by_inverse_layer_idx", {false}},
      {"reorder_and_upcast_attn", {false}},
      {"add_cross_attention", {false}},
      {"is_encoder_decoder", {false}},
      {"pruned_heads", {json::object(), nullptr}},
      {"quantization_config", {nullptr}}};
  return values;
}

}  // namespace detail

/// A model_config from a Hugging Face config.json. Throws io::error naming `where` and the key for one that would
/// change the architecture, is unknown and not among `passed`, or has a value out of range.
inline model_config read_model_config(nlohmann::ordered_json json, const std::string& where,
                                      const std::vector<std::string>& passed = {}) {
  const io::detail::place at{where, ""};
  if (json.is_object()) {
    models::take_implemented_values(json, detail::implemented_values(), at);
    for (const char* key : {"attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "summary_activation",
                            "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}) {
      json.erase(key);
    }
    const auto inner = json.find("n_inner"), width = json.find("n_embd");
    if (inner != json.end() && !inner->is_null() && width != json.end() &&
        (!inner->is_number_integer() || !width->is_number_integer() ||
         inner->get<std::int64_t>() != 4 * width->get<std::int64_t>())) {
      at.key("n_inner").fail("only 4 n_embd is supported");
    }
    json.erase("n_inner");
    models::take_ignored_keys(json, model_config(), {}, passed, at);
  }
  model_config config;
  io::from_json(json, config, where);
  for (const char* key : {"vocab_size", "n_embd", "n_layer", "n_head"}) {
    if (!json.contains(key)) throw io::error(where, std::string(key) + ": is missing");
  }
  if (const auto fault = find_fault(config)) throw io::error(where, *fault);
  return config;
}

/// The config.json that transformers loads as this model. `dtype` is that of the weights beside it.
inline nlohmann::ordered_json model_config_json(const model_config& config, const std::string& dtype = "float32") {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const models::implemented_value& known : detail::implemented_values()) {
    if (known.written) json[known.key] = known.values.front();
  }
  const nlohmann::ordered_json shape = io::to_json(config);
  for (const auto& [key, value] : shape.items()) json[key] = value;
  json["torch_dtype"] = dtype;
  return json;
}

}  // namespace rotoscale::gpt2
