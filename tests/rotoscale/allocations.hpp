// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Counts a program's heap allocations on all threads, and fails at a chosen one. It replaces all forms of operator new:
// for one translation unit of a program.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace rotoscale::testing {

inline std::atomic<long> allocation_count{0};
/// The next allocation succeeds if this is 0, and fails if it is 1; it counts down to 0.
inline std::atomic<long> allocations_to_failure{0};

/// How many allocations there were since.
class counted_allocations {
 public:
  long operator()() const { return allocation_count.load() - before_; }

 private:
  long before_ = allocation_count.load();
};

inline void* counted_allocation(std::size_t bytes, std::size_t alignment) noexcept {
  ++allocation_count;
  for (long left = allocations_to_failure; left > 0;) {
    if (!allocations_to_failure.compare_exchange_weak(left, left - 1)) continue;
    if (left == 1) return nullptr;
    break;
  }
  bytes = bytes == 0 ? 1 : bytes;
  return alignment == 0 ? std::malloc(bytes)
                        : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
inline void* counted_allocation_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const memory = counted_allocation(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace rotoscale::testing

// The forms for arrays and the nonthrowing forms call these. Inlined, they look mismatched to the compiler.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return rotoscale::testing::counted_allocation_or_throw(bytes, 0);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return rotoscale::testing::counted_allocation_or_throw(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
