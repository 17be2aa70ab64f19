// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Ranges for profilers: rocTX is found, used in pairs, and missed without harm.
#include "gpu/dialect/ranges.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

using rotoscale::gpu::range_library;

namespace dialect_ranges_test {

TEST_CASE("ranges go to the first library that has them") {
  const char* const library = std::getenv("ROTOSCALE_TEST_ROCTX");  // Meson sets it
  if (library == nullptr) return;
  const range_library found{"libnothing-of-this-name.so", "libc.so.6", library};
  REQUIRE(found.is_there());
  void* const own = ::dlopen(library, RTLD_NOW);
  REQUIRE(own != nullptr);
  const auto depth = reinterpret_cast<int (*)()>(::dlsym(own, "ranges_depth"));
  const auto last = reinterpret_cast<const char* (*)()>(::dlsym(own, "ranges_last"));
  found.begin("graph");
  found.begin("gemm");
  CHECK(depth() == 2);
  CHECK(last() == std::string("gemm"));
  found.end();
  found.end();
  CHECK(depth() == 0);
}

TEST_CASE("no library, no ranges") {
  const range_library none{"libnothing-of-this-name.so", "libc.so.6"};
  CHECK_FALSE(none.is_there());
  none.begin("gemm");
  none.end();
}

}  // namespace dialect_ranges_test
