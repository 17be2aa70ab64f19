// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Transport between ranks. It moves bytes and makes exact reductions. Each rank has one model and one backend. Sums
// that round are operations of the backend (train/gradient_sums.hpp), except for reduce_scatter. Every rank calls the
// same collectives in the same order. The base class is a single rank.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// A rank failed or is missing. All ranks throw it, with the same message.
class rank_failure : public std::runtime_error {
 public:
  /// The message is "rank 2 " and `what`.
  rank_failure(int rank, const std::string& what)
      : std::runtime_error("rank " + std::to_string(rank) + " " + what), rank_(rank), reason_(what) {}
  /// Its number.
  int rank() const { return rank_; }
  /// Predicate of the message, "rank N REASON".
  const std::string& reason() const { return reason_; }

 private:
  int rank_;
  std::string reason_;
};

inline constexpr auto repeat_of_waits = std::chrono::seconds(1);  ///< of note_wait

/// Collectives over the ranks. They throw rank_failure if a rank fails, calls another collective or does not come
/// before the timeout.
class communicator {
 public:
  communicator() = default;
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  virtual ~communicator() = default;

  /// This rank's number, from 0.
  virtual int rank() const { return 0; }
  /// Number of ranks.
  virtual int size() const { return 1; }

  /// On a queue: copies send[s] to rank s, and from rank s into receive[s], in backend memory. Both lists have an entry
  /// for each rank, which may be empty. Sent bytes are not overwritten, except by the own rank's entry at the same
  /// address.
  virtual void transfer(queue, std::span<const std::span<const std::byte>> send,
                        std::span<const std::span<std::byte>> receive) {
    (void)send, (void)receive;
  }
  /// On a queue: sum of i64 numbers over all ranks, on all ranks.
  virtual void sum(queue, tensor_view) {}
  /// On a queue: the largest of fp32 numbers that are not negative, on all ranks.
  virtual void max(queue, tensor_view) {}

  /// On a queue: rank s gets the sums over all ranks of elements [cuts[s], cuts[s + 1]) of the arrays `x`, in place.
  /// The transport chooses the order of additions, so bits depend on the number of ranks. Other elements stay.
  virtual void reduce_scatter(queue, float* x, std::span<const index_t> cuts) { (void)x, (void)cuts; }

  /// Gathers host bytes of all ranks, which may differ in number. Waits for all ranks.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) {
    return {{own.begin(), own.end()}};
  }
  /// Waits for all ranks.
  void barrier() { (void)gather({}); }
  /// Throws rank_failure if a rank has failed. Does not wait. Any thread may call it, and abort.
  virtual void check() {}
  /// Ends all ranks: their next collective throws rank_failure with this rank and `what`. The first call counts.
  virtual void abort(const std::string& what) noexcept { (void)what; }
  /// Notes that this rank waits for the others' devices, or no more. Any thread may call it, and does so again every
  /// repeat_of_waits while it waits.
  virtual void note_wait(bool waits) noexcept { (void)waits; }
  /// Ends all ranks after such a wait of `timeout`, as abort does. Names a rank that does not wait, else this one.
  virtual void abort_late(std::chrono::milliseconds timeout) noexcept { (void)timeout; }
};

/// Values of each rank, ascending.
template <class T>
std::vector<std::vector<T>> gather_values(communicator& ranks, std::span<const T> own) {
  std::vector<std::vector<T>> all;
  for (const std::vector<std::byte>& bytes : ranks.gather(std::as_bytes(own))) {
    std::vector<T>& values = all.emplace_back(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return all;
}

/// Compares named properties of all ranks. Throws rank_failure for the first rank and property that differ from rank
/// 0's: "rank 2 has seed 7, rank 0 has 5".
inline void require_equal_ranks(communicator& ranks, const std::vector<std::pair<std::string, std::string>>& own) {
  std::string text;
  for (const auto& [name, value] : own) (text += name + '\n' + value) += '\n';
  const auto all = gather_values<char>(ranks, std::span<const char>(text));
  const auto fields = [](const std::vector<char>& from) {
    std::vector<std::string> lines(1);
    for (const char c : from) c == '\n' ? (void)lines.emplace_back() : lines.back().push_back(c);
    return lines;
  };
  const std::vector<std::string> first = fields(all[0]);
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::vector<std::string> other = fields(all[r]);
    for (std::size_t i = 0; i + 1 < std::max(first.size(), other.size()); i += 2) {
      const auto at = [&](const std::vector<std::string>& f) {
        return i + 1 < f.size() ? f[i] + " " + f[i + 1] : "nothing";
      };
      if (at(first) != at(other)) {
        throw rank_failure(static_cast<int>(r), "has " + at(other) + ", rank 0 has " + at(first));
      }
    }
  }
}

}  // namespace rotoscale::nn
