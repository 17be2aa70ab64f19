// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Bitwise equality: NaN equals itself, and 0 differs from -0.
#pragma once

#include <cstring>
#include <vector>

namespace rotoscale::testing {

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace rotoscale::testing
