// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The binary tree that adds the microbatches of a step. A leaf is a microbatch, numbered over all ranks. Node i of a
// level adds nodes 2i and 2i + 1 of the level below. A node past the last leaf is absent: its sibling moves up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rotoscale/config.hpp"

namespace rotoscale::nn {

/// Most leaves of a step: random words repeat after them.
inline constexpr std::uint32_t most_microbatches = 256;

/// Leaves [first, last) of one node.
struct leaf_range {
  std::uint32_t first = 0;  ///< number of the first leaf
  std::uint32_t last = 0;   ///< one past the last
  bool operator==(const leaf_range&) const = default;
};

/// True if node b follows node a and both have the same parent, in a tree over `leaves` leaves.
constexpr bool are_siblings(leaf_range a, leaf_range b, std::uint32_t leaves) {
  const std::uint32_t width = a.last - a.first;
  return a.last == b.first && a.first % (2 * width) == 0 && b.last == std::min(leaves, a.first + 2 * width);
}

/// Sum of n values by the tree; 0 for none.
ROTOSCALE_HD constexpr double add_leaves(const double* x, std::uint32_t n) {
  double full[9] = {};  // full[k]: the newest complete node of level k whose sibling is still to come
  for (std::uint32_t i = 0; i < n; ++i) {
    double sum = x[i];
    int level = 0;
    for (; (i >> level & 1u) != 0; ++level) sum = full[level] + sum;
    full[level] = sum;
  }
  double sum = 0;
  bool any = false;
  for (int level = 0; level < 9; ++level) {
    if ((n >> level & 1u) == 0) continue;
    sum = any ? full[level] + sum : full[level];
    any = true;
  }
  return sum;
}

/// Order in which one rank adds its leaves [first, last). Sums without their sibling are on a stack.
class microbatch_sums {
 public:
  /// Step after a leaf: the leaf is added to the newest `merges` of the `waiting` sums, and the result goes on the
  /// stack.
  struct leaf {
    int waiting = 0;  ///< sums on the stack before
    int merges = 0;   ///< of them, newest first
  };

  microbatch_sums() = default;
  /// Order of a rank that owns `own`, in a tree over `leaves` leaves.
  microbatch_sums(leaf_range own, std::uint32_t leaves) {
    for (std::uint32_t i = own.first; i < own.last; ++i) {
      leaf now{static_cast<int>(nodes_.size()), 0};
      leaf_range sum{i, i + 1};
      for (; !nodes_.empty() && are_siblings(nodes_.back(), sum, leaves); ++now.merges) {
        sum.first = nodes_.back().first;
        nodes_.pop_back();
      }
      most_waiting_ = std::max(most_waiting_, now.waiting);
      leaves_.push_back(now);
      nodes_.push_back(sum);
    }
  }

  /// In order.
  const std::vector<leaf>& leaves() const { return leaves_; }
  /// Largest nodes over this rank's leaves, ascending. One node if the number of leaves is a power of two.
  const std::vector<leaf_range>& nodes() const { return nodes_; }
  /// Most waiting sums while a leaf is computed: log2 of a power of two.
  int most_waiting() const { return most_waiting_; }

 private:
  std::vector<leaf> leaves_;
  std::vector<leaf_range> nodes_;
  int most_waiting_ = 0;
};

}  // namespace rotoscale::nn
