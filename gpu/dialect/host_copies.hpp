// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies of host mode. A thread that ends with a copy in flight is an error.
#pragma once

#include "gpu/dialect/host.hpp"

namespace rotoscale::gpu::host {

/// Starts a copy of `bytes`. It completes at finish_copies at the latest, and at once in forward thread order.
inline void copy_later(void* to, const void* from, std::size_t bytes) {
  detail::executor& e = detail::state();
  if (e.order == thread_order::forward) {
    std::memcpy(to, from, bytes);
  } else {
    e.current->copies.push_back({to, from, bytes, e.current->copy_groups});
  }
}
/// Ends this thread's current group of copies.
inline void end_copy_group() { ++detail::state().current->copy_groups; }
/// Completes this thread's copies, except the latest `youngest` groups and the group that has not ended.
inline void finish_copies_but(unsigned youngest) {
  detail::fiber& f = *detail::state().current;
  std::size_t done = 0;
  for (; done < f.copies.size() && f.copies[done].group + youngest < f.copy_groups; ++done) {
    std::memcpy(f.copies[done].to, f.copies[done].from, f.copies[done].bytes);
  }
  f.copies.erase(f.copies.begin(), f.copies.begin() + static_cast<std::ptrdiff_t>(done));
}
/// Completes all copies of this thread.
inline void finish_copies() {
  end_copy_group();
  finish_copies_but(0);
}

}  // namespace rotoscale::gpu::host
