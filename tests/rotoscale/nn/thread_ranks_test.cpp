// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Collectives between threads: ranks are summed in ascending order for any arrival order; all ranks see a failure.
#include "rotoscale/nn/thread_ranks.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <thread>

namespace thread_ranks_test {

using namespace rotoscale;
namespace nn = rotoscale::nn;

namespace {

/// Calls body(rank) on one thread per rank.
template <class Body>
void on_ranks(int size, const Body& body) {
  nn::rank_group group(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      nn::thread_rank rank(group, r);
      body(rank);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace

TEST_CASE("sums are those of ascending ranks, in the elements' own type") {
  for (const int size : {1, 2, 4}) {
    constexpr index_t n = 37;
    const auto value = [](int rank, index_t i) {
      return std::ldexp(1.0f + static_cast<float>(i) / 64, static_cast<int>((i * 5 + rank * 9) % 30));
    };
    std::vector<std::vector<float>> x(static_cast<std::size_t>(size));
    std::vector<std::vector<double>> y(x.size());
    std::vector<std::vector<std::int64_t>> z(x.size());
    for (int r = 0; r < size; ++r) {
      for (index_t i = 0; i < n; ++i) {
        x[static_cast<std::size_t>(r)].push_back(value(r, i));
        y[static_cast<std::size_t>(r)].push_back(static_cast<double>(value(r, i)));
        z[static_cast<std::size_t>(r)].push_back(i * 10 + r);
      }
    }
    auto most = x;
    on_ranks(size, [&](nn::thread_rank& rank) {
      const auto r = static_cast<std::size_t>(rank.rank());
      for (int again = 0; again < 3; ++again) {
        auto own = x[r];
        rank.sum({}, nn::dense_tensor(own.data(), nn::dtype::fp32, {n}));
        if (again == 2) x[r] = own;
      }
      rank.sum({}, nn::dense_tensor(y[r].data(), nn::dtype::fp64, {n}));
      rank.sum({}, nn::dense_tensor(z[r].data(), nn::dtype::i64, {n}));
      rank.max({}, nn::dense_tensor(most[r].data(), nn::dtype::fp32, {n}));
    });
    for (int r = 0; r < size; ++r) {
      for (index_t i = 0; i < n; ++i) {
        float sum = value(0, i), largest = sum;
        double wide = static_cast<double>(sum);
        std::int64_t whole = i * 10;
        for (int s = 1; s < size; ++s) {
          sum += value(s, i);
          wide += static_cast<double>(value(s, i));
          whole += i * 10 + s;
          largest = std::fmax(largest, value(s, i));
        }
        const auto at = static_cast<std::size_t>(i), own = static_cast<std::size_t>(r);
        CHECK(x[own][at] == sum);
        CHECK(y[own][at] == wide);
        CHECK(z[own][at] == whole);
        CHECK(most[own][at] == largest);
      }
    }
  }
}

TEST_CASE("a rank that gives up does not leave the others waiting") {
  nn::rank_group group(3);
  int failed = 0;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      nn::thread_rank rank(group, r);
      float x = 1.0f;
      if (r == 2) return group.abort();
      try {
        rank.sum({}, nn::dense_tensor(&x, nn::dtype::fp32, {1}));
      } catch (const std::runtime_error&) {
        const std::lock_guard lock(mutex);
        ++failed;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(failed == 2);
}

}  // namespace thread_ranks_test
