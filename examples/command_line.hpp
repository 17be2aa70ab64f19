// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the programs' command lines have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "rotoscale/io/error.hpp"

namespace rotoscale {

/// One line that says what is wrong with a command line; for an argument that nobody knows, what was probably meant.
inline std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  // CLI11 looks for what is missing first, but a flag may be missing because it is misspelt.
  const std::vector<std::string> unknown = app.remaining(true);
  const auto commands = command->get_subcommands([](const CLI::App*) { return true; });
  if (unknown.empty()) {
    std::string text = e.what();
    if (text != "A subcommand is required") return text;
    for (const CLI::App* s : commands) text += (s == commands.front() ? ": " : ", ") + s->get_name();
    return text;
  }
  std::vector<std::string> valid;
  for (const CLI::Option* o : command->get_options()) {
    for (const std::string& name : o->get_lnames()) valid.push_back("--" + name);
  }
  for (const CLI::App* s : commands) valid.push_back(s->get_name());
  const std::string wanted = unknown.front().substr(0, unknown.front().find('='));
  return "unknown argument '" + unknown.front() + "'; did you mean '" + io::nearest_name(wanted, valid) + "'?";
}

}  // namespace rotoscale
