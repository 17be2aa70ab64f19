// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Hugging Face's config.json of a LlamaForCausalLM, as transformers 4 and 5 write it, and model_config. A key is one of
// four kinds: it is a field of model_config; or it changes no arithmetic of a forward and backward pass and is ignored;
// or it changes some and only one of its values is implemented; or it is unknown and refused, unless it is null or the
// caller passes it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "rotoscale/models/config_keys.hpp"
#include "rotoscale/models/llama/config.hpp"

namespace rotoscale::llama {

namespace detail {

inline const std::vector<models::implemented_value>& implemented_values() {
  using json = nlohmann::ordered_json;
  static const std::vector<models::implemented_value> values = {
      {"architectures", {json::array({"LlamaForCausalLM"}), json::array({"LLaMAForCausalLM"}), nullptr}, true},
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
      {"rope_interleaved", {false}},  // which transformers does not read
      {"sliding_window", {nullptr}},
      {"quantization_config", {nullptr}}};
  return values;
}

/// What an object of RoPE's numbers says: rope_theta if it holds one, and the scaling; null: none.
struct rope_form {
  nlohmann::ordered_json theta, scaling;
  bool given = false;  ///< is there an object?
};

/// The keys of each type; the first `needed` of them must be there.
inline std::vector<std::string> rope_keys(const std::string& type, std::size_t& needed) {
  needed = type == "llama3" ? 4 : 1;
  if (type == "llama3") return {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
  if (type == "linear") return {"factor"};
  return {"factor",           "original_max_position_embeddings",
          "attention_factor", "beta_fast",
          "beta_slow",        "mscale",
          "mscale_all_dim",   "truncate"};
}

[[noreturn]] inline void fail_contradiction(const io::detail::place& at, const std::string& a, const std::string& b) {
  at.fail(a + " and " + b + " contradict each other; remove one");
}

/// Takes the type, which was "type" before it was "rope_type", out of an object.
inline nlohmann::ordered_json take_rope_type(nlohmann::ordered_json& rope, const io::detail::place& at) {
  nlohmann::ordered_json type;
  for (const char* name : {"rope_type", "type"}) {
    const nlohmann::ordered_json found = rope.contains(name) ? rope[name] : nlohmann::ordered_json();
    if (!type.is_null() && !found.is_null() && type != found) {
      fail_contradiction(at, "rope_type " + type.dump(), "type " + found.dump());
    }
    if (!found.is_null()) type = found;
    rope.erase(name);
  }
  if (type.is_null() && !rope.empty()) at.fail("rope_type is missing");
  return type.is_null() ? nlohmann::ordered_json("default") : type;
}

/// Of `rope_scaling` or `rope_parameters`, without the keys in `passed`, such as "rope_scaling.finetuned".
inline rope_form read_rope_form(nlohmann::ordered_json rope, const std::string& name,
                                const std::vector<std::string>& passed, const io::detail::place& at) {
  if (rope.is_null()) return {};
  if (!rope.is_object()) io::detail::fail_type("an object or null", rope, at);
  rope_form form;
  form.given = true;
  for (const std::string& key : passed) {
    if (key.starts_with(name + ".")) rope.erase(key.substr(name.size() + 1));
  }
  models::take_implemented_values(rope, implemented_values(), at);  // partial_rotary_factor
  if (rope.contains("rope_theta")) form.theta = rope["rope_theta"];
  rope.erase("rope_theta");
  const nlohmann::ordered_json type = take_rope_type(rope, at);
  if (type == "default") return form;
  if (std::none_of(std::begin(rope_types), std::end(rope_types), [&](const char* t) { return type == t; })) {
    at.key("rope_type")
        .fail("only \"default\", \"llama3\", \"linear\" and \"yarn\" are supported, found " + type.dump());
  }
  std::size_t needed = 0;
  const std::vector<std::string> keys = rope_keys(type.get<std::string>(), needed);
  for (std::size_t i = 0; i < needed; ++i) {
    if (!rope.contains(keys[i])) at.fail(keys[i] + " is missing");
  }
  form.scaling = {{"rope_type", type}};
  for (const auto& [key, value] : rope.items()) {
    if (value.is_null()) continue;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      at.key(key).fail("no key of type " + type.dump() + models::ignoring_hint);
    }
    form.scaling[key] = value;
  }
  return form;
}

/// One form for RoPE's two: `rope_scaling` beside rope_theta, and transformers 5's `rope_parameters`, which holds
/// rope_theta as well. Where both are there they must agree: transformers 5 takes rope_scaling, others the newer key.
inline void take_rope(nlohmann::ordered_json& json, const std::vector<std::string>& passed,
                      const io::detail::place& at) {
  constexpr const char* names[] = {"rope_scaling", "rope_parameters"};
  rope_form forms[2];
  for (int i = 0; i < 2; ++i) {
    if (json.contains(names[i])) forms[i] = read_rope_form(json[names[i]], names[i], passed, at.key(names[i]));
    json.erase(names[i]);
  }
  if (forms[0].given && forms[1].given && forms[0].scaling != forms[1].scaling) {
    fail_contradiction(at, "rope_scaling " + forms[0].scaling.dump(), "rope_parameters " + forms[1].scaling.dump());
  }
  for (const rope_form& form : forms) {
    if (!form.scaling.is_null()) json["rope_scaling"] = form.scaling;
    if (form.theta.is_null()) continue;
    if (json.contains("rope_theta") && json["rope_theta"] != form.theta) {
      fail_contradiction(at, "rope_theta " + json["rope_theta"].dump(), form.theta.dump());
    }
    json["rope_theta"] = form.theta;
  }
}

/// The one layer type that is implemented.
inline void take_layer_types(nlohmann::ordered_json& json, const io::detail::place& at) {
  const auto found = json.find("layer_types");
  if (found == json.end()) return;
  if (!found->is_null() && !found->is_array()) io::detail::fail_type("an array or null", *found, at.key("layer_types"));
  for (const auto& type : *found) {
    if (type != "full_attention") at.key("layer_types").fail("only \"full_attention\" is supported");
  }
  json.erase("layer_types");
}

}  // namespace detail

/// A model_config from a Hugging Face config.json. Throws io::error naming `where` and the key for one that would
/// change the architecture, is unknown and not among `passed`, or has a value out of range.
inline model_config read_model_config(nlohmann::ordered_json json, const std::string& where,
                                      const std::vector<std::string>& passed = {}) {
  const io::detail::place at{where, ""};
  if (json.is_object()) {
    models::take_implemented_values(json, detail::implemented_values(), at);
    detail::take_layer_types(json, at);
    detail::take_rope(json, passed, at);
    models::take_ignored_keys(json, model_config(), {"num_key_value_heads", "head_dim"}, passed, at);
  }
  model_config config;
  config.rms_norm_eps = 1e-6;  // LlamaConfig's defaults, which files may leave out
  config.num_key_value_heads = 0;
  io::from_json(json, config, where);
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    if (!json.contains(key)) throw io::error(where, std::string(key) + ": is missing");
  }
  if (config.rope_scaling && !json["rope_scaling"].contains("original_max_position_embeddings")) {
    config.rope_scaling->original_max_position_embeddings = config.max_position_embeddings;  // yarn's default
  }
  if (!json.contains("num_key_value_heads")) config.num_key_value_heads = config.num_attention_heads;
  if (const auto fault = find_fault(config)) throw io::error(where, *fault);
  return config;
}

/// The config.json that transformers 4 and 5 load as this model. `dtype` is that of the weights beside it.
inline nlohmann::ordered_json model_config_json(const model_config& config, const std::string& dtype = "float32") {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const models::implemented_value& known : detail::implemented_values()) {
    if (known.written) json[known.key] = known.values.front();
  }
  model_config full = config;
  full.head_dim = static_cast<int>(config.head_size());
  const nlohmann::ordered_json shape = io::to_json(full);  // items() would outlive a temporary
  for (const auto& [key, value] : shape.items()) json[key] = value;
  if (config.rope_scaling) {
    std::size_t needed = 0;
    nlohmann::ordered_json rope = {{"rope_type", config.rope_scaling->rope_type}};
    for (const std::string& key : detail::rope_keys(config.rope_scaling->rope_type, needed)) {
      if (!shape["rope_scaling"][key].is_null()) rope[key] = shape["rope_scaling"][key];
    }
    json["rope_scaling"] = rope;
  }
  json["torch_dtype"] = dtype;
  return json;
}

}  // namespace rotoscale::llama
