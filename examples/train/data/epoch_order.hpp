// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The order of a run's windows: a permutation for each epoch. The next epoch's is drawn in small parts while windows of
// this one are handed out. A whole one takes 20 ms a million windows, and as much again in cache misses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::program {

/// Fisher-Yates shuffle with a random stream for each epoch.
class epoch_order {
 public:
  epoch_order() = default;
  epoch_order(std::int64_t windows, std::uint64_t seed) : windows_(windows), seed_(seed) {}

  /// The window that is number `i` of the run.
  std::int64_t window(std::int64_t i) {
    draw(i / windows_);
    if (next_.epoch != now_.epoch + 1) next_ = {now_.epoch + 1, {}, 0};
    const std::int64_t at = i % windows_, handed_out_after = windows_ - at;
    advance(next_, (work_left(next_) + handed_out_after - 1) / handed_out_after);
    return now_.order[static_cast<std::size_t>(at)];
  }

  /// Draws the whole epoch unless it exists: before the first step.
  void draw(std::int64_t epoch) {
    if (now_.epoch == epoch) return;
    std::swap(now_, next_);
    if (now_.epoch != epoch) now_ = {epoch, {}, 0};
    advance(now_, work_left(now_));
  }

  /// Is the order of `epoch` complete, so that draw(epoch) has no work?
  bool is_drawn(std::int64_t epoch) const {
    return (now_.epoch == epoch && work_left(now_) == 0) || (next_.epoch == epoch && work_left(next_) == 0);
  }

 private:
  struct permutation {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> order;
    std::int64_t swaps = 0;  ///< done
  };

  /// The numbers in their order, then a swap for each but the first.
  std::int64_t work_left(const permutation& p) const {
    return windows_ - static_cast<std::int64_t>(p.order.size()) + (windows_ - 1 - p.swaps);
  }
  void advance(permutation& p, std::int64_t work) const {
    const auto size = static_cast<std::int64_t>(p.order.size());
    const std::int64_t numbers = std::min(work, windows_ - size);
    p.order.reserve(static_cast<std::size_t>(windows_));
    for (std::int64_t n = 0; n < numbers; ++n) p.order.push_back(size + n);
    const random_stream random =
        nn::stream_for(seed_, nn::random_purpose::data_order, static_cast<std::uint64_t>(p.epoch));
    for (work -= numbers; work > 0; --work) {
      const auto j = static_cast<std::uint64_t>(windows_ - 1 - p.swaps++);
      const philox_block words = random.block(j);
      const std::uint64_t number = std::uint64_t{words.word[0]} << 32 | words.word[1];
      std::swap(p.order[j], p.order[number % (j + 1)]);
    }
  }

  std::int64_t windows_ = 1;
  std::uint64_t seed_ = 0;
  permutation now_, next_;
};

}  // namespace rotoscale::program
