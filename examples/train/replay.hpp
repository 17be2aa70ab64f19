// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama replay: computes steps of a run again from a checkpoint, on any device, and compares every byte of the
// checkpoint after them.
#pragma once

#include <iosfwd>
#include <string>

#include "device.hpp"
#include "options.hpp"

namespace rotoscale::program {

struct replay_options {
  std::string run;    ///< run directory
  std::string steps;  ///< "A:B": from the checkpoint of step A (0: the seed) to step B's
  std::string keep;   ///< directory for the replay's own run; empty: a temporary one
  run_options moved;  ///< new paths of data, tokenizer, init and adapter
  device_choice device;
};

/// Writes the first difference, or that there is none. Returns exit_ok or exit_differs. If it ends before a comparison,
/// it returns exit_diverged, exit_interrupted or exit_device. Throws io::error.
int replay(const replay_options& options, std::ostream& out);

}  // namespace rotoscale::program
