// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with one CPU backend: they read each other's memory. A rank that fails,
// times out or calls another collective ends all ranks with one message.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "rotoscale/nn/host_ranks.hpp"

namespace rotoscale::nn {

/// Meeting point of the ranks.
class rank_group {
 public:
  /// Memory that a rank shows to others between two meetings.
  using shown = std::span<const std::span<const std::byte>>;

  /// `size` ranks, which wait at most `timeout` for each other.
  explicit rank_group(int size, std::chrono::milliseconds timeout = std::chrono::minutes(10))
      : timeout_(timeout), members_(static_cast<std::size_t>(size)) {}

  /// Number of ranks.
  int size() const { return static_cast<int>(members_.size()); }
  /// Memory that a rank shows.
  shown& published(int rank) { return of(rank).published; }

  /// Returns when all ranks have called it with `what`. Throws rank_failure in all of them if one calls another
  /// collective, is late or has failed.
  void meet(int rank, const char* what) {
    std::unique_lock lock(mutex_);
    throw_if_failed();
    of(rank).at = what;
    const std::uint64_t now = generation_;
    if (++waiting_ == size()) {
      compare();
      waiting_ = 0;
      ++generation_;
      for (member& m : members_) m.at = nullptr;
      wake_.notify_all();
    }
    if (!wake_.wait_for(lock, timeout_, [&] { return failure_ || generation_ != now; })) name_missing(what);
    if (generation_ == now) throw_if_failed();
  }
  /// Returns when all ranks have read the shown memory. All come here, even after a failure.
  void part() {
    std::unique_lock lock(mutex_);
    const std::uint64_t now = generation_;
    if (++waiting_ == size()) {
      waiting_ = 0;
      ++generation_;
      wake_.notify_all();
    }
    wake_.wait(lock, [&] { return generation_ != now; });
  }
  /// Throws rank_failure if a rank has failed.
  void check() const {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
  }
  /// The rank has noticed that a rank has failed.
  void note_failure(int rank) {
    const std::lock_guard lock(mutex_);
    of(rank).knows = true;
  }
  /// Has the rank noticed it?
  bool knows(int rank) {
    const std::lock_guard lock(mutex_);
    return of(rank).knows;
  }
  /// A rank waits for the others' devices, or no more.
  void note_wait(int rank, bool waits) {
    const std::lock_guard lock(mutex_);
    of(rank).waits = waits;
  }
  /// Another rank that does not wait, or `rank`.
  int find_idle(int rank) {
    const std::lock_guard lock(mutex_);
    return idle_or(rank, rank);
  }
  /// The first failure of a rank.
  std::optional<rank_failure> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  /// Makes waiting and later calls of every rank throw. The first call counts.
  void fail(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    fail_locked(rank, what);
  }

