// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies in host mode. A thread that ends with one that it has not waited for is an error.
#pragma once

#include "gpu/dialect/host.hpp"

namespace rotoscale::gpu::host {

/// Copies `bytes`, which have arrived after finish_copies, and perhaps before.
inline void copy_later(void* to, const void* from, std::size_t bytes) {
  detail::executor& e = detail::state();
  if (e.order == thread_order::forward) {
    std::memcpy(to, from, bytes);
  } else {
    e.current->copies.push_back({to, from, bytes, e.current->copy_groups});
  }
}
/// A group of the thread's copies ends here.
inline void end_copy_group() { ++detail::state().current->copy_groups; }
/// Waits for the thread's own copies but those of the `youngest` youngest groups and of the one that has not ended.
inline void finish_copies_but(unsigned youngest) {
  detail::fiber& f = *detail::state().current;
  std::size_t done = 0;
  for (; done < f.copies.size() && f.copies[done].group + youngest < f.copy_groups; ++done) {
    std::memcpy(f.copies[done].to, f.copies[done].from, f.copies[done].bytes);
  }
  f.copies.erase(f.copies.begin(), f.copies.begin() + static_cast<std::ptrdiff_t>(done));
}
/// Waits for all of them.
inline void finish_copies() {
  end_copy_group();
  finish_copies_but(0);
}

}  // namespace rotoscale::gpu::host
