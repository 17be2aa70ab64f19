// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of gpu/nn against the CPU's operations by bytes, over the cases that every backend has to pass; in host
// mode in three orders of a block's threads, on a device launched directly and from graphs.
#include <doctest/doctest.h>

#include "../../rotoscale/nn/backend_ops_rows.hpp"
#include "launcher_backend.hpp"
#if !defined(ROTOSCALE_TEST_DEVICE)
#include "gpu/dialect/host.hpp"
#endif

using namespace rotoscale;
using namespace rotoscale::testing;
using gpu_test::launcher_backend;

namespace {

std::vector<op_case> cases() {
  std::vector<op_case> all = row_cases();
  const auto coarse = coarse_row_cases();
  all.insert(all.end(), coarse.begin(), coarse.end());
  return all;
}

/// `with_long` rows, which take threads of host mode their time.
void check_all(bool with_long = true) {
  nn::cpu_backend reference(1);
  launcher_backend tested;
  for (const op_case& c : cases()) {
    const bool is_long = c.name.find("4104") != c.name.npos || c.name.find("60000") != c.name.npos;
    if (is_long && !with_long) continue;
    CAPTURE(c.name);
    const auto want = bytes_of(c, reference);
    REQUIRE_FALSE(want.empty());
    CHECK(want == bytes_of(c, tested));
  }
}

}  // namespace

#if !defined(ROTOSCALE_TEST_DEVICE)

TEST_CASE("kernels leave the CPU's bytes, whatever the order of a block's threads") {
  for (const auto order :
       {gpu::host::thread_order::forward, gpu::host::thread_order::reverse, gpu::host::thread_order::shuffled}) {
    gpu::host::set_thread_order(order);
    check_all(order == gpu::host::thread_order::forward);
  }
  gpu::host::set_thread_order(gpu::host::thread_order::forward);
}

#else

TEST_CASE("kernels leave the CPU's bytes") { check_all(); }
TEST_CASE("kernels leave the CPU's bytes from graphs") {
  gpu_test::through_graphs = true;
  check_all();
  gpu_test::through_graphs = false;
}

#endif
