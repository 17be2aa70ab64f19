// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Thread orders of host mode.
#pragma once

#if !defined(ROTOSCALE_TEST_DEVICE)
#include "gpu/dialect/host.hpp"
#endif

namespace gpu_test {

/// Calls body in every thread order of host mode; once on a device.
template <class Body>
void for_thread_orders(const Body& body) {
#if defined(ROTOSCALE_TEST_DEVICE)
  body();
#else
  using rotoscale::gpu::host::thread_order;
  for (const thread_order order : {thread_order::forward, thread_order::reverse, thread_order::shuffled}) {
    rotoscale::gpu::host::set_thread_order(order);
    body();
  }
  rotoscale::gpu::host::set_thread_order(thread_order::forward);
#endif
}

}  // namespace gpu_test
