// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with a CPU backend of its own: collectives read the other ranks' memory.
// Every rank must call the same operations in the same order; a rank that fails calls abort, and the others throw.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "rotoscale/nn/communicator.hpp"

namespace rotoscale::nn {

/// Where the ranks meet.
class rank_group {
 public:
  /// For `size` ranks.
  explicit rank_group(int size) : published_(static_cast<std::size_t>(size)) {}

  /// Number of ranks.
  int size() const { return static_cast<int>(published_.size()); }
  /// What a rank shows the others between two meetings.
  tensor_view& published(int rank) { return published_[static_cast<std::size_t>(rank)]; }

  /// Returns when all ranks have called it. Throws std::runtime_error in all of them after an abort.
  void meet() {
    std::unique_lock lock(mutex_);
    const std::uint64_t now = generation_;
    if (++waiting_ == size()) {
      waiting_ = 0;
      ++generation_;
      wake_.notify_all();
    }
    wake_.wait(lock, [&] { return aborted_ || generation_ != now; });
    if (aborted_) throw std::runtime_error("another rank failed");
  }
  /// Makes every rank that waits, or will, throw.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::uint64_t generation_ = 0;
  int waiting_ = 0;
  bool aborted_ = false;
  std::vector<tensor_view> published_;
};

/// One rank of a group. Its backend's queues run operations when they are put there.
class thread_rank final : public communicator {
 public:
  /// Number `rank` of the group.
  thread_rank(rank_group& group, int rank) : group_(&group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void sum(queue, tensor_view x) override {
    reduce(x, [](auto a, auto b) { return a + b; });
  }
  void max(queue, tensor_view x) override {
    reduce(x, [](auto a, auto b) { return a < b ? b : a; });
  }

 private:
  template <class Combine>
  void reduce(tensor_view x, const Combine& combine) {
    switch (x.type) {
      case dtype::fp32: return reduce_as<float>(x, combine);
      case dtype::fp64: return reduce_as<double>(x, combine);
      case dtype::i64: return reduce_as<std::int64_t>(x, combine);
      default: throw std::invalid_argument("ranks reduce fp32, fp64 and i64 only");
    }
  }
  /// Each rank reduces a share of the elements, ranks ascending, and gives it to all.
  template <class T, class Combine>
  void reduce_as(tensor_view x, const Combine& combine) {
    group_->published(rank_) = x;
    group_->meet();
    const index_t n = x.size(), first = n * rank_ / size(), last = n * (rank_ + 1) / size();
    for (index_t i = first; i < last; ++i) {
      T value = static_cast<const T*>(group_->published(0).data)[i];
      for (int r = 1; r < size(); ++r) value = combine(value, static_cast<const T*>(group_->published(r).data)[i]);
      for (int r = 0; r < size(); ++r) static_cast<T*>(group_->published(r).data)[i] = value;
    }
    group_->meet();
  }

  rank_group* group_;
  int rank_;
};

}  // namespace rotoscale::nn
