// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The command line of `mini-llama tokenizer`.
#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>

#include "data/tokenizer.hpp"

namespace rotoscale::program {

struct tokenizer_arguments {
  tokenizer_options train;
  encode_options encode;
  bool encodes = false;  ///< else it trains
};

/// Adds the subcommands, bound to `a`.
void define_tokenizer(CLI::App& app, tokenizer_arguments& a);

/// Runs the parsed command, and writes a line about it to `out`. Returns the exit code.
int run_tokenizer(const tokenizer_arguments& a, std::ostream& out);

}  // namespace rotoscale::program
