// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that train on a device each. NCCL or RCCL, found at run time, copies device memory between them. Times of their
// collectives, for profiles.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "rotoscale/nn/communicator.hpp"
#include "status.hpp"

namespace rotoscale::gpu {

/// One rank with a device. Collectives of host memory are another communicator's.
class device_rank : public nn::communicator {
 public:
  /// Connects the devices of all ranks, which call it together before other collectives. Throws nn::rank_failure.
  virtual void connect() = 0;
  /// Waits for the work of all ranks, which call it together. No collective of device memory follows. Throws
  /// nn::rank_failure.
  virtual void close() = 0;
};

/// Options of a device's rank.
struct rank_options {
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait of the host for a device
  bool reduces = false;                                          ///< reduce_scatter will be called
};

/// Makes a rank of a backend of make_device_backend. `host` has the collectives of host memory. Both outlive it, and it
/// outlives graphs with its collectives. If a rank fails, work that waits for it ends, and the others throw
/// nn::rank_failure at their next wait.
/// unsupported_device in a build for the host, or if the library is not installed.
status make_device_rank(nn::backend& ops, nn::communicator& host, const rank_options& options,
                        std::unique_ptr<device_rank>& made);

/// Time between two points of a queue.
struct queue_interval {
  /// What the queue did.
  enum class kind {
    reduce,  ///< sent gradients
    gather,  ///< sent its own weights to all ranks
    small,   ///< exchanged on the compute queue, or added integers
    other,   ///< an operation on another queue than the compute queue
    wait     ///< the compute queue waited for another one
  };
  kind what = kind::other;  ///< use of the time
  std::size_t bytes = 0;    ///< that this rank sent
  double begin = 0;         ///< microseconds since the first interval began
  double end = 0;           ///< microseconds
};

/// A communicator that notes the times of another one's collectives.
class rank_times : public nn::communicator {
 public:
  /// Begins to note. Operations are on `compute`, some collectives on other queues. Graphs are not replayed meanwhile.
  virtual void begin(nn::queue compute) = 0;
  /// Ends that. Waits for the device. Throws nn::backend_error, as collectives do meanwhile.
  virtual std::vector<queue_interval> end() = 0;
};

/// Of ranks with a backend of make_device_backend. Both must outlive it.
std::unique_ptr<rank_times> make_rank_times(nn::backend& ops, nn::communicator& ranks);

}  // namespace rotoscale::gpu
