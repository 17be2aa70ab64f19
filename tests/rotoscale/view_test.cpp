// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Strided views.
#include "rotoscale/view.hpp"

#include <doctest/doctest.h>

#include <type_traits>
#include <vector>

namespace view_test {

using namespace rotoscale;

TEST_CASE("row-major, transposed and submatrix address the same memory") {
  std::vector<int> memory(60);
  for (int i = 0; i < 60; ++i) memory[static_cast<std::size_t>(i)] = i;
  const matrix<int> m = row_major(memory.data(), 6, 7, 10);
  CHECK(m.extent(0) == 6);
  CHECK(m.extent(1) == 7);
  CHECK(m.size() == 42);
  CHECK(m(0, 6) == 6);
  CHECK(m(5, 3) == 53);
  CHECK(row_major(memory.data(), 6, 10).stride(0) == 10);

  const auto t = transposed(m);
  CHECK(t.extent(0) == 7);
  CHECK(t(3, 5) == 53);
  CHECK(&transposed(t)(5, 3) == &m(5, 3));

  const auto s = submatrix(t, 2, 1, 4, 3);
  CHECK(s.extent(0) == 4);
  CHECK(s.extent(1) == 3);
  CHECK(s(0, 0) == 12);
  CHECK(s(3, 2) == 35);
  s(3, 2) = -1;
  CHECK(m(3, 5) == -1);
}

TEST_CASE("a view of const is made from a view, not the other way; any rank") {
  static_assert(std::is_convertible_v<matrix<int>, matrix<const int>>);
  static_assert(!std::is_convertible_v<matrix<const int>, matrix<int>>);
  int memory[24] = {};
  view<int, 3> cube{memory, {2, 3, 4}, {12, 4, 1}};
  cube(1, 2, 3) = 5;
  CHECK(memory[23] == 5);
  CHECK(cube.size() == 24);
  const view<const int, 3> read = cube;
  CHECK(read(1, 2, 3) == 5);
  static_assert(view<int, 2>{}.size() == 0);
}

}  // namespace view_test
