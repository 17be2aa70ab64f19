// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The share of cases that a test runs. The default suite runs one in ROTOSCALE_SHARE of the vector code's random cases
// for other instruction sets. So it does of long combinations of the kernels in host mode. The slow suite runs all.
#pragma once

#include <cstdlib>

namespace rotoscale::oracle {

/// 1: everything.
inline int share() {
  const char* const text = std::getenv("ROTOSCALE_SHARE");
  const int one_in = text == nullptr ? 1 : std::atoi(text);
  return one_in < 1 ? 1 : one_in;
}

/// True if case `i` belongs to the share.
inline bool in_share(int i) { return i % share() == 0; }

}  // namespace rotoscale::oracle
