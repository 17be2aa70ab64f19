// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama profile: where a training step's time goes on a device, by class of kernel and by operation.
#pragma once

#include <cstddef>
#include <iosfwd>

#include "device.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

struct profile_options {
  bool operations = false;       ///< a table by operation as well
  std::size_t memory_limit = 0;  ///< bytes, as train's; 0: none
};

/// Trains a few steps on random tokens and prints a table: time, bytes and products a step and class, and their share
/// of the copy rate and of the rate of BF16's matrix product that are measured in the same run. Returns exit_ok; throws
/// io::error where `device` is none or waits for each operation, llama::over_budget, device_failure.
int profile(const trainer_state& state, const device_choice& device, const profile_options& o, std::ostream& out);

}  // namespace rotoscale::llama_program
