// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// PEFT's adapter_config.json and lora_config. A key is used, has no effect on the arithmetic of a forward and backward
// pass, or must be switched off (null, false or empty). Other keys are refused.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "rotoscale/io/safetensors_shards.hpp"
#include "rotoscale/train/lora.hpp"

namespace rotoscale::train {

namespace detail {

/// Keys without an effect here: source of the base, writer of the file, initialisation of A.
inline bool adapter_key_has_no_effect(std::string_view key) {
  constexpr std::string_view keys[] = {"auto_mapping",        "base_model_name_or_path",
                                       "ensure_weight_tying", "eva_config",
                                       "inference_mode",      "megatron_config",
                                       "megatron_core",       "peft_version",
                                       "qalora_group_size",   "revision",
                                       "target_modules",      "task_type"};
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

/// True if a target is a Conv1D layer of GPT-2. PEFT sets fan_in_fan_out then; A and B are stored as for other layers.
inline bool are_conv1d(const std::vector<std::string>& targets) {
  return std::any_of(std::begin(lora_targets), std::end(lora_targets), [&](const lora_target& t) {
    return t.whole && std::find(targets.begin(), targets.end(), t.name) != targets.end();
  });
}

inline bool is_switched_off(const nlohmann::ordered_json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

/// Required values of keys that lora_config lacks. Any other value is refused.
inline void check_adapter_key(const std::string& key, const nlohmann::ordered_json& value,
                              const io::detail::place& at) {
  if (adapter_key_has_no_effect(key)) return;
  if (key == "peft_type") {
    if (value != "LORA") at.key(key).fail("only \"LORA\" is supported");
  } else if (key == "bias") {
    if (value != "none") at.key(key).fail("only \"none\" is supported");
  } else if (key == "init_lora_weights") {  // other initialisations move a part of the base into the adapter
    const bool plain = value.is_boolean() || value == "gaussian" || value == "orthogonal" || value == "eva";
    if (!plain) at.key(key).fail("only true, false, \"gaussian\", \"orthogonal\" and \"eva\" are supported");
  } else if (!is_switched_off(value)) {
    at.key(key).fail("is not supported, found " + io::printable(value.dump()));
  }
}

template <class T>
void read_adapter_number(nlohmann::ordered_json& json, const char* key, T& value, const io::detail::place& at) {
  if (!json.contains(key)) at.fail(std::string(key) + " is missing");
  io::detail::read_value(json[key], value, at.key(key));
  json.erase(key);
}

/// "model.layers.0.self_attn.q_proj" is a q_proj.
inline std::string_view module_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

inline std::string unsupported_adapter(std::string_view module) {
  return "adapters of '" + io::printable(module) + "' are not supported, only of the decoder layers' linear layers";
}

/// A list in target_modules must name the modules that have tensors. A pattern is ignored.
inline void check_target_modules(const nlohmann::ordered_json& json, const lora_config& c,
                                 const io::detail::place& at) {
  const std::vector<std::string>& found = c.targets;
  const auto listed = json.find("target_modules");
  if (listed == json.end() || !listed->is_array()) return;
  std::vector<std::string> names;
  for (const auto& module : *listed) {
    if (!module.is_string()) io::detail::fail_type("a string", module, at.key("target_modules"));
    names.emplace_back(module_name(module.get_ref<const std::string&>()));
    if (std::find(found.begin(), found.end(), names.back()) != found.end()) continue;
    const auto target = std::find_if(std::begin(lora_targets), std::end(lora_targets),
                                     [&](const lora_target& t) { return names.back() == t.name; });
    if (target == std::end(lora_targets)) at.key("target_modules").fail(unsupported_adapter(names.back()));
    at.key("target_modules").fail("adapter_model.safetensors has no tensor of '" + io::printable(names.back()) + "'");
  }
  for (const std::string& name : found) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    at.key("target_modules").fail("does not name '" + name + "', of which adapter_model.safetensors has tensors");
  }
}

/// Throws io::error if an adapter's tensor belongs to another module than a decoder layer's linear layer.
inline void check_adapter_modules(const io::safetensors_shards& tensors) {
  for (const io::safetensors_file& file : tensors.files()) {
    for (const io::tensor_info& info : file.tensors()) {
      const std::size_t end = info.name.find(".lora_");
      if (end == info.name.npos) continue;
      const std::string_view module = module_name(std::string_view(info.name).substr(0, end));
      const bool known = std::any_of(std::begin(lora_targets), std::end(lora_targets),
                                     [&](const lora_target& t) { return module == t.name && !t.fused; });
      if (!known) throw io::error(file.name(), unsupported_adapter(module));
    }
  }
}

/// The modules that have tensors in the file, by name.
inline std::vector<std::string> adapter_targets(const io::safetensors_shards& tensors) {
  std::vector<std::string> found;
  for (const lora_target& t : lora_targets) {
    const std::string part = std::string(".") + t.name + ".lora_";
    for (const io::safetensors_file& file : tensors.files()) {
      const bool has = std::any_of(file.tensors().begin(), file.tensors().end(),
                                   [&](const io::tensor_info& info) { return info.name.find(part) != info.name.npos; });
      if (has && !t.fused) found.emplace_back(t.name);
    }
  }
  return found;
}

}  // namespace detail

/// Is there an adapter in PEFT's files?
inline bool is_adapter(const std::filesystem::path& directory) {
  std::error_code failed;
  return std::filesystem::exists(directory / "adapter_model.safetensors", failed);
}

/// Reads an adapter_config.json, which messages call `where`. Targets are the modules with tensors. Throws io::error
/// that names the key for an unsupported adapter.
inline lora_config read_adapter_config(nlohmann::ordered_json json, const io::safetensors_shards& tensors,
                                       const std::string& where) {
  const io::detail::place at{where, ""};
  if (!json.is_object()) io::detail::fail_type("an object", json, at);
  lora_config c;
  detail::read_adapter_number(json, "r", c.rank, at);
  detail::read_adapter_number(json, "lora_alpha", c.alpha, at);
  c.dropout = 0.0;
  if (json.contains("lora_dropout")) detail::read_adapter_number(json, "lora_dropout", c.dropout, at);
  if (json.contains("use_rslora")) {  // alpha / sqrt(r) instead of alpha / r
    bool stabilised = false;
    if (!json["use_rslora"].is_null()) io::detail::read_value(json["use_rslora"], stabilised, at.key("use_rslora"));
    if (stabilised) c.alpha *= std::sqrt(static_cast<double>(c.rank));
    json["use_rslora"] = false;
  }
  c.targets = detail::adapter_targets(tensors);
  if (detail::are_conv1d(c.targets) && json.value("fan_in_fan_out", nlohmann::ordered_json()) == true)
    json.erase("fan_in_fan_out");
  for (const auto& [key, value] : json.items()) detail::check_adapter_key(key, value, at);
  detail::check_adapter_modules(tensors);
  if (auto fault = find_fault(c)) {
    if (fault->starts_with("rank")) fault->replace(0, 4, "r");
    if (fault->starts_with("alpha") || fault->starts_with("dropout")) fault->insert(0, "lora_");
    if (fault->starts_with("targets")) fault = "adapter_model.safetensors: no tensor of a linear layer's adapter";
    throw io::error(where, *fault);
  }
  detail::check_target_modules(json, c, at);
  return c;
}
/// Adapter in a directory.
inline lora_config read_adapter_config(const std::filesystem::path& directory) {
  const std::string path = (directory / "adapter_config.json").string();
  return read_adapter_config(io::read_json(path), io::safetensors_shards::open(directory, "adapter_model"), path);
}

/// Base model that the adapter was trained with; empty if unknown.
inline std::string adapter_base(const std::filesystem::path& directory) {
  const nlohmann::ordered_json json = io::read_json(directory / "adapter_config.json");
  const auto found = json.find("base_model_name_or_path");
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

namespace detail {

/// Whole numbers as integers.
inline nlohmann::ordered_json number_json(double x) {
  return x == std::floor(x) && x < 0x1p53 ? nlohmann::ordered_json(static_cast<std::int64_t>(x))
                                          : nlohmann::ordered_json(x);
}

}  // namespace detail

/// The adapter_config.json that PEFT loads. A fused target is written as its parts.
inline nlohmann::ordered_json adapter_config_json(const lora_config& c, const std::string& base) {
  nlohmann::ordered_json json = {{"peft_type", "LORA"},
                                 {"task_type", "CAUSAL_LM"},
                                 {"base_model_name_or_path", base},
                                 {"r", c.rank},
                                 {"lora_alpha", detail::number_json(c.alpha)},
                                 {"lora_dropout", c.dropout},
                                 {"target_modules", unfused_targets(c)},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", detail::are_conv1d(c.targets)},
                                 {"init_lora_weights", true},
                                 {"use_rslora", false},
                                 {"modules_to_save", nullptr},
                                 {"inference_mode", true}};
  return json;
}

}  // namespace rotoscale::train
