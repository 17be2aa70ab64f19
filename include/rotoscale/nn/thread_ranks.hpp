// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with a CPU backend of its own: collectives read the other ranks' memory.
// Every rank must call the same operations in the same order; a rank that fails calls abort, and the others throw.
#pragma once

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "rotoscale/nn/communicator.hpp"

namespace rotoscale::nn {

/// Where the ranks meet.
class rank_group {
 public:
  /// What a rank shows the others between two meetings.
  using shown = std::span<const std::span<const std::byte>>;

  /// For `size` ranks.
  explicit rank_group(int size) : published_(static_cast<std::size_t>(size)) {}

  /// Number of ranks.
  int size() const { return static_cast<int>(published_.size()); }
  /// What a rank shows.
  shown& published(int rank) { return published_[static_cast<std::size_t>(rank)]; }

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
  std::vector<shown> published_;
};

/// One rank of a group. Its backend's queues run operations when they are put there.
class thread_rank final : public communicator {
 public:
  /// Number `rank` of the group.
  thread_rank(rank_group& group, int rank) : group_(&group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void transfer(queue, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) override {
    group_->published(rank_) = send;
    group_->meet();
    for (int s = 0; s < size(); ++s) {
      const std::span<const std::byte> from = group_->published(s)[static_cast<std::size_t>(rank_)];
      const std::span<std::byte> to = receive[static_cast<std::size_t>(s)];
      if (from.size() != to.size()) throw std::logic_error("ranks exchange different numbers of bytes");
      if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size());
    }
    group_->meet();
  }
  void sum(queue q, tensor_view x) override {
    reduce<std::int64_t>(q, x, [](std::int64_t a, std::int64_t b) { return a + b; });
  }
  void max(queue q, tensor_view x) override {
    reduce<float>(q, x, [](float a, float b) { return a < b ? b : a; });
  }

 private:
  /// Every rank gets all values and reduces them, ranks ascending.
  template <class T, class Combine>
  void reduce(queue q, tensor_view x, const Combine& combine) {
    ROTOSCALE_ASSERT(x.type == dtype_of<T>);
    const auto n = static_cast<std::size_t>(x.size()), ranks = static_cast<std::size_t>(size());
    T* const own = static_cast<T*>(x.data);
    std::vector<T> all(n * ranks);
    const std::vector<std::span<const std::byte>> send(ranks, std::as_bytes(std::span(own, n)));
    std::vector<std::span<std::byte>> receive;
    for (std::size_t r = 0; r < ranks; ++r) receive.push_back(std::as_writable_bytes(std::span(all).subspan(r * n, n)));
    transfer(q, send, receive);
    for (std::size_t i = 0; i < n; ++i) {
      own[i] = all[i];
      for (std::size_t r = 1; r < ranks; ++r) own[i] = combine(own[i], all[r * n + i]);
    }
  }

  rank_group* group_;
  int rank_;
};

/// Calls body(rank) for each rank of a group: rank 0 on this thread, others on threads of their own. If one throws, all
/// others do at their next collective. Then throws what the first one threw.
template <class Body>
void run_ranks(rank_group& group, const Body& body) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int r) {
    try {
      thread_rank rank(group, r);
      body(rank);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      group.abort();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < group.size(); ++r) threads.emplace_back(run, r);
  run(0);
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace rotoscale::nn
