// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Whole configurations: the front's, by name, and files.
#pragma once

#include <string>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "trainer/state.hpp"

namespace rotoscale::program {

/// The names that read_config knows.
std::vector<std::string> config_names();

/// Is it one of these names?
bool has_config(const std::string& name);

/// The options of a configuration by its name, or of a JSON file; throws io::error for neither.
nlohmann::ordered_json read_config(const std::string& name);

/// The effective schedule that a run's config.json holds; nothing for another configuration.
std::optional<effective_schedule> read_effective_schedule(const std::string& name);

}  // namespace rotoscale::program
