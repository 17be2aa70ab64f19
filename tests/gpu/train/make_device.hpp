// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "gpu/api/train.hpp"

namespace rotoscale::testing {

/// Returns the device backend. Skips the program without a device.
inline std::unique_ptr<nn::backend> make_device(gpu::train_options o = {}) {
  std::unique_ptr<nn::backend> made;
  const gpu::status s = gpu::make_device_backend(o, made);
  if (!s.ok()) {
    std::printf("skipped: %s\n", s.message().c_str());
    std::fflush(stdout);
    std::_Exit(77);
  }
  return made;
}

}  // namespace rotoscale::testing
