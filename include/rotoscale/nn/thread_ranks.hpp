// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with a CPU backend of its own: collectives read the other ranks' memory.
// A rank that fails, sleeps or calls another collective ends all ranks with one message.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "rotoscale/nn/communicator.hpp"

namespace rotoscale::nn {

/// Where the ranks meet.
class rank_group {
 public:
  /// What a rank shows the others between two meetings.
  using shown = std::span<const std::span<const std::byte>>;

  /// For `size` ranks, which wait for each other for at most `timeout`.
  explicit rank_group(int size, std::chrono::milliseconds timeout = std::chrono::minutes(10))
      : timeout_(timeout), members_(static_cast<std::size_t>(size)) {}

  /// Number of ranks.
  int size() const { return static_cast<int>(members_.size()); }
  /// What a rank shows.
  shown& published(int rank) { return of(rank).published; }

  /// Returns when all ranks have come to `what`. Throws rank_failure in all of them if one comes to something else,
  /// does not come or has failed.
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
  /// Returns when all ranks have read what was shown. They have met, so each comes, whatever has failed meanwhile.
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
  void check() {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
  }
  /// Makes every rank that waits, or will, throw. The first call counts.
  void fail(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    fail_locked(rank, what);
  }

 private:
  struct member {
    shown published;
    const char* at = nullptr;  ///< the collective that it waits in
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
  void name_missing(const char* what) {
    for (int r = 0; r < size() && !failure_; ++r) {
      if (of(r).at != nullptr) continue;
      fail_locked(r, std::string("did not come to ") + what + " within " + std::to_string(timeout_.count()) + " ms");
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::chrono::milliseconds timeout_;
  std::uint64_t generation_ = 0;
  int waiting_ = 0;
  std::optional<rank_failure> failure_;
  std::vector<member> members_;
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
    copy("transfer", send, receive);
  }
  void sum(queue, tensor_view x) override {
    reduce<std::int64_t>("sum", x, [](std::int64_t a, std::int64_t b) { return a + b; });
  }
  void max(queue, tensor_view x) override {
    reduce<float>("max", x, [](float a, float b) { return a < b ? b : a; });
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override {
    const std::vector<std::span<const std::byte>> send(static_cast<std::size_t>(size()), own);
    std::vector<std::vector<std::byte>> all;
    meet_with("gather", send,
              [&](int, std::span<const std::byte> from) { all.emplace_back(from.begin(), from.end()); });
    return all;
  }
  void check() override { group_->check(); }
  void abort(const std::string& what) noexcept override {
    try {
      group_->fail(rank_, what);
    } catch (...) {  // no memory for a message: the others' timeout names this rank
    }
  }

 private:
  /// Calls use(s, bytes that rank s sends here) while all ranks show what they send.
  template <class Use>
  void meet_with(const char* what, rank_group::shown send, const Use& use) {
    group_->published(rank_) = send;
    group_->meet(rank_, what);
    std::exception_ptr failed;
    try {
      for (int s = 0; s < size(); ++s) use(s, group_->published(s)[static_cast<std::size_t>(rank_)]);
    } catch (...) {
      failed = std::current_exception();
    }
    group_->part();
    if (failed) std::rethrow_exception(failed);
  }
  void copy(const char* what, rank_group::shown send, std::span<const std::span<std::byte>> receive) {
    meet_with(what, send, [&](int s, std::span<const std::byte> from) {
      const std::span<std::byte> to = receive[static_cast<std::size_t>(s)];
      if (from.size() != to.size()) {
        throw rank_failure(s, "sends " + std::to_string(from.size()) + " bytes to rank " + std::to_string(rank_) +
                                  ", which takes " + std::to_string(to.size()));
      }
      if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size());
    });
  }
  /// Every rank gets all values and reduces them, ranks ascending.
  template <class T, class Combine>
  void reduce(const char* what, tensor_view x, const Combine& combine) {
    ROTOSCALE_ASSERT(x.type == dtype_of<T>);
    const auto n = static_cast<std::size_t>(x.size()), ranks = static_cast<std::size_t>(size());
    T* const own = static_cast<T*>(x.data);
    std::vector<T> all(n * ranks);
    const std::vector<std::span<const std::byte>> send(ranks, std::as_bytes(std::span(own, n)));
    std::vector<std::span<std::byte>> receive;
    for (std::size_t r = 0; r < ranks; ++r) receive.push_back(std::as_writable_bytes(std::span(all).subspan(r * n, n)));
    copy(what, send, receive);
    for (std::size_t i = 0; i < n; ++i) {
      own[i] = all[i];
      for (std::size_t r = 1; r < ranks; ++r) own[i] = combine(own[i], all[r * n + i]);
    }
  }

  rank_group* group_;
  int rank_;
};

/// Calls body(rank) for each rank of a group: rank 0 on this thread, others on threads of their own. If one throws, all
/// others do at their next collective. Then throws what the first one threw, or rank_failure if that was another rank
/// than 0.
template <class Body>
void run_ranks(rank_group& group, const Body& body) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep = [&](std::exception_ptr thrown) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(thrown);
  };
  const auto run = [&](int r) {
    thread_rank rank(group, r);
    try {
      body(rank);
    } catch (const rank_failure&) {
      keep(std::current_exception());
      rank.abort("failed");
    } catch (const std::exception& e) {
      const std::string what = std::string("failed: ") + e.what();
      keep(r == 0 ? std::current_exception() : std::make_exception_ptr(rank_failure(r, what)));
      rank.abort(what);
    } catch (...) {
      keep(std::current_exception());
      rank.abort("failed");
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < group.size(); ++r) threads.emplace_back(run, r);
  run(0);
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace rotoscale::nn
