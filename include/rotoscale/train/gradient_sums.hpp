// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Sums of a step's gradients over all microbatches of all ranks, by the tree of nn/microbatch_tree.hpp. The order does
// not depend on the number of ranks. Each rank gets the sums of its shard of the arena, and updates it (ZeRO-1).
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "rotoscale/nn/communicator.hpp"
#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/optimizer_math.hpp"
#include "rotoscale/nn/step_state.hpp"

namespace rotoscale::train {

using nn::arena_range;

/// Part of arenas of `elements` that rank `rank` of `ranks` owns, in whole chunks of the norm.
constexpr arena_range shard_of(index_t elements, int rank, int ranks) {
  constexpr index_t chunk = nn::parameter_alignment;
  const index_t chunks = (elements + chunk - 1) / chunk;
  const index_t first = std::min(elements, chunks * rank / ranks * chunk);
  return {first, std::min(elements, chunks * (rank + 1) / ranks * chunk) - first};
}

/// Adds one step's gradients.
class gradient_sums {
 public:
  static constexpr index_t piece = index_t{1} << 20;  ///< elements that one rank adds between two exchanges

  /// `own`: microbatches of each rank. `ranks` may be null: one rank.
  gradient_sums(nn::backend& ops, int own, nn::communicator* ranks)
      : ops_(&ops), ranks_(ranks), own_(static_cast<std::uint32_t>(own)) {
    const int size = ranks == nullptr ? 1 : ranks->size();
    leaves_ = own_ * static_cast<std::uint32_t>(size);
    for (int r = 0; r < size; ++r) {
      const auto first = static_cast<std::uint32_t>(r) * own_;
      plans_.emplace_back(nn::leaf_range{first, first + own_}, leaves_);
    }
  }

  /// More than one rank?
  bool is_parallel() const { return plans_.size() > 1; }
  /// Microbatches of all ranks.
  std::uint32_t leaves() const { return leaves_; }
  /// Numbers this rank's microbatches.
  void number(nn::step_inputs& inputs) const {
    inputs.first_micro_batch = static_cast<std::uint32_t>(rank()) * own_;
    inputs.micro_batch_stride = 1;
    inputs.last_micro_batch = leaves_ - 1;
  }

  /// This rank's part of arenas of `elements`: all of them without other ranks.
  arena_range shard(index_t elements) const { return shard_of(elements, rank(), size()); }

  /// Takes memory for arenas of `elements`.
  void lay_out(nn::memory_cursor& memory, index_t elements) {
    elements_ = elements;
    waiting_.clear();
    for (int i = 0; i < plan().most_waiting(); ++i) {
      waiting_.push_back(memory.array<float>(nn::memory_category::gradients, elements));
    }
    if (!is_parallel()) return;
    std::size_t nodes = 0;
    for (const nn::microbatch_sums& p : plans_) nodes += p.nodes().size();
    buffer_elements_ = std::min(piece, shard_of(elements, size() - 1, size()).count);
    buffers_ = memory.array<float>(nn::memory_category::workspace, static_cast<index_t>(nodes) * buffer_elements_);
  }

  /// Microbatch i of this rank has its gradients in `range` of the arena `gradient`: adds those that can be added. The
  /// last microbatch leaves its sum there. The sums over ranks follow, and `gradient` has the total of this rank's
  /// shard.
  void add(nn::queue q, int i, float* gradient, arena_range range) const {
    const nn::microbatch_sums::leaf& leaf = plan().leaves()[static_cast<std::size_t>(i)];
    const bool last = i + 1 == static_cast<int>(own_);
    const auto waiting = [&](int at) { return waiting_[static_cast<std::size_t>(at)]; };
    if (!last && leaf.merges == 0) {
      const auto bytes = static_cast<std::size_t>(range.count) * sizeof(float);
      return ops_->copy(q, waiting(leaf.waiting) + range.first, gradient + range.first, bytes);
    }
    const float* newest = gradient;
    for (int m = 1; m <= leaf.merges; ++m) {
      float* const older = waiting(leaf.waiting - m);
      add_into(q, last && m == leaf.merges ? gradient : older, older, newest, range);
      newest = older;
    }
    if (last && is_parallel()) add_over_ranks(q, gradient, range);
  }

  /// Gathers the losses of all microbatches into the step's state, in backend memory.
  void gather_losses(nn::queue q, nn::step_state* state) const {
    gather(q, [&](int r) { return bytes_of(state->losses + static_cast<std::uint32_t>(r) * own_, own_); });
  }
  /// Gathers the shards of an arena in place, on all ranks.
  void gather_shards(nn::queue q, float* arena) const {
    gather(q, [&](int r) { return bytes_of(arena, shard_of(elements_, r, size())); });
  }
  /// Gathers numbers of the chunks of an arena in place.
  void gather_chunks(nn::queue q, double* chunks) const {
    constexpr index_t chunk = nn::parameter_alignment;
    gather(q, [&](int r) {
      const arena_range own = shard_of(elements_, r, size());
      return bytes_of(chunks + own.first / chunk, static_cast<std::size_t>((own.count + chunk - 1) / chunk));
    });
  }

