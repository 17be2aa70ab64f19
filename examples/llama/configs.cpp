// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "configs.hpp"

#include <filesystem>

#include "config_texts.hpp"
#include "rotoscale/io/error.hpp"

namespace rotoscale::llama_program {

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const config_text& c : config_texts) names.emplace_back(c.name);
  return names;
}

nlohmann::ordered_json read_config(const std::string& name) {
  for (const config_text& c : config_texts) {
    if (c.name == name) return nlohmann::ordered_json::parse(c.json);
  }
  std::error_code failed;
  if (std::filesystem::exists(name, failed)) return io::read_json(name);
  throw io::error("--config " + name, "neither a configuration's name nor a file; did you mean '" +
                                          io::nearest_name(name, config_names()) + "'?");
}

}  // namespace rotoscale::llama_program
