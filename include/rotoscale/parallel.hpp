// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A thread pool for deterministic loops. Each index is computed by one thread, so results do not depend on the number
// of threads. OpenMP is not used: ThreadSanitizer cannot see into Debian's libgomp.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#include <time.h>
#endif

#include "rotoscale/scratch.hpp"

namespace rotoscale {

/// A fixed set of threads that share loops. Several threads may use one pool. While a loop runs, any other loop, nested
/// or not, runs on its caller alone.
class thread_pool {
 public:
  /// `threads` includes the calling thread; 0 means one for each core that the process may use.
  /// Throws std::system_error if a thread cannot be started, after joining the started ones.
  ROTOSCALE_ISA_TAG explicit thread_pool(int threads = 0) : thread_pool(no_workers{}) {
    if (threads <= 0) threads = usable_cores();
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(static_cast<std::size_t>(i)); });
  }
  thread_pool(const thread_pool&) = delete;
  thread_pool& operator=(const thread_pool&) = delete;
  ROTOSCALE_ISA_TAG ~thread_pool() {
    publish({}, /*stopping=*/true);
    for (auto& worker : workers_) worker.join();
  }

  /// Number of threads, including the caller.
  ROTOSCALE_ISA_TAG int threads() const { return static_cast<int>(workers_.size()) + 1; }
  /// Bytes of lent memory per thread during a loop on `threads` threads.
  ROTOSCALE_ISA_TAG static constexpr std::size_t share_of(std::size_t bytes, int threads) {
    return bytes / static_cast<std::size_t>(threads) / scratch_stack::alignment * scratch_stack::alignment;
  }

  /// Calls body(i) once for each 0 <= i < count, in any order and on any thread. body must not throw. During the loop,
  /// the free part of the caller's lent memory is divided equally among the threads.
  template <class Body>
  ROTOSCALE_ISA_TAG void for_each(index_t count, const Body& body) {
    if (workers_.empty() || count <= 1 || count > most_items || in_loop_.exchange(true, std::memory_order_acquire)) {
      for (index_t i = 0; i < count; ++i) body(i);
      return;
    }
    if (clock::now() < alone_until_) {
      for (index_t i = 0; i < count; ++i) body(i);
    } else {
      share({[](const void* b, index_t i) { (*static_cast<const Body*>(b))(i); }, &body, count,
             scratch_stack::of_thread().rest()});
    }
    in_loop_.store(false, std::memory_order_release);
  }

 private:
  using clock = std::chrono::steady_clock;
  struct loop {
    void (*run)(const void*, index_t) = nullptr;
    const void* body = nullptr;
    index_t count = 0;
    std::span<std::byte> memory;
    std::uint64_t number = 0;  // in the upper half, as in ticket_
  };
  // The other constructor delegates to this one, so that the destructor joins the workers if it throws.
  struct no_workers {};
  ROTOSCALE_ISA_TAG explicit thread_pool(no_workers) {}

  /// Cores that this process may use (taskset, containers), at least 1.
  ROTOSCALE_ISA_TAG static int usable_cores() {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned cores = std::thread::hardware_concurrency();
    return cores > 0 ? static_cast<int>(cores) : 1;
  }

  static constexpr int spins_before_yield = 200;
  static constexpr std::chrono::microseconds long_wait{50};
  // tens of microseconds, as the gaps between loops of a training step
  static constexpr int spins_before_sleep = 4000;
  static constexpr index_t most_items = index_t{1} << 31;
  static constexpr std::uint64_t one_loop = std::uint64_t{1} << 32;

  ROTOSCALE_ISA_TAG void publish(loop next, bool stopping) {
    {
      const std::lock_guard lock(mutex_);
      next.number = (ticket_.load(std::memory_order_relaxed) / one_loop + 1) * one_loop;
      loop_ = next;
      stopping_ = stopping;
      finished_.store(0, std::memory_order_relaxed);
      ticket_.store(next.number, std::memory_order_release);
    }
    wake_.notify_all();
  }

  /// Runs a loop on all threads. The caller waits only for claimed items, so an unscheduled worker costs nothing.
  ROTOSCALE_ISA_TAG void share(const loop& next) {
    publish(next, false);
    take_items(loop_, 0);
    for (int spin = 0; spin < spins_before_yield; ++spin) {
      if (finished_.load(std::memory_order_acquire) == next.count) return;
    }
    wait(next.count);
  }

  /// Waits for claimed items. If the workers hold items but get no CPU time, the next loops run alone. On a busy
  /// machine such waits take at most 10 % of the time.
  ROTOSCALE_ISA_TAG void wait(index_t count) {
    const auto finished = [&] { return finished_.load(std::memory_order_acquire) == count; };
    const auto start = clock::now();
    while (clock::now() - start < long_wait) {
      if (finished()) return;
      std::this_thread::yield();
    }
    const auto worked = workers_time();
    const auto watched = clock::now();
    while (!finished()) std::this_thread::yield();
    const auto end = clock::now();
    if (2 * (workers_time() - worked) < end - watched) alone_until_ = end + 10 * (end - start);
  }

  /// CPU time of all workers.
  ROTOSCALE_ISA_TAG std::chrono::nanoseconds workers_time() {
    std::chrono::nanoseconds sum{0};
#ifdef __linux__
    for (std::thread& worker : workers_) {
      clockid_t id;
      timespec time{};
      if (pthread_getcpuclockid(worker.native_handle(), &id) == 0 && clock_gettime(id, &time) == 0) {
        sum += std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
      }
    }
#else
    sum = clock::now().time_since_epoch();  // unknown: counts as one running worker
#endif
    return sum;
  }

  /// Claims and runs items of `l` until none is left or another loop starts.
  ROTOSCALE_ISA_TAG void take_items(const loop& l, std::size_t thread) {
    const std::size_t share = share_of(l.memory.size(), threads());
    const lent_scratch lent(l.memory.subspan(thread * share, share));
    for (std::uint64_t at = ticket_.load(std::memory_order_relaxed);;) {
      const std::uint64_t item = at - l.number;  // out of range if another loop started
      if (item >= static_cast<std::uint64_t>(l.count)) return;
      if (!ticket_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
      l.run(l.body, static_cast<index_t>(item));
      finished_.fetch_add(1, std::memory_order_release);
      ++at;
    }
  }

  ROTOSCALE_ISA_TAG void serve(std::size_t thread) {
    loop seen;
    const auto next = [&] { return ticket_.load(std::memory_order_relaxed) / one_loop != seen.number / one_loop; };
    for (;;) {
      for (int spin = 0; spin < spins_before_sleep && !next(); ++spin) {
        if (spin % spins_before_yield == spins_before_yield - 1) std::this_thread::yield();
      }
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, next);
        if (stopping_) return;
        seen = loop_;
      }
      take_items(seen, thread);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;  // guards loop_ and stopping_; workers copy the loop under it
  std::condition_variable wake_;
  loop loop_;
  bool stopping_ = false;
  std::atomic<bool> in_loop_{false};
  clock::time_point alone_until_{};                   // guarded by in_loop_
  alignas(64) std::atomic<std::uint64_t> ticket_{0};  // upper half: loop number; lower half: next item
  alignas(64) std::atomic<index_t> finished_{0};      // finished items of the loop
};

/// Calls body(first, last) over [0, count) in chunks of `chunk`. The chunks do not depend on the number of threads, so
/// partial results can be combined in order.
template <class Body>
ROTOSCALE_ISA_TAG void for_each_chunk(thread_pool& pool, index_t count, index_t chunk, const Body& body) {
  pool.for_each((count + chunk - 1) / chunk, [&](index_t i) {
    const index_t first = i * chunk;
    body(first, first + chunk < count ? first + chunk : count);
  });
}

}  // namespace rotoscale
