// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How much of what is drawn a test tries. The default suite runs the tests of vector code for several
// instruction sets: all for the machine's own, one in ROTOSCALE_SHARE for the others, whose slow suite has all.
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
