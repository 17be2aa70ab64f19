// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where mini-llama computes: --device auto|cpu|cuda|hip|host.
#pragma once

#include <memory>
#include <string>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::gpu {
struct train_options;
}

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

/// A backend, and what `auto` has to say of it: why it is the CPU's, or nothing.
struct chosen_backend {
  std::unique_ptr<nn::backend> ops;
  std::string note;

  /// Writes the note as a line to standard error. Called where nothing is refused any more, so that a refusal is one
  /// line by itself.
  void say_note() const;
};

#if defined(ROTOSCALE_LLAMA_DEVICES)
/// The choice's device, used as `options` say; its name must be that of the build, or auto. Throws io::error where
/// there is none that it has kernels for, nn::backend_error where it fails or has no memory; both messages end in
/// `advice`.
std::unique_ptr<nn::backend> make_device(const device_choice& choice, gpu::train_options options,
                                         const std::string& advice);
#endif

/// Throws io::error where the program was not built for the device, or there is none that it has kernels for, and
/// nn::backend_error where that fails or has no memory; `auto` then takes the CPU, with a note unless the environment
/// hides devices.
chosen_backend choose_backend(const device_choice& choice);

}  // namespace rotoscale::llama_program
