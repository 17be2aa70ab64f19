// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama replay: computes steps of a run once more from a checkpoint, on whatever device, and compares every byte
// of the checkpoint behind them.
#pragma once

#include <iosfwd>
#include <string>

#include "device.hpp"
#include "options.hpp"

namespace rotoscale::llama_program {

struct replay_options {
  std::string run;    ///< run directory
  std::string steps;  ///< "A:B": from the checkpoint behind step A to that behind step B; A = 0: from the seed
  std::string keep;   ///< directory for the replay's own run; empty: a temporary one
  run_options moved;  ///< data, tokenizer, init and adapter, where they are elsewhere now
  device_choice device;
};

/// Writes what differs first, or that nothing does. Returns exit_ok or exit_differs, or where it ended before anything
/// could be compared exit_diverged, exit_interrupted or exit_device. Throws io::error.
int replay(const replay_options& options, std::ostream& out);

}  // namespace rotoscale::llama_program
