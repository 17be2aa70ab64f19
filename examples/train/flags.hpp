// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Subcommands and flags.
#pragma once

#include <CLI/CLI.hpp>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#include "arguments.hpp"

namespace rotoscale::program {

inline constexpr const char* lora_group = "lora";  ///< any of its flags asks for adapters

/// The words of a text.
inline std::set<std::string> words_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Defines all subcommands and flags, bound to `a`.
void define(CLI::App& app, arguments& a);

}  // namespace rotoscale::program
