// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Smallest user of the numerics headers, built in three ways by tests/consumer/consumer.py.
#include <cstdio>
#include <cstring>
#include <rotoscale/small_float.hpp>
#include <rotoscale/version.hpp>

int main() {
  const float six = static_cast<float>(rotoscale::e2m1::from_bits(0x7));
  if (six != 6.0f) return 1;
  static_assert(ROTOSCALE_VERSION_NUMBER >= 100);
  char numbers[32];
  std::snprintf(numbers, sizeof numbers, "%d.%d.%d", ROTOSCALE_VERSION_NUMBER / 10000,
                ROTOSCALE_VERSION_NUMBER / 100 % 100, ROTOSCALE_VERSION_NUMBER % 100);
  if (std::strcmp(numbers, ROTOSCALE_VERSION) != 0) return 2;
  std::puts("rotoscale " ROTOSCALE_VERSION);
}
