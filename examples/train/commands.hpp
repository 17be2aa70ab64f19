// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The commands on runs, checkpoints and recipes. Each writes its result and returns the exit code.
#pragma once

#include <iosfwd>

#include "arguments.hpp"

namespace rotoscale::program {

/// Trains, or continues a run.
int train(int argc, char** argv, arguments& a);
/// Prints the memory of train in the words of its log. Nothing is allocated.
int plan(arguments& a);

struct profile_options {
  bool operations = false;       ///< a table by operation as well
  std::size_t memory_limit = 0;  ///< bytes, as train's; 0: none
};
/// Trains a few steps on random tokens and prints a table: time, bytes and products per step and class. Shares are of
/// the copy rate and of the BF16 GEMM rate, both measured in the same run. Throws io::error if `device` is not a device
/// or waits for each operation; train::over_budget; device_failure.
int profile(const trainer_state& state, const device_choice& device, const profile_options& o, std::ostream& out);

/// The same on a.gpus GPUs: the time of a step, and a table of what they exchange.
int profile_ranks(arguments& a, const trainer_state& state, std::ostream& out);

/// Prints one line of JSON: the held-out loss of a checkpoint.
int evaluate_checkpoint(const arguments& a);
/// Prints the prompt and its continuation by a checkpoint.
int sample_checkpoint(const arguments& a);

/// Writes a line for each recipe (formats of its GEMMs, a phrase) and for each schedule (its phases).
int list_recipes(std::ostream& out);

}  // namespace rotoscale::program
