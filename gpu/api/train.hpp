// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A device as nn::backend, for training and inference. Programs link it without a toolkit's compiler.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.hpp"
#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/timed_operation.hpp"

namespace rotoscale::gpu {

using nn::timed_operation;

/// Options of a device backend.
struct train_options {
  int device = 0;                                  ///< device index
  bool graphs = true;                              ///< false: operations of a graph are launched one by one
  bool keeps_codes = false;                        ///< operands of BF16 units are codes, which digests read
  bool wait_for_each = false;                      ///< synchronizes after each operation, so that an error names it
  std::vector<timed_operation>* timing = nullptr;  ///< appends every operation that is waited for; not with graphs
};

/// Makes a backend on the device that this library was built for. Fails if there is no device, or no kernels for it.
status make_device_backend(const train_options& options, std::unique_ptr<nn::backend>& made);

}  // namespace rotoscale::gpu
