// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reads and checks a command line.
#pragma once

#include "arguments.hpp"

namespace rotoscale::program {

/// Reads the command line. Flags override --config and --model-config, which override defaults. --help and --version
/// print and end the program. Throws io::error.
void parse_arguments(int argc, char** argv, arguments& a);

/// Throws io::error if an option contradicts the shape of --init's weights. If the files are needed, it also throws if
/// their config.json contradicts the weights and no --model-config replaces it.
void check_init(const arguments& a, given_files files);

/// Throws io::error for a flag that would change the options of a resumed run.
void check_resume_flags(int argc, char** argv);

}  // namespace rotoscale::program
