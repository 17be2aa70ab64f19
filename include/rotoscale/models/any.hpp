// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a model of any kind, and its config.json.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rotoscale/models/gpt2/model.hpp"
#include "rotoscale/models/llama/model.hpp"

namespace rotoscale::models {

/// Shape of a model.
using config = std::variant<llama::model_config, gpt2::model_config>;

/// The shape in a Hugging Face config.json, by its model_type. Throws io::error naming `where` and the key for a model
/// that is not implemented.
inline config read_config(const nlohmann::ordered_json& json, const std::string& where,
                          const std::vector<std::string>& passed = {}) {
  if (json.is_object() && json.contains("model_type") && json["model_type"] == "gpt2") {
    return gpt2::read_model_config(json, where, passed);
  }
  return llama::read_model_config(json, where, passed);
}
/// The config.json of a shape.
inline nlohmann::ordered_json config_json(const config& shape) {
  return std::visit([](const auto& c) { return model_config_json(c); }, shape);
}
/// Token ids are below it.
inline int vocabulary_of(const config& shape) {
  return std::visit([](const auto& c) { return c.vocab_size; }, shape);
}
/// A sentence that names the wrong field, or nullopt.
inline std::optional<std::string> find_fault(const config& shape) {
  return std::visit([](const auto& c) { return find_fault(c); }, shape);
}
/// The shape among the options of a run.
inline shape_options options_of(const config& shape) {
  return std::visit([](const auto& c) { return options_of(c); }, shape);
}
/// The model as training sees it.
inline train::architecture architecture_of(const config& shape) {
  return std::visit([](const auto& c) { return train::architecture(c); }, shape);
}

/// The shape among the options of a run: `gpt2`, else `model`.
struct chosen_config {
  llama::model_config model;               ///< a Llama
  std::optional<gpt2::model_config> gpt2;  ///< a GPT-2; null: `model` counts

  /// The chosen shape.
  config shape() const { return gpt2 ? config(*gpt2) : config(model); }
  /// Chooses a shape.
  void take(const config& shape) {
    gpt2.reset();
    if (const auto* const own = std::get_if<gpt2::model_config>(&shape)) gpt2 = *own;
    if (const auto* const own = std::get_if<llama::model_config>(&shape)) model = *own;
  }
  /// Chooses the shape in the options of a run, whose missing fields stay. False without one.
  bool take(const nlohmann::ordered_json& options, const std::string& where) {
    auto own = nlohmann::ordered_json::object();
    for (const char* key : {"model", "gpt2"}) {
      if (options.contains(key) && !options.at(key).is_null()) own[key] = options.at(key);
    }
    if (own.empty()) return false;
    if (!own.contains("gpt2")) gpt2.reset();
    io::from_json(own, *this, where);
    return true;
  }
};

template <class Visitor>
void describe(Visitor&& v, chosen_config& c) {
  v("model", c.model, "shape of the model");
  v("gpt2", c.gpt2, "shape of a GPT-2, which replaces model, or null");
}

}  // namespace rotoscale::models
