// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama profile: where a training step's time goes on a device, by class of kernel and by operation.
#pragma once

#include <iosfwd>

#include "device.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

/// Trains a few steps on random tokens and prints a table: time, bytes and products a step and class, and their share
/// of the copy rate and of the matrix rate that are measured in the same run; with `operations` another one by name.
/// Returns exit_ok; throws io::error where `device` is none.
int profile(const trainer_state& state, const device_choice& device, bool operations, std::ostream& out);

}  // namespace rotoscale::llama_program
