// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory exhaustion on any thread of a comparison or search gives one exception, on the calling thread.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "../rotoscale/allocations.hpp"
#include "doctest/doctest.h"
#include "examples/validate/quantizer/check.hpp"
#include "examples/validate/quantizer/presets.hpp"

namespace rotoscale::validate {

namespace {

/// A dump of 8 chunks of tiles. All of its blocks differ from te_rocm's.
std::pair<quantizer_dump, quantizer> damaged_case(thread_pool& pool) {
  quantizer_options o;
  o.preset = "te_rocm";
  const io::safetensors_writer made = make_quantizer_case(o, 128, 256, 1, true, pool);
  auto [dump, q] = load_case(o, io::safetensors_file::from_bytes("made", made.bytes("made")), pool);
  for (std::uint8_t& byte : dump.sides[0].codes) byte = static_cast<std::uint8_t>(byte * 37 + 11);
  return {std::move(dump), std::move(q)};
}

/// Calls `run` with allocation n failing, for about `tries` values of n up to the last allocation.
template <class Run>
void fail_allocations(long tries, const Run& run) {
  const testing::counted_allocations taken;
  run();
  const long all = taken();
  REQUIRE(all > tries);
  const auto throws = [&](long n) {
    testing::allocations_to_failure = n;
    bool thrown = false;
    try {
      run();
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    return thrown && testing::allocations_to_failure.exchange(0) == 0;
  };
  for (long n = 1; n < all; n += n < tries / 2 ? 1 : std::max(1l, 2 * all / tries)) CHECK_MESSAGE(throws(n), n);
}

}  // namespace

TEST_CASE("an allocation that fails on any thread is std::bad_alloc") {
  thread_pool pool(4);
  const auto [dump, q] = damaged_case(pool);
  fail_allocations(80, [&] { static_cast<void>(check_dump(q, dump, std::nullopt, pool)); });
  fail_allocations(8, [&] { static_cast<void>(identify_dump(&q, q, {}, dump, 16, 4, pool)); });
}

}  // namespace rotoscale::validate
