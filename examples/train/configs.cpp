// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "configs.hpp"

#include <algorithm>
#include <filesystem>

#include "front.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/train/schedule.hpp"

namespace rotoscale::program {

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const config_text* c = config_texts; !c->name.empty(); ++c) names.emplace_back(c->name);
  return names;
}

bool has_config(const std::string& name) {
  const std::vector<std::string> names = config_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

namespace {

constexpr const char* schedule_key = "effective_schedule";

nlohmann::ordered_json read_whole_config(const std::string& name) {
  for (const config_text* c = config_texts; !c->name.empty(); ++c) {
    if (c->name == name) return nlohmann::ordered_json::parse(c->json);
  }
  std::error_code failed;
  if (std::filesystem::exists(name, failed)) {
    nlohmann::ordered_json json = io::read_json(name);
    if (json.is_object() && json.contains("architectures") && !json.contains("model")) {
      throw io::error(name, "is a model's configuration, which --model-config takes");
    }
    return json;
  }
  if (train::is_preset(name)) {
    throw io::error("--config " + name, "is a recipe or schedule (--recipe " + name + "), not a configuration");
  }
  throw io::error("--config " + name,
                  "neither a configuration's name nor a file" + io::did_you_mean(name, config_names()));
}

}  // namespace

nlohmann::ordered_json read_config(const std::string& name) {
  nlohmann::ordered_json json = read_whole_config(name);
  if (json.is_object()) json.erase(schedule_key);
  return json;
}

std::optional<effective_schedule> read_effective_schedule(const std::string& name) {
  const nlohmann::ordered_json json = read_whole_config(name);
  if (!json.is_object() || !json.contains(schedule_key)) return std::nullopt;
  effective_schedule found;
  io::from_json(json.at(schedule_key), found, name + ": " + schedule_key);
  return found;
}

}  // namespace rotoscale::program
