// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a model of any kind, and its config.json.
#pragma once

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
/// The model as training sees it.
inline train::architecture architecture_of(const config& shape) {
  return std::visit([](const auto& c) { return train::architecture(c); }, shape);
}

}  // namespace rotoscale::models
