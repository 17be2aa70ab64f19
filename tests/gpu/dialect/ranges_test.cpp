// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Profiler ranges. rocTX is found, used in pairs, and optional. With CUDA, NVTX calls the tool that its environment
// variable names. No device is needed.
#include "gpu/dialect/ranges.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "gpu/api/device.hpp"

using rotoscale::gpu::range_library;

namespace dialect_ranges_test {

/// Functions of the test's library, tests/gpu/dialect/ranges_tool.cpp.
struct tool {
  int (*depth)();
  const char* (*last)();
  explicit tool(const char* library) {
    void* const own = ::dlopen(library, RTLD_NOW);
    REQUIRE(own != nullptr);
    depth = reinterpret_cast<int (*)()>(::dlsym(own, "ranges_depth"));
    last = reinterpret_cast<const char* (*)()>(::dlsym(own, "ranges_last"));
  }
};

/// Opens two ranges, checks them through the tool, and closes them.
template <class Begin, class End>
void check_ranges(const tool& seen, const Begin& begin, const End& end) {
  begin("graph");
  begin("gemm");
  CHECK(seen.depth() == 2);
  CHECK(seen.last() == std::string("gemm"));
  end();
  end();
  CHECK(seen.depth() == 0);
}

#if defined(ROTOSCALE_TEST_NVTX)
TEST_CASE("the library's ranges reach a profiler through NVTX") {
  const char* const library = std::getenv("NVTX_INJECTION64_PATH");  // Meson sets it
  REQUIRE(library != nullptr);
  check_ranges(tool(library), rotoscale::gpu::begin_range, rotoscale::gpu::end_range);
}
#endif

TEST_CASE("ranges go to the first library that has them") {
  const char* const library = std::getenv("ROTOSCALE_TEST_ROCTX");  // Meson sets it
  if (library == nullptr) return;
  const range_library found{"libnothing-of-this-name.so", "libc.so.6", library};
  REQUIRE(found.is_there());
  check_ranges(
      tool(library), [&](const char* name) { found.begin(name); }, [&] { found.end(); });
}

TEST_CASE("no library, no ranges") {
  const range_library none{"libnothing-of-this-name.so", "libc.so.6"};
  CHECK_FALSE(none.is_there());
  none.begin("gemm");
  none.end();
}

}  // namespace dialect_ranges_test
