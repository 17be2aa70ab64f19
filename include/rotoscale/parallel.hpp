// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A small thread pool for deterministic loops: every index of a loop is computed wholly by one thread, so results do
// not depend on how many threads there are. (OpenMP would do, but ThreadSanitizer cannot see into Debian's libgomp.)
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "rotoscale/scratch.hpp"

namespace rotoscale {

/// Threads that share loops: bodies own outputs, so that results do not depend on their number.
class thread_pool {
 public:
  /// `threads` counts the calling one; 0 means one for every hardware thread.
  /// Throws std::system_error if one cannot be started; those that were are joined.
  ROTOSCALE_ISA_TAG explicit thread_pool(int threads = 0) : thread_pool(no_workers{}) {
    if (threads <= 0) threads = static_cast<int>(std::thread::hardware_concurrency());
    if (threads < 1) threads = 1;
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(static_cast<std::size_t>(i)); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ROTOSCALE_ISA_TAG ~thread_pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  /// How many, the calling one included.
  ROTOSCALE_ISA_TAG int threads() const { return static_cast<int>(workers_.size()) + 1; }
  /// What each of so many threads has of lent memory during a loop.
  ROTOSCALE_ISA_TAG static constexpr std::size_t share_of(std::size_t bytes, int threads) {
    return bytes / static_cast<std::size_t>(threads) / scratch_stack::alignment * scratch_stack::alignment;
  }

  /// Calls body(i) for 0 <= i < count, each once, in any order and on any thread. One loop at a time; body must not
  /// throw and must not start another loop on this pool. Memory that the calling thread was lent, and has not taken, is
  /// lent to all threads in equal shares meanwhile.
  template <class Body>
  ROTOSCALE_ISA_TAG void for_each(index_t count, const Body& body) {
    if (count <= 0) return;
    if (workers_.empty() || count == 1) {
      for (index_t i = 0; i < count; ++i) body(i);
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      run_ = [](const void* b, index_t i) { (*static_cast<const Body*>(b))(i); };
      body_ = &body;
      count_ = count;
      memory_ = scratch_stack::of_thread().rest();
      next_.store(0, std::memory_order_relaxed);
      busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take_work(0);
    for (int spin = 0; busy_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin > spins_before_yield) std::this_thread::yield();
    }
  }

 private:
  // Delegated to, so that the destructor runs, and joins, if the other constructor throws.
  struct no_workers {};
  ROTOSCALE_ISA_TAG explicit thread_pool(no_workers) {}

  static constexpr int spins_before_yield = 200;
  static constexpr int spins_before_sleep =
      4000;  // tens of microseconds: the gaps between the loops of a training step

  ROTOSCALE_ISA_TAG void take_work(std::size_t thread) {
    const std::size_t share = share_of(memory_.size(), threads());
    const lent_scratch lent(memory_.subspan(thread * share, share));
    for (index_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) run_(body_, i);
  }

  ROTOSCALE_ISA_TAG void serve(std::size_t thread) {
    std::uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < spins_before_sleep && generation_.load(std::memory_order_acquire) == seen; ++spin) {
        if (spin % spins_before_yield == spins_before_yield - 1) std::this_thread::yield();
      }
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        seen = generation_.load(std::memory_order_relaxed);
        if (stopping_) return;
      }
      take_work(thread);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};
  bool stopping_ = false;
  void (*run_)(const void*, index_t) = nullptr;
  const void* body_ = nullptr;
  index_t count_ = 0;
  std::span<std::byte> memory_;
  std::atomic<index_t> next_{0};
  std::atomic<int> busy_{0};
};

/// Calls body(first, last) over [0, count) in chunks of `chunk`: the chunks depend on the data only, never on the
/// number of threads, so per-chunk partial results can be combined in order.
template <class Body>
ROTOSCALE_ISA_TAG void for_each_chunk(thread_pool& pool, index_t count, index_t chunk, const Body& body) {
  pool.for_each((count + chunk - 1) / chunk, [&](index_t i) {
    const index_t first = i * chunk;
    body(first, first + chunk < count ? first + chunk : count);
  });
}

}  // namespace rotoscale
