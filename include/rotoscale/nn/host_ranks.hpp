// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranks whose backends compute in host memory: every collective is one exchange of bytes. thread_ranks.hpp and
// process_ranks.hpp are the transports. Queues run operations when they are put there.
#pragma once

#include <cstring>
#include <functional>
#include <vector>

#include "rotoscale/nn/communicator.hpp"

namespace rotoscale::nn {

/// Collectives by `exchange`.
class host_ranks : public communicator {
 public:
  void transfer(queue, std::span<const std::span<const std::byte>> send,
                std::span<const std::span<std::byte>> receive) final {
    exchange("transfer", send, [&](int s, std::size_t bytes) {
      const std::span<std::byte> to = receive[static_cast<std::size_t>(s)];
      if (bytes != to.size()) {
        throw rank_failure(s, "sends " + std::to_string(bytes) + " bytes to rank " + std::to_string(rank()) +
                                  ", which takes " + std::to_string(to.size()));
      }
      return to;
    });
  }
  void sum(queue, tensor_view x) final {
    reduce<std::int64_t>("sum", x, [](std::int64_t a, std::int64_t b) { return a + b; });
  }
  void max(queue, tensor_view x) final {
    reduce<float>("max", x, [](float a, float b) { return a < b ? b : a; });
  }
  /// Adds ascending ranks.
  void reduce_scatter(queue, float* x, std::span<const index_t> cuts) final {
    std::vector<std::span<const std::byte>> send;
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      send.push_back(std::as_bytes(std::span(x + cuts[s], static_cast<std::size_t>(cuts[s + 1] - cuts[s]))));
    }
    const auto all = exchange_all("reduce_scatter", send);
    const auto own = static_cast<std::size_t>(rank());
    combine<float>("reduce_scatter", std::span(x + cuts[own], send[own].size() / sizeof(float)), all, std::plus());
  }
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) final { return gather_as("gather", own); }
  void abort(const std::string& what) noexcept final { end_all(rank(), what); }
  void abort_late(std::chrono::milliseconds timeout) noexcept final {
    const int idle = find_idle();
    const char* const what =
        idle == rank() ? "waited for another rank's device for " : "did not come to a device's exchange within ";
    end_all(idle, what + std::to_string(timeout.count()) + " ms");
  }

 protected:
  /// Ends all ranks by a failure of `rank`.
  virtual void end_all(int rank, const std::string& what) noexcept = 0;
  /// Another rank that does not wait, or this one.
  virtual int find_idle() noexcept = 0;
  /// Memory for the bytes that rank s sends here. May throw.
  using place_function = std::function<std::span<std::byte>(int s, std::size_t bytes)>;
  /// Sends send[s] to each rank s, and stores the bytes from each rank, itself included. All ranks are in the
  /// collective `what`. Throws rank_failure.
  virtual void exchange(const char* what, std::span<const std::span<const std::byte>> send,
                        const place_function& place) = 0;

 private:
  std::vector<std::vector<std::byte>> gather_as(const char* what, std::span<const std::byte> own) {
    return exchange_all(what, std::vector(static_cast<std::size_t>(size()), own));
  }
  /// Bytes that each rank sends here.
  std::vector<std::vector<std::byte>> exchange_all(const char* what, std::span<const std::span<const std::byte>> send) {
    std::vector<std::vector<std::byte>> all(send.size());
    exchange(what, send, [&](int s, std::size_t bytes) {
      std::vector<std::byte>& to = all[static_cast<std::size_t>(s)];
      to.resize(bytes);
      return std::span(to);
    });
    return all;
  }
  /// Every rank gets all values and reduces them, ranks ascending.
  template <class T, class Combine>
  void reduce(const char* what, tensor_view x, const Combine& combine_two) {
    ROTOSCALE_ASSERT(x.type == dtype_of<T>);
    const std::span<T> own(static_cast<T*>(x.data), static_cast<std::size_t>(x.size()));
    combine<T>(what, own, gather_as(what, std::as_bytes(own)), combine_two);
  }
  template <class T, class Combine>
  static void combine(const char* what, std::span<T> own, const std::vector<std::vector<std::byte>>& all,
                      const Combine& combine_two) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() != own.size_bytes())
        throw rank_failure(static_cast<int>(r), std::string("has other numbers to ") + what);
      for (std::size_t i = 0; i < own.size(); ++i) {
        T value;
        std::memcpy(&value, all[r].data() + i * sizeof(T), sizeof(T));
        own[i] = r == 0 ? value : combine_two(own[i], value);
      }
    }
  }
};

}  // namespace rotoscale::nn
