// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Processes of this program, several at once. POSIX.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rotoscale::program {

struct process {
  std::size_t number = 0;              ///< chosen by the caller, for `ended`
  std::vector<std::string> arguments;  ///< after the program's name
  std::filesystem::path output;        ///< file for stdout and stderr
};

/// Runs processes on `slots` slots until no process runs and next(slot) returns none for a free slot. Calls
/// ended(number, code) for each. After a signal the code is 128 + signal. A signal to this process ends all by SIGTERM;
/// then throws interruption. If this process is killed, its processes get SIGTERM (Linux).
void run_processes(std::size_t slots, const std::function<std::optional<process>(std::size_t)>& next,
                   const std::function<void(std::size_t, int)>& ended);

}  // namespace rotoscale::program
