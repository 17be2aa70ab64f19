// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Loops and threads that fail, as programs say it.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <type_traits>

#include "rotoscale/io/error.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

/// Calls f, which starts threads. If one cannot be started, throws io::error naming --threads.
template <class Function>
std::invoke_result_t<Function> naming_threads(const Function& f) {
  try {
    return f();
  } catch (const std::system_error& e) {
    throw io::error("--threads", std::string("one cannot be started (") + e.code().message() + "); fewer may do");
  }
}

/// pool.for_each for a body that may throw, such as one that allocates. After the first exception the remaining indices
/// are left out, and that exception is thrown.
template <class Body>
void for_each_or_throw(thread_pool& pool, index_t count, const Body& body) {
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr thrown;
  pool.for_each(count, [&](index_t i) {
    if (failed) return;
    try {
      body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failed.exchange(true)) thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace rotoscale
