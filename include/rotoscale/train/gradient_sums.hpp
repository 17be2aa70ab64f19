// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Sums of a step's gradients over all microbatches of all ranks, by the tree of nn/microbatch_tree.hpp. The order does
// not depend on the number of ranks. Each rank gets the sums of its shard of the arena, and updates it (ZeRO-1). With
// divided gradients ranks own every R-th microbatch, and keep sums of their shards alone (ZeRO-2).
// With gradient_reduction::library, each rank adds its microbatches by a tree of its own, and the transport adds the
// ranks' sums. With divided gradients the transport adds each microbatch over the ranks, one after the other.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "rotoscale/nn/communicator.hpp"
#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/optimizer_math.hpp"
#include "rotoscale/nn/step_state.hpp"

namespace rotoscale::train {

using nn::arena_range;

/// Who adds the gradients of ranks.
enum class gradient_reduction {
  tree,    ///< kernels, by the tree of microbatches
  library  ///< the transport: bits depend on ranks and on the division of gradients
};
ROTOSCALE_ENUM_NAMES(gradient_reduction, tree, library)

/// First element of part `part` of `parts` equal parts of a range, in whole chunks of the norm.
constexpr index_t equal_cut(arena_range all, int part, int parts) {
  constexpr index_t chunk = nn::parameter_alignment;
  const index_t chunks = (all.count + chunk - 1) / chunk;
  return all.first + std::min(all.count, chunks * part / parts * chunk);
}

/// Adds one step's gradients.
class gradient_sums {
 public:
  /// Elements of all ranks' buffers, 128 MiB: exchanges are large and few.
  static constexpr index_t buffered = index_t{1} << 25;

  /// `own`: microbatches of each rank. `ranks` may be null: one rank. `divides`: each sum is a shard.
  gradient_sums(nn::backend& ops, int own, nn::communicator* ranks, bool divides = false,
                gradient_reduction by = gradient_reduction::tree)
      : ops_(&ops),
        ranks_(ranks),
        own_(static_cast<std::uint32_t>(own)),
        divides_(divides),
        by_library_(by == gradient_reduction::library && ranks != nullptr && ranks->size() > 1) {
    const int size = ranks == nullptr ? 1 : ranks->size();
    leaves_ = own_ * static_cast<std::uint32_t>(size);
    for (int r = 0; r < size; ++r) {
      const auto first = by_library_ ? 0 : static_cast<std::uint32_t>(r) * own_;
      plans_.emplace_back(nn::leaf_range{first, first + own_}, by_library_ ? own_ : leaves_);
    }
    for (std::uint32_t i = 0; divides_ && !by_library_ && i <= own_; ++i) {
      const nn::microbatch_sums before({0, i * static_cast<std::uint32_t>(size)}, leaves_);
      waiting_nodes_.push_back(before.nodes());
    }
  }

  /// More than one rank?
  bool is_parallel() const { return plans_.size() > 1; }
  /// This rank's number.
  int rank() const { return ranks_ == nullptr ? 0 : ranks_->rank(); }
  /// Number of ranks.
  int size() const { return static_cast<int>(plans_.size()); }
  /// Microbatches of all ranks.
  std::uint32_t leaves() const { return leaves_; }
  /// Number of this rank's microbatch i over all ranks.
  std::uint32_t leaf(std::uint32_t i) const { return leaf(rank(), i); }
  /// Numbers this rank's microbatches.
  void number(nn::step_inputs& inputs) const {
    inputs.first_micro_batch = leaf(0);
    inputs.micro_batch_stride = divides_ ? static_cast<std::uint32_t>(size()) : 1;
    inputs.last_micro_batch = leaves_ - 1;
  }

