// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Devices of mini-llama: --device auto|cpu|cuda|hip|host.
#pragma once

#include <memory>
#include <string>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::gpu {
struct train_options;
}

namespace rotoscale::program {

struct device_choice {
  std::string name = "auto";   ///< auto: the build's device if there is one, else the CPU
  int number = 0;              ///< which device
  int threads = 0;             ///< of the CPU; 0: one per core
  bool graphs = true;          ///< record and replay graphs; false: launch each operation
  bool keeps_codes = false;    ///< digests read the codes of all operands
  bool wait_for_each = false;  ///< wait for each operation, so that an error names it
};

/// Names that --device takes.
inline constexpr const char* device_names[] = {"auto", "cpu", "cuda", "hip", "host"};

/// A backend, and a note if `auto` chose the CPU.
struct chosen_backend {
  std::unique_ptr<nn::backend> ops;
  std::string note;

  /// Writes the note to standard error, as a line. Call it after all refusals, so that a refusal is one line.
  void say_note() const;
};

#if defined(ROTOSCALE_TRAIN_DEVICES)
/// Opens the device with `options`. Its name must be that of the build, or auto. Throws io::error if there is no device
/// with kernels, and nn::backend_error if it fails or has no memory. Both messages end with `advice`.
std::unique_ptr<nn::backend> make_device(const device_choice& choice, gpu::train_options options,
                                         const std::string& advice);
#endif

/// Opens the backend. Throws io::error if the program was not built for the device, or if none has kernels. Throws
/// nn::backend_error if the device fails or has no memory. `auto` then takes the CPU, with a note unless the
/// environment hides devices.
chosen_backend choose_backend(const device_choice& choice);

}  // namespace rotoscale::program