 private:
  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  int size() const { return static_cast<int>(plans_.size()); }
  const nn::microbatch_sums& plan() const { return plans_[static_cast<std::size_t>(rank())]; }
  template <class T>
  static std::span<std::byte> bytes_of(T* first, std::size_t count) {
    return {reinterpret_cast<std::byte*>(first), count * sizeof(T)};
  }
  static std::span<std::byte> bytes_of(float* arena, arena_range r) {
    return bytes_of(arena + r.first, static_cast<std::size_t>(r.count));
  }
  /// Sends send(s) to each rank s, and receives into receive(s).
  template <class Send, class Receive>
  void exchange(nn::queue q, const Send& send, const Receive& receive) const {
    std::vector<std::span<const std::byte>> out;
    std::vector<std::span<std::byte>> in;
    for (int s = 0; s < size(); ++s) {
      out.push_back(send(s));
      in.push_back(receive(s));
    }
    ranks_->transfer(q, out, in);
  }
  /// Each rank sends its own part to all ranks, and receives theirs.
  template <class Part>
  void gather(nn::queue q, const Part& part) const {
    if (is_parallel())
      exchange(
          q, [&](int) { return part(rank()); }, part);
  }
  void add_into(nn::queue q, float* sum, const float* x, const float* y, arena_range r) const {
    constexpr index_t cols = nn::parameter_alignment;
    const auto rows = [&](const float* arena) {
      return nn::dense_tensor(const_cast<float*>(arena) + r.first, nn::dtype::fp32, {r.count / cols, cols});
    };
    if (r.count > 0) ops_->add(q, {rows(x), rows(y)}, {rows(sum)});
  }
  float* buffer(std::size_t i) const { return buffers_ + static_cast<index_t>(i) * buffer_elements_; }
  /// Each rank adds the nodes of its shard, a piece at a time.
  void add_over_ranks(nn::queue q, float* gradient, arena_range range) const {
    index_t most = 0;
    for (int s = 0; s < size(); ++s) most = std::max(most, intersection(range, shard_of(elements_, s, size())).count);
    for (index_t at = 0; at < most; at += buffer_elements_) {
      const auto part = [&](int s) {
        const arena_range shard = intersection(range, shard_of(elements_, s, size()));
        const index_t skipped = std::min(at, shard.count);
        return arena_range{shard.first + skipped, std::min(buffer_elements_, shard.count - skipped)};
      };
      const arena_range own = part(rank());
      collect(q, gradient, part, own.count);
      add_nodes(q, own.count);
      if (own.count > 0) ops_->copy(q, gradient + own.first, buffer(0), bytes_of(buffer(0), {0, own.count}).size());
    }
  }
  /// Fills the buffers with this rank's part of every node, ascending.
  template <class Part>
  void collect(nn::queue q, float* gradient, const Part& part, index_t own) const {
    std::size_t most = 0;
    for (const nn::microbatch_sums& p : plans_) most = std::max(most, p.nodes().size());
    for (std::size_t k = 0; k < most; ++k) {
      std::size_t next = k;  // buffer of node k of rank s
      exchange(
          q,
          [&](int s) -> std::span<std::byte> {
            if (k >= plan().nodes().size()) return {};
            return bytes_of(k + 1 == plan().nodes().size() ? gradient : waiting_[k], part(s));
          },
          [&](int s) -> std::span<std::byte> {
            const std::size_t nodes = plans_[static_cast<std::size_t>(s)].nodes().size(), here = next;
            next += nodes;
            return k >= nodes ? std::span<std::byte>() : bytes_of(buffer(here), static_cast<std::size_t>(own));
          });
    }
  }
  /// Adds all nodes by the tree into buffer 0.
  void add_nodes(nn::queue q, index_t count) const {
    std::vector<std::pair<nn::leaf_range, std::size_t>> stack;
    std::size_t i = 0;
    for (const nn::microbatch_sums& p : plans_) {
      for (nn::leaf_range sum : p.nodes()) {
        std::size_t at = i++;
        for (; !stack.empty() && nn::are_siblings(stack.back().first, sum, leaves_); stack.pop_back()) {
          add_into(q, buffer(stack.back().second), buffer(stack.back().second), buffer(at), {0, count});
          at = stack.back().second;
          sum.first = stack.back().first.first;
        }
        stack.emplace_back(sum, at);
      }
    }
    ROTOSCALE_ASSERT(stack.size() == 1 && stack.front().second == 0);
  }

  nn::backend* ops_ = nullptr;
  nn::communicator* ranks_ = nullptr;
  std::uint32_t own_ = 1, leaves_ = 1;
  std::vector<nn::microbatch_sums> plans_;  ///< by rank
  std::vector<float*> waiting_;             ///< arenas of sums, oldest first
  float* buffers_ = nullptr;                ///< a piece of each node
  index_t buffer_elements_ = 0, elements_ = 0;
};

}  // namespace rotoscale::train
