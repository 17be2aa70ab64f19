// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The smallest user of the numerics headers; tests/consumer/consumer.py builds it in three ways.
#include <cstdio>
#include <rotoscale/small_float.hpp>
#include <rotoscale/version.hpp>

int main() {
  const float six = static_cast<float>(rotoscale::e2m1::from_bits(0x7));
  if (six != 6.0f) return 1;
  std::puts("rotoscale " ROTOSCALE_VERSION);
}
