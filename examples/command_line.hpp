// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Shared by the programs' command lines.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/io/error.hpp"

namespace rotoscale {

/// CLI11 clamps a number beyond 64 bits. This validator refuses it.
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

/// Refuses numbers beyond 64 bits in every option that takes whole numbers, before its other checks.
inline void refuse_overflow(CLI::App& app) {
  for (CLI::Option* o : app.get_options()) {
    const std::string type = o->get_type_name();
    if (type.starts_with("INT") || type.starts_with("UINT")) o->transform(within_64_bits(type.starts_with("INT")));
  }
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) refuse_overflow(*sub);
}

/// Refuses an empty value, such as a script's unset variable. Options in `text` may be empty. Throws io::error naming
/// the option or argument. Call it after parsing.
inline void refuse_empty(const CLI::App& app, std::initializer_list<std::string_view> text = {}) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    if (std::find(text.begin(), text.end(), name) != text.end()) continue;
    for (const std::string& value : option->results()) {
      if (value.empty()) throw io::error(name, "is empty");
    }
  }
  for (const CLI::App* sub : app.get_subcommands()) refuse_empty(*sub, text);
}

/// Explains a failed conversion, of which CLI11 says only "Could not convert: --steps = ten".
inline std::string explain_conversion(const CLI::App& command, const std::string& what) {
  const std::string head = "Could not convert: ";
  const std::size_t end = what.find(" = ");
  if (!what.starts_with(head) || end == what.npos) return what;
  const std::string name = what.substr(head.size(), end - head.size()), value = what.substr(end + 3);
  const CLI::Option* const option = command.get_option_no_throw(name);
  const std::string type = option != nullptr ? option->get_type_name() : "";
  const bool is_whole = type.starts_with("INT") || type.starts_with("UINT");
  if (!is_whole && !type.starts_with("FLOAT")) return what;
  char* rest = nullptr;
  is_whole ? static_cast<void>(std::strtoll(value.c_str(), &rest, 0))
           : static_cast<void>(std::strtod(value.c_str(), &rest));
  const bool is_number = !value.empty() && *rest == '\0';
  return name + ": '" + io::printable(value) +
         (is_number  ? "' is out of range"
          : is_whole ? "' is not a whole number"
                     : "' is not a number");
}

/// Describes the error of a command line in one line. For an unknown argument it suggests the nearest option.
inline std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  // CLI11 reports missing options first, but a misspelt one may be the cause.
  const std::vector<std::string> unknown = app.remaining(true);
  const auto commands = command->get_subcommands([](const CLI::App*) { return true; });
  if (unknown.empty()) {
    std::string text = explain_conversion(*command, e.what());
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
  return "unknown argument '" + unknown.front() + "'" + io::did_you_mean(wanted, valid);
}

}  // namespace rotoscale
