// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Queues, events, graphs and errors. A queue runs its operations in order, an event is a point in a queue, a graph is a
// recorded sequence of operations. The only wait is device::synchronize, which throws the errors of operations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "rotoscale/config.hpp"

namespace rotoscale::nn {

/// A queue of a device. queue{} always exists.
struct queue {
  int id = 0;  ///< the device's number
  bool operator==(const queue&) const = default;
};

/// A point in a queue, after all operations that were put there before `record`.
struct event {
  queue of;                  ///< which queue
  std::uint64_t ticket = 0;  ///< the device's number of the point
};

/// A device's recording of operations.
class recorded_graph {
 public:
  recorded_graph() = default;
  recorded_graph(const recorded_graph&) = delete;
  recorded_graph& operator=(const recorded_graph&) = delete;
  virtual ~recorded_graph() = default;
};

/// A sequence of operations with fixed arguments. They see backend memory as it is at the launch.
struct graph {
  /// A graph of these operations.
  explicit graph(std::function<void()> f) : operations(std::move(f)) {}

  std::function<void()> operations;          ///< puts them on the queue one by one
  std::unique_ptr<recorded_graph> recorded;  ///< null: not recorded
};

/// An operation failed after it was queued. The queue skips all later operations.
class backend_error : public std::runtime_error {
 public:
  /// Message "operation: what". `of_device`: the device failed, not the request.
  backend_error(std::string operation, const std::string& what, bool of_device = false)
      : std::runtime_error(operation + ": " + what), operation_(std::move(operation)), of_device_(of_device) {}
  /// Name of the operation.
  const std::string& operation() const { return operation_; }
  /// True if the device is lost or out of memory, so that another run may succeed.
  bool of_device() const { return of_device_; }

 private:
  std::string operation_;
  bool of_device_;
};

}  // namespace rotoscale::nn