  /// Moves a cut between two ranks to a place where arenas may be cut.
  using cut_rule = std::function<index_t(index_t element)>;
  /// Divides the arenas among ranks. Each range, whose gradients are complete at once, is divided, so all ranks send at
  /// all times.
  void divide(std::vector<arena_range> ranges, const cut_rule& rule = nullptr) {
    ranges_ = std::move(ranges);
    cuts_.clear();
    for (const arena_range& r : ranges_) {
      std::vector<index_t>& cuts = cuts_.emplace_back(1, r.first);
      for (int k = 1; k < size(); ++k) {
        const index_t cut = by_library_ ? even_cut(r, k) : equal_cut(r, k, size());
        cuts.push_back(rule ? std::clamp(rule(cut), cuts.back(), r.first + r.count) : cut);
      }
      cuts.push_back(r.first + r.count);
    }
  }
  /// Rank `rank`'s part of `range`, one of the ranges of divide().
  arena_range part_of(arena_range range, int rank) const {
    const auto same = [&](const arena_range& r) { return r.first == range.first && r.count == range.count; };
    const auto found = std::find_if(ranges_.begin(), ranges_.end(), same);
    ROTOSCALE_ASSERT(found != ranges_.end());
    const index_t* const cut = cuts_[static_cast<std::size_t>(found - ranges_.begin())].data() + rank;
    return {cut[0], cut[1] - cut[0]};
  }
  /// This rank's part of each range. Without other ranks `all`.
  std::vector<arena_range> shards(arena_range all) const {
    if (!is_parallel()) return {all};
    std::vector<arena_range> own;
    for (const arena_range& r : ranges_) own.push_back(part_of(r, rank()));
    return own;
  }

  /// Takes memory for arenas of `elements`, or of this rank's shards. `total`: the shards' gradients, if they are
  /// divided.
  void lay_out(nn::memory_cursor& memory, index_t elements, float* total = nullptr) {
    waiting_.clear();
    if (divides_) waiting_.push_back(total);
    for (std::size_t i = waiting_.size(); i < most_waiting(); ++i) {
      waiting_.push_back(memory.array<float>(nn::memory_category::gradients, elements));
    }
    if (!is_parallel() || by_library_) return;
    index_t nodes = divides_ ? size() : 0;
    for (const nn::microbatch_sums& p : plans_) nodes += divides_ ? 0 : static_cast<index_t>(p.nodes().size());
    constexpr index_t chunk = nn::parameter_alignment;
    piece_ = 0;
    for (const std::vector<index_t>& cuts : cuts_) {
      for (std::size_t k = 1; k < cuts.size(); ++k) piece_ = std::max(piece_, cuts[k] - cuts[k - 1]);
    }
    piece_ = std::min(piece_, buffered / nodes / chunk * chunk);
    const auto others = nodes - (divides_ ? 1 : static_cast<index_t>(plan().nodes().size()));
    buffers_ = memory.array<float>(nn::memory_category::workspace, others * piece_);
  }

  /// Adds the gradients of this rank's microbatch i, in `range` of the arena `gradient`, to the sums so far. The last
  /// microbatch's sum stays in the arena. Then ranks add theirs, and `gradient` has the total of this rank's shard.
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
    if (!last || !is_parallel()) return;
    by_library_ ? reduce(q, gradient + range.first, range) : add_over_ranks(q, gradient, range);
  }

  /// Adds microbatch i of all ranks to this rank's shard of a range. This rank's gradients are at `gradients`, which is
  /// overwritten. After the last microbatch the shard has the total.
  void add_divided(nn::queue q, int i, float* gradients, arena_range range) const {
    if (by_library_) return add_reduced(q, i, gradients, range);
    for_each_piece(range, [&](const auto& part) {
      const arena_range own = part(rank());
      index_t other = 0;
      exchange(
          q,
          [&](int s) -> std::span<std::byte> {
            const arena_range sent = part(s);
            return s == rank() ? std::span<std::byte>()
                               : bytes_of(gradients + (sent.first - range.first), {0, sent.count});
          },
          [&](int s) -> std::span<std::byte> {
            return s == rank() ? std::span<std::byte>() : bytes_of(buffers_ + other++ * piece_, {0, own.count});
          });
      add_leaves(q, i, gradients + (own.first - range.first), own.count,
                 place_in_shards(range) + (own.first - part_of(range, rank()).first));
    });
  }

