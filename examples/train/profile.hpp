// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama profile: time of a training step on a device, by class of kernel and by operation.
#pragma once

#include <cstddef>
#include <iosfwd>

#include "device.hpp"
#include "trainer/state.hpp"

namespace rotoscale::program {

struct profile_options {
  bool operations = false;       ///< a table by operation as well
  std::size_t memory_limit = 0;  ///< bytes, as train's; 0: none
};

/// Trains a few steps on random tokens and prints a table: time, bytes and products per step and class. Shares are of
/// the copy rate and of the BF16 GEMM rate, both measured in the same run. Returns exit_ok. Throws io::error if
/// `device` is not a device or waits for each operation; train::over_budget; device_failure.
int profile(const trainer_state& state, const device_choice& device, const profile_options& o, std::ostream& out);

}  // namespace rotoscale::program
