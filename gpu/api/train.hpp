// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A device as nn::backend: what a model trains on. A program of an ordinary compiler links it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device.hpp"
#include "rotoscale/nn/backend.hpp"

namespace rotoscale::gpu {

/// What an operation took, in the order of the queue.
struct timed_operation {
  const char* name = "";      ///< as in nn::backend
  double microseconds = 0.0;  ///< on the device; 0 in a build for the host
  std::size_t bytes = 0;      ///< that it must read and write at least once; 0: not counted
  double operations = 0.0;    ///< multiplications and additions of a GEMM, else 0
};

/// How a device is used.
struct train_options {
  int device = 0;                                  ///< its number
  bool graphs = true;                              ///< else a graph is its operations, put on the queue again
  bool wait_for_each = false;                      ///< so that a fault of the device has the operation's name
  std::vector<timed_operation>* timing = nullptr;  ///< grows by every operation that is waited for; not with graphs
};

/// A backend on the device that this library was built for. Not ok: there is none, or it has no kernels here.
status make_device_backend(const train_options& options, std::unique_ptr<nn::backend>& made);

}  // namespace rotoscale::gpu
