// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// RoPE in Hugging Face's config.json: rope_theta with `rope_scaling`, or transformers 5's `rope_parameters`.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/models/config_keys.hpp"
#include "rotoscale/nn/rope_table.hpp"

namespace rotoscale::models {

namespace detail {

/// rope_theta and scaling of one object; null: not given.
struct rope_form {
  nlohmann::ordered_json theta, scaling;
  bool given = false;  ///< the file has this object
};

/// Keys of a type other than "default". All are required.
inline std::vector<std::string> rope_keys(const std::string& type) {
  if (type == "linear") return {"factor"};
  return {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
}

[[noreturn]] inline void fail_contradiction(const io::detail::place& at, const std::string& a, const std::string& b) {
  at.fail(a + " and " + b + " contradict each other; remove one");
}

/// Removes the type from an object and returns it. Old files call it "type".
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

/// Reads object `name`, without the keys in `passed`, such as "rope_scaling.finetuned".
inline rope_form read_rope_form(nlohmann::ordered_json rope, const std::string& name,
                                const std::vector<std::string>& passed, const io::detail::place& at) {
  if (rope.is_null()) return {};
  if (!rope.is_object()) io::detail::fail_type("an object or null", rope, at);
  rope_form form;
  form.given = true;
  for (const std::string& key : passed) {
    if (key.starts_with(name + ".")) rope.erase(key.substr(name.size() + 1));
  }
  take_implemented_values(rope, {{"partial_rotary_factor", {1.0, nullptr}}}, at);
  if (rope.contains("rope_theta")) form.theta = rope["rope_theta"];
  rope.erase("rope_theta");
  const nlohmann::ordered_json type = take_rope_type(rope, at);
  if (type == "default") return form;
  if (std::none_of(std::begin(nn::rope_types), std::end(nn::rope_types), [&](const char* t) { return type == t; })) {
    at.key("rope_type").fail("only \"default\", \"llama3\" and \"linear\" are supported, found " + type.dump());
  }
  const std::vector<std::string> keys = rope_keys(type.get<std::string>());
  for (const std::string& key : keys) {
    if (!rope.contains(key)) at.fail(key + " is missing");
  }
  form.scaling = {{"rope_type", type}};
  for (const auto& [key, value] : rope.items()) {
    if (value.is_null()) continue;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      at.key(key).fail("no key of type " + type.dump() + ignoring_hint);
    }
    form.scaling[key] = value;
  }
  return form;
}

}  // namespace detail

/// Replaces both forms of RoPE by rope_theta and rope_scaling. Forms that contradict each other are refused, since
/// transformers 5 reads rope_scaling and other programs read rope_parameters.
inline void take_rope(nlohmann::ordered_json& json, const std::vector<std::string>& passed,
                      const io::detail::place& at) {
  constexpr const char* names[] = {"rope_scaling", "rope_parameters"};
  detail::rope_form forms[2];
  for (int i = 0; i < 2; ++i) {
    if (json.contains(names[i])) forms[i] = detail::read_rope_form(json[names[i]], names[i], passed, at.key(names[i]));
    json.erase(names[i]);
  }
  if (forms[0].given && forms[1].given && forms[0].scaling != forms[1].scaling) {
    detail::fail_contradiction(at, "rope_scaling " + forms[0].scaling.dump(),
                               "rope_parameters " + forms[1].scaling.dump());
  }
  for (const detail::rope_form& form : forms) {
    if (!form.scaling.is_null()) json["rope_scaling"] = form.scaling;
    if (form.theta.is_null()) continue;
    if (json.contains("rope_theta") && json["rope_theta"] != form.theta) {
      detail::fail_contradiction(at, "rope_theta " + json["rope_theta"].dump(), form.theta.dump());
    }
    json["rope_theta"] = form.theta;
  }
}

/// The object rope_scaling of config.json, or null.
inline nlohmann::ordered_json rope_scaling_json(const std::optional<nn::rope_scaling>& scaling) {
  if (!scaling) return nullptr;
  const nlohmann::ordered_json fields = io::to_json(*scaling);
  nlohmann::ordered_json rope = {{"rope_type", scaling->rope_type}};
  for (const std::string& key : detail::rope_keys(scaling->rope_type)) rope[key] = fields[key];
  return rope;
}

}  // namespace rotoscale::models
