// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The share of random cases that a test runs. The default suite runs vector-code tests for several instruction sets:
// all cases for the machine's own, one in ROTOSCALE_SHARE for the others. The slow suite runs all.
#pragma once

#include <cstdlib>

namespace rotoscale::oracle {

/// 1: everything.
inline int share() {
  const char* const text = std::getenv("ROTOSCALE_SHARE");
  const int one_in = text == nullptr ? 1 : std::atoi(text);
  return one_in < 1 ? 1 : one_in;
}

}  // namespace rotoscale::oracle
