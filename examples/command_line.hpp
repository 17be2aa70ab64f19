// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the programs' command lines have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "rotoscale/io/error.hpp"

namespace rotoscale {

/// CLI11 reads a number that no 64 bits hold as the nearest one that they do: refuses it.
inline CLI::Validator within_64_bits(bool has_sign) {
  return {[has_sign](std::string& text) -> std::string {
            errno = 0;
            if (has_sign) {
              std::strtoll(text.c_str(), nullptr, 0);
            } else {
              std::strtoull(text.c_str(), nullptr, 0);
            }
            return errno == ERANGE ? text + " is out of range" : "";
          },
          ""};
}

/// Of every option that takes whole numbers; before its other checks, which look at what was read.
inline void refuse_overflow(CLI::App& app) {
  for (CLI::Option* o : app.get_options()) {
    const std::string type = o->get_type_name();
    if (type.starts_with("INT") || type.starts_with("UINT")) o->transform(within_64_bits(type.starts_with("INT")));
  }
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) refuse_overflow(*sub);
}

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
