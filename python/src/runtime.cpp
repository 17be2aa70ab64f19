// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "runtime.hpp"

#include <mutex>

namespace rotoscale::python {
namespace {

struct shared_pool {
  std::mutex mutex;
  std::shared_ptr<thread_pool> pool;
};

/// Never destroyed: a forked child and a process that exits have no threads left to join.
shared_pool& the_pool() {
  static shared_pool& shared = *new shared_pool;
  return shared;
}

const kernel_table& choose_kernels() {
#if defined(ROTOSCALE_PYTHON_X86)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  const bool bytes = avx512 && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
  if (bytes) return kernels_avx512_vbmi;
  if (avx512) return kernels_avx512;
  if (avx2) return kernels_avx2;
#endif
  return kernels_baseline;
}

}  // namespace

const kernel_table& kernels() {
  static const kernel_table& chosen = choose_kernels();
  return chosen;
}

std::shared_ptr<thread_pool> pool() {
  shared_pool& shared = the_pool();
  const std::lock_guard lock(shared.mutex);
  if (shared.pool == nullptr) shared.pool = std::make_shared<thread_pool>();
  return shared.pool;
}

void set_threads(int threads) {
  auto next = std::make_shared<thread_pool>(threads);
  shared_pool& shared = the_pool();
  const std::lock_guard lock(shared.mutex);
  shared.pool.swap(next);
}

}  // namespace rotoscale::python
