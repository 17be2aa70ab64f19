// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Exit codes of mini-llama.
#pragma once

namespace rotoscale::llama_program {

inline constexpr const char* program_name = "mini-llama";  ///< with which its messages begin

inline constexpr int exit_ok = 0;
inline constexpr int exit_differs = 1;      ///< a replay left other bytes than the run
inline constexpr int exit_bad_input = 2;    ///< one line on stderr; nothing half written
inline constexpr int exit_diverged = 3;     ///< log and last checkpoint are kept
inline constexpr int exit_interrupted = 4;  ///< by a signal; a checkpoint is written for --resume
inline constexpr int exit_device = 5;       ///< out of memory, or a device that fails; log and last checkpoint are kept

}  // namespace rotoscale::llama_program
