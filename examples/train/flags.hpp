// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Subcommands and flags.
#pragma once

#include <CLI/CLI.hpp>

#include "arguments.hpp"

namespace rotoscale::program {

inline constexpr const char* lora_group = "lora";  ///< any of its flags asks for adapters

/// Defines all subcommands and flags, bound to `a`.
void define(CLI::App& app, arguments& a);

}  // namespace rotoscale::program
