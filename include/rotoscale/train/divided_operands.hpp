// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands of frozen weights that are divided among ranks (ZeRO-3). Each rank stores its part of the bytes of each
// group of blocks. Two buffers hold whole groups: the one in use, and the next one, which arrives meanwhile.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "rotoscale/nn/communicator.hpp"
#include "rotoscale/nn/memory.hpp"

namespace rotoscale::train {

/// Bytes of an operand set that this rank stores.
struct stored_part {
  std::size_t first = 0;    ///< of the set's bytes
  std::size_t bytes = 0;    ///< 0: none
  std::size_t offset = 0;   ///< in the arena of quantized weights
  std::byte* at = nullptr;  ///< null while counting

  bool operator==(const stored_part&) const = default;
};

/// Operands of groups of blocks, in parts. A group has a number; groups without divided operands may have one too.
class divided_operands {
 public:
  using category = nn::memory_category;  ///< shorthand

  /// Divides among these ranks; null: nothing is divided. Called before the first layout.
  void divide(nn::backend& ops, nn::communicator* ranks) {
    ops_ = &ops;
    ranks_ = ranks;
  }
  /// The queue of exchanges, which the session owns.
  void gather_on(nn::queue q) { exchange_ = q; }
  /// Are there parts?
  bool is_divided() const { return ranks_ != nullptr && ranks_->size() > 1; }

  /// Begins a layout: no groups.
  void clear() {
    groups_.clear();
    resident_ = {};
  }
  /// Adds a set of `bytes` to a group, groups ascending. Returns its place in the group.
  std::size_t add(std::size_t group, std::size_t bytes) {
    if (groups_.empty() || groups_.back().number != group) groups_.push_back({group, 0, 0, nullptr});
    std::size_t& end = groups_.back().bytes;
    return std::exchange(end, end + nn::memory_cursor::aligned(bytes));
  }
  /// Takes memory for the parts and the buffers.
  void lay_out(nn::memory_cursor& memory) {
    const std::size_t begin = memory.mark(category::quantized);
    std::size_t largest = 0;
    for (stored_group& g : groups_) {
      g.offset = memory.mark(category::quantized);
      g.own = static_cast<std::byte*>(memory.take(category::quantized, part_of(g, ranks_->rank()).bytes));
      largest = std::max(largest, g.bytes);
    }
    for (std::byte*& b : buffers_) b = static_cast<std::byte*>(memory.take(category::quantized, largest));
    const std::size_t end = memory.mark(category::quantized);
    if (!memory.counts_only()) resident_ = {memory.ledger(), category::quantized, end - begin};
  }
  /// Memory of a set in a buffer. It holds the set after arrive() of its group.
  nn::memory_cursor buffer(std::size_t group, std::size_t place) const {
    const std::size_t k = index_of(group);
    if (buffers_[k % 2] == nullptr) return nn::memory_cursor();
    nn::arena_bases bases{};
    bases[static_cast<std::size_t>(category::quantized)] = buffers_[k % 2] + place;
    return nn::memory_cursor(bases);
  }
  /// Part of a set of `bytes` that this rank stores.
  stored_part part(std::size_t group, std::size_t place, std::size_t bytes) const {
    const stored_group& g = groups_[index_of(group)];
    const range own = part_of(g, ranks_->rank());
    const std::size_t first = std::max(own.first, place), end = std::min(own.first + own.bytes, place + bytes);
    if (first >= end) return {};
    const std::size_t skipped = first - own.first;
    return {first - place, end - first, g.offset + skipped, g.own == nullptr ? nullptr : g.own + skipped};
  }
  /// Keeps this rank's part of a set that was made in its buffer.
  void store(nn::queue q, std::size_t group, std::size_t place, std::size_t bytes) const {
    const stored_part own = part(group, place, bytes);
    if (own.bytes == 0) return;
    ops_->copy(q, own.at, buffers_[index_of(group) % 2] + place + own.first, own.bytes);
  }
  /// Frees all until the next layout.
  void release() { resident_ = {}; }

  /// Begins a forward pass on queue q: the first group is sent.
  void begin(nn::queue q) {
    if (groups_.empty()) return;
    holds_[0] = holds_[1] = groups_.size();
    gather(q, 0);
  }
  /// Makes operations on queue q that read a group's operands wait for them. Then gathers the next group of the pass,
  /// as soon as earlier operations have read its buffer.
  void arrive(nn::queue q, std::size_t group, bool forward) {
    const std::size_t k = index_of(group);
    if (k == groups_.size()) return;
    gather(q, k);
    if (std::exchange(arrives_[k % 2], false)) ops_->follow(q, exchange_);
    if (forward ? k + 1 < groups_.size() : k > 0) gather(q, forward ? k + 1 : k - 1);
  }

 private:
  struct stored_group {
    std::size_t number = 0;
    std::size_t bytes = 0;     ///< of all sets
    std::size_t offset = 0;    ///< of this rank's part, in the arena
    std::byte* own = nullptr;  ///< this rank's part
  };
  struct range {
    std::size_t first, bytes;
  };

  range part_of(const stored_group& g, int rank) const {
    const std::size_t most = nn::memory_cursor::aligned((g.bytes + ranks_size() - 1) / ranks_size());
    const std::size_t first = std::min(g.bytes, most * static_cast<std::size_t>(rank));
    return {first, std::min(g.bytes, first + most) - first};
  }
  std::size_t ranks_size() const { return static_cast<std::size_t>(ranks_->size()); }
  /// Index of a group among those with divided operands; their number if it has none.
  std::size_t index_of(std::size_t group) const {
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.number == group; });
    return static_cast<std::size_t>(found - groups_.begin());
  }
  /// Gathers group k into its buffer, unless that holds it.
  void gather(nn::queue q, std::size_t k) {
    if (std::exchange(holds_[k % 2], k) == k) return;
    arrives_[k % 2] = true;
    ops_->follow(exchange_, q);
    const stored_group& g = groups_[k];
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (int r = 0; r < ranks_->size(); ++r) {
      const range part = part_of(g, r);
      send.emplace_back(g.own, part_of(g, ranks_->rank()).bytes);
      receive.emplace_back(buffers_[k % 2] + part.first, part.bytes);
    }
    ranks_->transfer(exchange_, send, receive);
  }

  nn::backend* ops_ = nullptr;
  nn::communicator* ranks_ = nullptr;
  nn::queue exchange_;
  std::vector<stored_group> groups_;  ///< with divided operands, ascending
  std::byte* buffers_[2] = {};
  std::size_t holds_[2] = {};  ///< group in each buffer
  bool arrives_[2] = {};       ///< its gather is in flight
  nn::resident resident_;
};

}  // namespace rotoscale::train
