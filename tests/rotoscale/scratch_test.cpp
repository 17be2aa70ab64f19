// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Scratch memory: lent memory is used first, loops share it, and a repeated call allocates nothing.
#include "rotoscale/scratch.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "allocations.hpp"
#include "rotoscale/parallel.hpp"

using namespace rotoscale;
using rotoscale::testing::counted_allocations;

namespace {

bool is_within(const void* at, std::size_t bytes, std::span<const std::byte> memory) {
  const auto first = reinterpret_cast<std::uintptr_t>(at), base = reinterpret_cast<std::uintptr_t>(memory.data());
  return first >= base && first + bytes <= base + memory.size();
}

}  // namespace

TEST_CASE("arrays begin on cache lines and do not overlap") {
  for (const bool lends : {false, true}) {
    std::vector<std::byte> memory(lends ? 1 << 12 : 0);
    const lent_scratch lent(memory);
    const scratch_array<std::uint8_t> a(1);
    const scratch_array<double> b(100);
    const scratch_array<std::uint8_t> c(0);
    const scratch_array<float> d(3);
    const std::uintptr_t at[] = {reinterpret_cast<std::uintptr_t>(a.data()), reinterpret_cast<std::uintptr_t>(b.data()),
                                 reinterpret_cast<std::uintptr_t>(c.data()),
                                 reinterpret_cast<std::uintptr_t>(d.data())};
    for (const std::uintptr_t x : at) CHECK(x % 64 == 0);
    std::memset(b.data(), 1, 100 * sizeof(double));
    std::memset(a.data(), 2, 1);
    std::memset(d.data(), 3, 3 * sizeof(float));
    CHECK(reinterpret_cast<const unsigned char*>(b.data())[0] == 1);
    CHECK(reinterpret_cast<const unsigned char*>(b.data())[100 * sizeof(double) - 1] == 1);
    CHECK(a[0] == 2);
    CHECK(is_within(b.data(), 100 * sizeof(double), memory) == lends);
    CHECK(is_within(d.data(), 3 * sizeof(float), memory) == lends);
  }
}

TEST_CASE("what is lent is used up to the last byte, then the thread's own memory, and comes back") {
  alignas(64) std::byte memory[3 * 64];
  const lent_scratch lent(memory);
  CHECK(scratch_stack::of_thread().rest().size() == sizeof memory);
  {
    const scratch_array<std::byte> all(sizeof memory);
    CHECK(is_within(all.data(), sizeof memory, memory));
    CHECK(scratch_stack::of_thread().rest().empty());
    const scratch_array<std::byte> more(1);
    CHECK(!is_within(more.data(), 1, memory));
  }
  CHECK(scratch_stack::of_thread().rest().size() == sizeof memory);
  {
    // A second loan hides the first.
    alignas(64) std::byte other[64];
    const lent_scratch inner(other);
    const scratch_array<std::byte> a(64);
    CHECK(is_within(a.data(), 64, other));
  }
  const scratch_array<std::byte> again(64);
  CHECK(again.data() == memory);
  // An unaligned address loses the bytes before the next cache line.
  const lent_scratch shifted({memory + 65, 127});
  CHECK(scratch_stack::of_thread().rest().data() == memory + 128);
  CHECK(scratch_stack::of_thread().rest().size() == 64);
}

TEST_CASE("a loop lends all threads equal shares of what its thread was lent") {
  for (const int threads : {1, 2, 5}) {
    CAPTURE(threads);
    thread_pool pool(threads);
    const index_t n = 200;
    const std::size_t own = scratch_array<float>::bytes(100), kept = scratch_array<float>::bytes(7);
    std::vector<std::byte> memory(kept + static_cast<std::size_t>(threads) * own + 63);
    const lent_scratch lent(memory);
    const scratch_array<float> before(7);
    CHECK(thread_pool::share_of(static_cast<std::size_t>(threads) * own, threads) == own);
    std::atomic<int> outside{0}, mixed{0};
    const counted_allocations now;
    pool.for_each(n, [&](index_t i) {
      const scratch_array<float> x(100);
      outside += !is_within(x.data(), 100 * sizeof(float), memory);
      for (index_t j = 0; j < 100; ++j) x[j] = static_cast<float>(i);
      for (index_t j = 0; j < 100; ++j) mixed += x[j] != static_cast<float>(i);
    });
    CHECK(outside == 0);
    CHECK(mixed == 0);
    CHECK(now() == 0);
    CHECK(scratch_stack::of_thread().rest().size() >= static_cast<std::size_t>(threads) * own);
  }
}
