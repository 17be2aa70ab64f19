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

/// Checks the inner width, of which one is implemented.
inline void take_inner_width(nlohmann::ordered_json& json, const std::vector<std::string>&,
                             const io::detail::place& at) {
  const auto inner = json.find("n_inner"), width = json.find("n_embd");
  if (inner != json.end() && !inner->is_null() && width != json.end()) {
    const bool are_integers = inner->is_number_integer() && width->is_number_integer();
    const std::int64_t n = are_integers ? inner->get<std::int64_t>() : 1;
    if (n % 4 != 0 || n / 4 != width->get<std::int64_t>()) at.key("n_inner").fail("only 4 n_embd is supported");
  }
  json.erase("n_inner");
}

inline const models::config_keys& keys() {
  using json = nlohmann::ordered_json;
  static const models::config_keys all{
      {{"architectures", {json::array({"GPT2LMHeadModel"}), nullptr}, true},
       {"model_type", {"gpt2"}, true},
       {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, true},  // two names of one function
       {"tie_word_embeddings", {true, nullptr}},
       {"scale_attn_weights", {true}},
       {"scale_attn_by_inverse_layer_idx", {false}},
       {"reorder_and_upcast_attn", {false}},
       {"add_cross_attention", {false}},
       {"is_encoder_decoder", {false}},
       {"pruned_heads", {json::object(), nullptr}},
       {"quantization_config", {nullptr}}},
      {"vocab_size", "n_embd", "n_layer", "n_head"},
      {},
      {"attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "summary_activation", "summary_first_dropout",
       "summary_proj_to_labels", "summary_type", "summary_use_proj"},
      take_inner_width};
  return all;
}

}  // namespace detail

/// Reads a model_config. Throws io::error naming `where` and a key that changes the architecture, is unknown and not in
/// `passed`, or has a value out of range.
inline model_config read_model_config(nlohmann::ordered_json json, const std::string& where,
                                      const std::vector<std::string>& passed = {}) {
  const model_config config = models::read_fields(json, where, detail::keys(), passed, model_config());
  if (const auto fault = find_fault(config)) throw io::error(where, *fault);
  return config;
}

/// The config.json that transformers loads as this model. `dtype`: of the weights in the same directory.
inline nlohmann::ordered_json model_config_json(const model_config& config, const std::string& dtype = "float32") {
  return models::write_fields(config, detail::keys(), dtype);
}

/// The shape among the options of a run.
inline models::shape_options options_of(const model_config& c) {
  models::shape_options o{
      "GPT-2", "gpt2", io::to_json(c), {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}};
  o.adapter_targets = {"c_attn"};  // as PEFT has it
  return o;
}

}  // namespace rotoscale::gpt2
