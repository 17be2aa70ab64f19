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

/// Why a text is no number of a type ("INT", "UINT" or "FLOAT", and what follows); empty: it is one.
inline std::string find_number_fault(const std::string& type, const std::string& text) {
  const bool is_whole = type.starts_with("INT") || type.starts_with("UINT");
  char* rest = nullptr;
  is_whole ? static_cast<void>(std::strtoll(text.c_str(), &rest, 0))
           : static_cast<void>(std::strtod(text.c_str(), &rest));
  if (!text.empty() && *rest == '\0') return "";
  return is_whole ? " is not a whole number" : " is not a number";
}

/// Why a value is refused, by the description of CLI11's check: "INT in [0 - 9]", "{a,b}", "NONNEGATIVE".
inline std::string explain_check(const std::string& check, const std::string& value) {
  const std::string quoted = "'" + io::printable(value) + "'";
  const std::size_t range = check.find(" in [");
  if (range != check.npos) {
    const std::size_t low = range + 5, middle = check.find(" - ", low), high = middle + 3;
    if (const std::string fault = find_number_fault(check, value); !fault.empty()) return quoted + fault;
    return quoted + " is not between " + check.substr(low, middle - low) + " and " +
           check.substr(high, check.find(']', high) - high);
  }
  if (check.starts_with('{') && check.ends_with('}')) {
    std::vector<std::string> valid;
    for (std::size_t at = 1; at < check.size();) {
      const std::size_t end = std::min(check.find(',', at), check.size() - 1);
      valid.push_back(check.substr(at, end - at));
      at = end + 1;
    }
    return "unknown value " + quoted + io::did_you_mean(value, valid);
  }
  return quoted + (check == "NONNEGATIVE" ? " is not a number from 0"
                   : check == "DIR"       ? " is not a directory"
                                          : " is no " + check);
}

/// Gives CLI11's own checks messages in this project's words.
inline void explain_checks(CLI::App& app) {
  for (CLI::Option* o : app.get_options()) {
    for (int i = 0;; ++i) {
      CLI::Validator* check = nullptr;
      try {
        check = o->get_validator(i);
      } catch (const CLI::OptionNotFound&) {
        break;  // the last one
      }
      const std::string description = check->get_description();
      if (description.empty()) continue;  // this project's
      check->operation([own = *check, description](std::string& text) {
        const std::string given = text;
        return own(text).empty() ? std::string() : explain_check(description, given);
      });
    }
  }
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) explain_checks(*sub);
}

/// Explains a failed conversion, of which CLI11 says only "Could not convert: --steps = ten".
inline std::string explain_conversion(const CLI::App& command, const std::string& what) {
  const std::string head = "Could not convert: ";
  const std::size_t end = what.find(" = ");
  if (!what.starts_with(head) || end == what.npos) return what;
  const std::string name = what.substr(head.size(), end - head.size()), value = what.substr(end + 3);
  const CLI::Option* const option = command.get_option_no_throw(name);
  const std::string type = option != nullptr ? option->get_type_name() : "";
  if (!type.starts_with("INT") && !type.starts_with("UINT") && !type.starts_with("FLOAT")) return what;
  const std::string fault = find_number_fault(type, value);
  return name + ": '" + io::printable(value) + "'" + (fault.empty() ? " is out of range" : fault);
}

/// The option of a command that a message of CLI11 names, by the longest name that occurs in it; empty: none.
inline std::string option_in(const CLI::App& command, const std::string& what) {
  std::string found;
  for (const CLI::Option* o : command.get_options()) {
    const std::string name = o->get_name();
    const std::size_t at = what.find(name);
    if (at == what.npos || name.size() <= found.size()) continue;
    found = name;
  }
  return found;
}

/// CLI11's message about a command line, as "ARGUMENT: fault".
inline std::string explain_library(const CLI::App& command, const CLI::ParseError& e) {
  const std::string what = e.what(), kind = e.get_name(), option = option_in(command, what);
  if (option.empty() || kind == "ValidationError") return what;
  if (kind == "RequiredError") return option + ": is required";
  if (kind == "ArgumentMismatch") {
    const std::size_t given = command.get_option(option)->count();
    if (what.find("override") != what.npos) return option + ": takes no value";
    return given > 1 ? option + ": takes one value, and is given " + std::to_string(given) : option + ": needs a value";
  }
  for (const auto& [verb, ours] : {std::pair{" excludes ", ": excludes "}, {" requires ", ": needs "}}) {
    const std::size_t at = what.find(verb);
    if (at != what.npos) return what.substr(0, at) + ours + what.substr(at + std::string_view(verb).size());
  }
  if (kind != "ConversionError") return what;
  const std::string text = explain_conversion(command, what);
  return text == what ? option + ": takes no such value" : text;
}

/// Describes the error of a command line in one line. For an unknown argument it suggests the nearest option.
inline std::string explain_parse_error(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  // CLI11 reports missing options first, but a misspelt one may be the cause.
  const std::vector<std::string> unknown = app.remaining(true);
  const auto commands = command->get_subcommands([](const CLI::App*) { return true; });
  if (unknown.empty()) {
    if (e.get_name() != "RequiredError" || commands.empty()) return explain_library(*command, e);
    std::string text = "needs a command: ";
    for (const CLI::App* s : commands) text += (s == commands.front() ? "" : ", ") + s->get_name();
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
