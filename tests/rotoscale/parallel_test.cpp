// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The thread pool visits every index once, for any number of threads and loops.
#include "rotoscale/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace parallel_test {

using namespace rotoscale;

TEST_CASE("every index of a loop is visited once, and its writes are seen afterwards") {
  for (const int threads : {1, 2, 3, 8}) {
    thread_pool pool(threads);
    CHECK(pool.threads() == threads);
    for (const index_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<int> visits(static_cast<std::size_t>(count), 0);  // not atomic: one thread visits each index
      for (int loop = 0; loop < 20; ++loop) {
        pool.for_each(count, [&](index_t i) { ++visits[static_cast<std::size_t>(i)]; });
      }
      for (const int v : visits) REQUIRE(v == 20);
    }
    pool.for_each(-1, [](index_t) { FAIL("no index"); });
  }
}

TEST_CASE("threads that share one pool get whole loops") {
  thread_pool pool(3);
  std::vector<std::thread> callers;
  std::vector<int> wrong(4, 0);
  for (std::size_t caller = 0; caller < wrong.size(); ++caller) {
    callers.emplace_back([&, caller] {
      for (int loop = 0; loop < 500; ++loop) {
        std::vector<int> visits(17, 0);
        pool.for_each(17, [&](index_t i) { ++visits[static_cast<std::size_t>(i)]; });
        for (const int v : visits) wrong[caller] += v != 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const int w : wrong) CHECK(w == 0);
}

TEST_CASE("a loop does not wait for another loop of its pool, which may be its own caller's") {
  thread_pool pool(2);
  std::atomic<bool> inside{false}, release{false};
  std::thread other([&] {
    pool.for_each(2, [&](index_t) {
      inside = true;
      while (!release) std::this_thread::yield();
    });
  });
  while (!inside) std::this_thread::yield();
  index_t sum = 0;
  pool.for_each(10, [&](index_t i) { pool.for_each(10, [&](index_t j) { sum += 10 * i + j; }); });
  CHECK(sum == 99 * 100 / 2);
  release = true;
  other.join();
}

TEST_CASE("zero threads means one for each usable core, at least one") { CHECK(thread_pool(0).threads() >= 1); }

TEST_CASE("chunks depend on the data only") {
  std::vector<std::pair<index_t, index_t>> expected{{0, 5}, {5, 10}, {10, 12}};
  for (const int threads : {1, 4}) {
    thread_pool pool(threads);
    std::vector<std::pair<index_t, index_t>> chunks(3);
    for_each_chunk(pool, 12, 5, [&](index_t first, index_t last) {
      chunks[static_cast<std::size_t>(first / 5)] = {first, last};
    });
    CHECK(chunks == expected);
    for_each_chunk(pool, 0, 5, [](index_t, index_t) { FAIL("nothing to do"); });
  }
}

}  // namespace parallel_test
