// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How work reaches a backend: queues run their operations in order, events are points in a queue, a graph is a recorded
// sequence of operations. Waiting happens in one place, backend::synchronize, and there faults become exceptions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "rotoscale/config.hpp"

namespace rotoscale::nn {

/// Names a queue of its backend; queue{} always exists.
struct queue {
  int id = 0;  ///< the backend's number for it
  bool operator==(const queue&) const = default;
};

/// A point in a queue: everything that was put there before `record`.
struct event {
  queue of;                  ///< which queue
  std::uint64_t ticket = 0;  ///< the backend's number for the point
};

/// A recorded sequence of operations. They see backend memory as it is when the graph is launched, and the arguments of
/// their recording.
class graph {
 public:
  graph() = default;
  graph(const graph&) = delete;
  graph& operator=(const graph&) = delete;
  virtual ~graph() = default;
};

/// An operation failed after it was queued. The queue does nothing more.
class backend_error : public std::runtime_error {
 public:
  /// "operation: what"; `of_device`: the device failed, not what it was asked.
  backend_error(std::string operation, const std::string& what, bool of_device = false)
      : std::runtime_error(operation + ": " + what), operation_(std::move(operation)), of_device_(of_device) {}
  /// Its name, as in backend.
  const std::string& operation() const { return operation_; }
  /// Is the device lost, or out of memory? Another run may do better.
  bool of_device() const { return of_device_; }

 private:
  std::string operation_;
  bool of_device_;
};

}  // namespace rotoscale::nn
