// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Several ranks, each with a model and a backend of its own, train on parts of a batch. Every rank calls the same
// operations in the same order. This class is one process's trivial case.
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
  /// `all` [ranks, ...] receives every rank's part.
  virtual void gather(queue q, const_tensor_view part, tensor_view all) = 0;
};

/// One rank.
class single_rank final : public communicator {
 public:
  /// With the backend that gather copies by.
  explicit single_rank(backend& ops) : ops_(&ops) {}
  void gather(queue q, const_tensor_view part, tensor_view all) override {
    ops_->copy(q, all.data, part.data, static_cast<std::size_t>(part.size() * size_of(part.type)));
  }

 private:
  backend* ops_;
};

}  // namespace rotoscale::nn
