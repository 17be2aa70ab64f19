// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Transport between ranks, each with a model and a backend of its own. It moves bytes and makes exact reductions. Sums
// that round are operations of the backend: train/rank_sums.hpp. Every rank calls the same collectives in the same
// order. The base class is a single rank.
#pragma once

#include <span>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// Collectives over the ranks; each is an operation on a queue.
class communicator {
 public:
  communicator() = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  virtual ~communicator() = default;

  /// This rank's number, from 0.
  virtual int rank() const { return 0; }
  /// Number of ranks.
  virtual int size() const { return 1; }

  /// Copies send[s] to rank s, and from rank s into receive[s], in backend memory. Both lists have an entry for each
  /// rank, which may be empty. What is sent is not overwritten, but by the own rank's entry at the same address.
  virtual void transfer(queue, std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive) {
    (void)send, (void)receive;
  }
  /// Sum of i64 numbers over all ranks, on all ranks.
  virtual void sum(queue, tensor_view) {}
  /// The largest of fp32 numbers that are not negative, on all ranks.
  virtual void max(queue, tensor_view) {}
};

}  // namespace rotoscale::nn
