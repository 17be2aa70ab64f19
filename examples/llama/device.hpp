// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where mini-llama computes: --device auto|cpu|cuda|hip|host.
#pragma once

#include <memory>
#include <string>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::llama_program {

struct device_choice {
  std::string name = "auto";   ///< auto: the device that the program was built for, if there is one; else the CPU
  int number = 0;              ///< which device
  int threads = 0;             ///< of the CPU; 0: one per core
  bool graphs = true;          ///< else every operation is launched by itself
  bool wait_for_each = false;  ///< so that a fault has its operation's name
};

/// Names that --device takes.
inline constexpr const char* device_names[] = {"auto", "cpu", "cuda", "hip", "host"};

/// Throws io::error where the program was not built for the device, or there is none that it has kernels for; `auto`
/// then takes the CPU and says so in a line on standard error, unless the environment hides devices.
std::unique_ptr<nn::backend> make_backend(const device_choice& choice);

}  // namespace rotoscale::llama_program
