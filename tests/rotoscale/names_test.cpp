// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The text names of enumerators.
#include "rotoscale/names.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace rotoscale;

namespace {
template <class E>
void check(int count) {
  const auto all = names(E{});
  CHECK(all.size() == static_cast<std::size_t>(count));
  CHECK(std::set<std::string>(all.begin(), all.end()).size() == all.size());
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<E>(i);
    E back = static_cast<E>((i + 1) % count);
    CHECK(from_string(to_string(value), back));
    CHECK(back == value);
  }
  E untouched = static_cast<E>(1);
  for (const char* wrong : {"", "?", "Floor", "nearest_even ", "nearest"}) {
    CHECK_FALSE(from_string(wrong, untouched));
    CHECK(untouched == static_cast<E>(1));
  }
  CHECK(to_string(static_cast<E>(99)) == "?");
}
}  // namespace

TEST_CASE("every enumerator has one name that leads back to it") {
  check<scale_rule>(4);
  check<rounding>(7);
  CHECK(to_string(scale_rule::even) == "even");
  CHECK(to_string(rounding::nearest_even) == "nearest_even");
}
