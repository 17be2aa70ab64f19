// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A device as nn::backend, for training and inference. Programs link it without a toolkit's compiler.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.hpp"
#include "rotoscale/nn/backend.hpp"

namespace rotoscale::gpu {

/// Time of one operation, in stream order.
struct timed_operation {
  const char* name = "";                    ///< of its row
  nn::op_class kind = nn::op_class::other;  ///< class of the operation
  double microseconds = 0.0;                ///< on the device; 0 in a build for the host
  std::size_t bytes = 0;                    ///< minimum bytes read and written; 0: not counted
  double operations = 0.0;                  ///< multiplications and additions of a GEMM, else 0
};

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
