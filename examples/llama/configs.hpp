// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Whole configurations that the program has by name: the files of configs/, as they are.
#pragma once

#include <string>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

/// The names that read_config knows.
std::vector<std::string> config_names();

/// Is it one of these names?
bool has_config(const std::string& name);

/// The options of a configuration by its name, or of a JSON file; throws io::error for neither.
nlohmann::ordered_json read_config(const std::string& name);

/// The effective schedule that a run's config.json holds; nothing for another configuration.
std::optional<effective_schedule> read_effective_schedule(const std::string& name);

}  // namespace rotoscale::llama_program
