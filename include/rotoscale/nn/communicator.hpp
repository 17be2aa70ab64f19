// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Several ranks, each with a model and a backend of its own, train on parts of a batch. Every rank calls the same
// operations in the same order. The base class is a single rank.
#pragma once

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

  /// Each element becomes ((x0 + x1) + x2) + ... over the ranks ascending, in its own type (fp32, fp64 or i64).
  virtual void sum(queue, tensor_view) {}
  /// The largest of fp32 numbers that are not negative.
  virtual void max(queue, tensor_view) {}
};

}  // namespace rotoscale::nn