 private:
  struct member {
    shown published;
    const char* at = nullptr;  ///< the collective that it waits in
    bool waits = false;        ///< for a device
    bool knows = false;        ///< that a rank has failed
  };
  member& of(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void fail_locked(int rank, const std::string& what) {
    if (!failure_) failure_.emplace(rank, what);
    wake_.notify_all();
  }
  void throw_if_failed() const {
    if (failure_) throw rank_failure(*failure_);
  }
  /// Are all ranks in the same collective?
  void compare() {
    for (int r = 1; r < size(); ++r) {
      if (std::strcmp(of(r).at, of(0).at) == 0) continue;
      fail_locked(r, std::string("is in ") + of(r).at + ", rank 0 is in " + of(0).at);
      throw_if_failed();
    }
  }
  int idle_or(int fallback, int except) {
    for (int r = 0; r < size(); ++r) {
      if (r != except && of(r).at == nullptr && !of(r).waits) return r;
    }
    return fallback;
  }
  void name_missing(const char* what) {
    int missing = 0;
    while (missing + 1 < size() && of(missing).at != nullptr) ++missing;
    fail_locked(idle_or(missing, -1),
                std::string("did not come to ") + what + " within " + std::to_string(timeout_.count()) + " ms");
  }

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::chrono::milliseconds timeout_;
  std::uint64_t generation_ = 0;
  int waiting_ = 0;
  std::optional<rank_failure> failure_;
  std::vector<member> members_;
};

/// One rank of a group.
class thread_rank final : public host_ranks {
 public:
  /// Number `rank` of the group, whose thread makes this object.
  thread_rank(rank_group& group, int rank) : group_(&group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void check() override {
    noticing([&] { group_->check(); });
  }
  void note_wait(bool waits) noexcept override { group_->note_wait(rank_, waits); }

 protected:
  void end_all(int rank, const std::string& what) noexcept override {
    try {
      group_->fail(rank, what);
      if (std::this_thread::get_id() == own_) group_->note_failure(rank_);
    } catch (...) {  // no memory for a message: the others' timeout names this rank
    }
  }
  int find_idle() noexcept override { return group_->find_idle(rank_); }
  /// All ranks show the bytes that they send, and copy the bytes for them.
  void exchange(const char* what, rank_group::shown send, const place_function& place) override {
    group_->published(rank_) = send;
    noticing([&] { group_->meet(rank_, what); });
    std::exception_ptr failed;
    try {
      for (int s = 0; s < size(); ++s) {
        const std::span<const std::byte> from = group_->published(s)[static_cast<std::size_t>(rank_)];
        const std::span<std::byte> to = place(s, from.size());
        if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size());
      }
    } catch (...) {
      failed = std::current_exception();
    }
    group_->part();
    if (failed) std::rethrow_exception(failed);
  }

 private:
  /// Notes that the rank's own thread gets a failure.
  template <class Function>
  void noticing(const Function& f) const {
    try {
      f();
    } catch (const rank_failure&) {
      if (std::this_thread::get_id() == own_) group_->note_failure(rank_);
      throw;
    }
  }

  rank_group* group_;
  int rank_;
  std::thread::id own_ = std::this_thread::get_id();
};

/// What happens if a rank does not notice a failure, since it computes or sleeps.
struct unended_ranks {
  std::chrono::milliseconds grace = std::chrono::seconds(10);  ///< after a rank has ended by the failure
  std::function<void(const rank_failure&)> lost = {};          ///< then called once, on its thread; empty: it waits
};

/// Calls body(rank) for each rank of a group: rank 0 on this thread, others on one thread each. If one throws, all
/// others throw at their next collective. Then throws the first error, or rank_failure if it is another rank's.
template <class Body>
void run_ranks(rank_group& group, const Body& body, const unended_ranks& late = {}) {
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<bool> runs(static_cast<std::size_t>(group.size()), true);
  bool is_lost = false;
  std::exception_ptr first;
  const auto keep = [&](std::exception_ptr thrown) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(thrown);
  };
  const auto call = [&](int r) {
    thread_rank rank(group, r);
    try {
      body(rank);
    } catch (const rank_failure& e) {
      keep(std::current_exception());
      group.fail(e.rank(), e.reason());
    } catch (const std::exception& e) {
      const std::string what = std::string("failed: ") + e.what();
      keep(r == 0 ? std::current_exception() : std::make_exception_ptr(rank_failure(r, what)));
      rank.abort(what);
    } catch (...) {
      keep(std::current_exception());
      rank.abort("failed");
    }
  };
  const auto run = [&](int r) {
    call(r);
    std::unique_lock lock(mutex);
    runs[static_cast<std::size_t>(r)] = false;
    ended.notify_all();
    const std::optional<rank_failure> failure = group.failure();
    const auto all_know = [&] {
      int s = 0;
      while (s < group.size() && (!runs[static_cast<std::size_t>(s)] || group.knows(s))) ++s;
      return s == group.size();
    };
    if (!failure || !late.lost || ended.wait_for(lock, late.grace, all_know)) return;
    if (std::exchange(is_lost, true)) return;
    lock.unlock();
    late.lost(*failure);
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < group.size(); ++r) threads.emplace_back(run, r);
  run(0);
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace rotoscale::nn