  /// Gathers the losses of all microbatches into the step's state, in backend memory.
  void gather_losses(nn::queue q, nn::step_state* state) const {
    if (!divides_) {
      return gather(q, [&](int r) { return bytes_of(state->losses + leaf(r, 0), own_); });
    }
    for (std::uint32_t i = 0; i < own_; ++i) {
      gather(q, [&](int r) { return bytes_of(state->losses + leaf(r, i), 1); });
    }
  }
  /// Sends `own` to all ranks, and receives theirs into part(s).
  template <class Part>
  void gather_parts(nn::queue q, std::span<const std::byte> own, const Part& part) const {
    if (is_parallel())
      exchange(
          q, [&](int) { return own; }, part);
  }
  /// Gathers the ranks' parts of a range of an arena in place, on all ranks.
  void gather_range(nn::queue q, float* arena, arena_range range) const {
    gather(q, [&](int r) { return bytes_of(arena, part_of(range, r)); });
  }
  /// Gathers the gradients of all ranges.
  void gather_shards(nn::queue q, float* arena) const {
    for (const arena_range& r : ranges_) gather_range(q, arena, r);
  }

 private:
  std::uint32_t leaf(int r, std::uint32_t i) const {
    const auto n = static_cast<std::uint32_t>(r);
    return divides_ ? i * static_cast<std::uint32_t>(size()) + n : n * own_ + i;
  }
  /// Cuts between parts of the same number of chunks; the last rank has those that are left.
  index_t even_cut(arena_range all, int part) const {
    constexpr index_t chunk = nn::parameter_alignment;
    return all.first + all.count / chunk / size() * part * chunk;
  }
  /// The library adds a range, whose gradients begin at `first`.
  void reduce(nn::queue q, float* first, arena_range range) const {
    std::vector<index_t> cuts(1, 0);
    for (int s = 0; s < size(); ++s) cuts.push_back(cuts.back() + part_of(range, s).count);
    ranks_->reduce_scatter(q, first, cuts);
  }
  /// add_divided by the library: totals take in one microbatch of all ranks after the other.
  void add_reduced(nn::queue q, int i, float* gradients, arena_range range) const {
    reduce(q, gradients, range);
    const arena_range own = part_of(range, rank());
    float *const sum = gradients + (own.first - range.first), *const total = waiting_[0] + place_in_shards(range);
    if (i > 0) return add_into(q, total, total, sum, {0, own.count});
    ops_->copy(q, total, sum, static_cast<std::size_t>(own.count) * sizeof(float));
  }
  /// Most partial sums at once. Divided sums include the total.
  std::size_t most_waiting() const {
    if (!divides_) return static_cast<std::size_t>(plan().most_waiting());
    std::size_t most = 1;
    for (const auto& nodes : waiting_nodes_) most = std::max(most, nodes.size());
    return most;
  }
  /// Offset of this rank's shard of a range among its shards.
  index_t place_in_shards(arena_range range) const {
    index_t place = 0;
    for (const arena_range& r : ranges_) {
      if (r.first == range.first) break;
      place += part_of(r, rank()).count;
    }
    return place;
  }
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
    gather_parts(q, part(rank()), part);
  }
  void add_into(nn::queue q, float* sum, const float* x, const float* y, arena_range r) const {
    constexpr index_t cols = nn::parameter_alignment;
    const auto rows = [&](const float* arena) {
      return nn::dense_tensor(const_cast<float*>(arena) + r.first, nn::dtype::fp32, {r.count / cols, cols});
    };
    if (r.count > 0) ops_->add(q, {rows(x), rows(y)}, {rows(sum)});
  }
  /// Calls f(part), where part(s) is a piece of rank s's shard of a range.
  template <class Function>
  void for_each_piece(arena_range range, const Function& f) const {
    index_t most = 0;
    for (int s = 0; s < size(); ++s) most = std::max(most, part_of(range, s).count);
    for (index_t at = 0; at < most; at += piece_) {
      f([&](int s) {
        const arena_range shard = part_of(range, s);
        const index_t skipped = std::min(at, shard.count);
        return arena_range{shard.first + skipped, std::min(piece_, shard.count - skipped)};
      });
    }
  }
  /// Each rank adds the nodes of its shard, a piece at a time.
  void add_over_ranks(nn::queue q, float* gradient, arena_range range) const {
    for_each_piece(range, [&](const auto& part) {
      collect(q, gradient, part);
      add_nodes(q, gradient, part(rank()));
    });
  }
  /// Adds `count` gradients of microbatch i of each rank to the partial sums, at element `place` of this rank's shards.
  /// This rank's gradients are at `own`, others in the buffers.
  void add_leaves(nn::queue q, int i, float* own, index_t count, index_t place) const {
    const auto waiting = [&](std::size_t k) { return waiting_[k] + place; };
    std::vector<std::pair<nn::leaf_range, float*>> stack;
    for (const nn::leaf_range& node : waiting_nodes_[static_cast<std::size_t>(i)]) {
      stack.emplace_back(node, waiting(stack.size()));
    }
    float* next = buffers_;
    for (int s = 0; s < size(); ++s) {
      const std::uint32_t first = leaf(s, static_cast<std::uint32_t>(i));
      nn::leaf_range sum{first, first + 1};
      float* at = s == rank() ? own : std::exchange(next, next + piece_);
      for (; !stack.empty() && nn::are_siblings(stack.back().first, sum, leaves_); stack.pop_back()) {
        float* const older = stack.back().second;
        sum.first = stack.back().first.first;
        float* const to = sum == nn::leaf_range{0, leaves_} ? waiting(0) : older;
        add_into(q, to, older, at, {0, count});
        at = to;
      }
      stack.emplace_back(sum, at);
    }
    for (std::size_t k = 0; k < stack.size(); ++k) {
      if (stack[k].second == waiting(k)) continue;
      ops_->copy(q, waiting(k), stack[k].second, static_cast<std::size_t>(count) * sizeof(float));
    }
  }
  /// Arena of node k of this rank.
  float* own_node(float* gradient, std::size_t k) const {
    return k + 1 == plan().nodes().size() ? gradient : waiting_[k];
  }
  /// Fills the buffers with the other ranks' nodes of this rank's part, ascending.
  template <class Part>
  void collect(nn::queue q, float* gradient, const Part& part) const {
    std::size_t most = 0;
    for (const nn::microbatch_sums& p : plans_) most = std::max(most, p.nodes().size());
    const arena_range own = part(rank());
    for (std::size_t k = 0; k < most; ++k) {
      float* next = buffers_ + static_cast<index_t>(k) * piece_;  // for node k of rank s
      exchange(
          q,
          [&](int s) -> std::span<std::byte> {
            if (k >= plan().nodes().size() || s == rank()) return {};
            return bytes_of(own_node(gradient, k), part(s));
          },
          [&](int s) -> std::span<std::byte> {
            const std::size_t nodes = plans_[static_cast<std::size_t>(s)].nodes().size();
            if (s == rank()) return {};
            float* const here = std::exchange(next, next + static_cast<index_t>(nodes) * piece_);
            return k >= nodes ? std::span<std::byte>() : bytes_of(here, {0, own.count});
          });
    }
  }
  /// Adds all nodes by the tree, into the gradient.
  void add_nodes(nn::queue q, float* gradient, arena_range own) const {
    std::vector<std::pair<nn::leaf_range, float*>> stack;
    float* next = buffers_;
    for (std::size_t s = 0; s < plans_.size(); ++s) {
      for (std::size_t k = 0; k < plans_[s].nodes().size(); ++k) {
        nn::leaf_range sum = plans_[s].nodes()[k];
        const bool is_own = static_cast<int>(s) == rank();
        float* at = is_own ? own_node(gradient, k) + own.first : std::exchange(next, next + piece_);
        for (; !stack.empty() && nn::are_siblings(stack.back().first, sum, leaves_); stack.pop_back()) {
          float* const older = stack.back().second;
          sum.first = stack.back().first.first;
          float* const to = sum == nn::leaf_range{0, leaves_} ? gradient + own.first : older;
          add_into(q, to, older, at, {0, own.count});
          at = to;
        }
        stack.emplace_back(sum, at);
      }
    }
    ROTOSCALE_ASSERT(stack.size() == 1 && stack.front().second == gradient + own.first);
  }

  nn::backend* ops_ = nullptr;
  nn::communicator* ranks_ = nullptr;
  std::uint32_t own_ = 1, leaves_ = 1;
  bool divides_ = false, by_library_ = false;
  std::vector<nn::microbatch_sums> plans_;                  ///< by rank
  std::vector<std::vector<nn::leaf_range>> waiting_nodes_;  ///< divided: before microbatch i of each rank
  std::vector<float*> waiting_;                             ///< arenas of sums, oldest first
  float* buffers_ = nullptr;                                ///< a piece of each other rank's nodes
  std::vector<arena_range> ranges_;
  std::vector<std::vector<index_t>> cuts_;  ///< of each range, between ranks
  index_t piece_ = 0;
};

}  // namespace rotoscale::train
