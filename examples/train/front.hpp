// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A program of the trainer. A front defines its name and configurations, and its main calls run_program.
#pragma once

#include <string_view>

namespace rotoscale::program {

extern const char* const program_name;   ///< with which its messages begin
extern const char* const program_about;  ///< first line of --help

/// A whole configuration, a JSON object, that --config takes by name.
struct config_text {
  std::string_view name, json;
};
extern const config_text* const config_texts;  ///< the last one has no name

inline constexpr int exit_ok = 0;
inline constexpr int exit_differs = 1;      ///< a replay left other bytes than the run
inline constexpr int exit_bad_input = 2;    ///< one line on stderr; nothing half written
inline constexpr int exit_diverged = 3;     ///< log and last checkpoint are kept
inline constexpr int exit_interrupted = 4;  ///< by a signal; a checkpoint is written for --resume
inline constexpr int exit_device = 5;       ///< out of memory, or a device that fails; log and last checkpoint are kept

/// Runs a command line. Errors are lines on stderr. Returns an exit code.
int run_program(int argc, char** argv);

}  // namespace rotoscale::program
