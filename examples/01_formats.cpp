// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A format is a value: everything that a table of formats says can be computed from it. Prints the table of
// docs/formats.md and every number of E2M1.
#include <cstdio>

#include "rotoscale/small_float.hpp"

using namespace rotoscale;

static void print_row(const char* name, format f) {
  const char* top[] = {"numbers only", "one NaN", "Inf and NaNs", "NaN at the code of -0"};
  const std::uint64_t least = f.has_subnormals || !f.has_zero ? 1 : std::uint64_t{1} << f.mantissa_bits;
  std::printf("| %s | %d | %d | %d | %d | %g | %g | %s |\n", name, f.bits(), f.exponent_bits, f.mantissa_bits, f.bias,
              static_cast<double>(decode(f, f.max_code())), static_cast<double>(decode(f, f.has_zero ? least : 0)),
              top[static_cast<int>(f.specials)]);
}

int main() {
  std::printf("| Format | Bits | Exponent | Mantissa | Bias | Largest | Least above 0 | Top codes |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  print_row("e2m1", formats::e2m1);
  print_row("e2m3", formats::e2m3);
  print_row("e3m2", formats::e3m2);
  print_row("e4m3", formats::e4m3);
  print_row("e5m2", formats::e5m2);
  print_row("e8m0", formats::e8m0);
  print_row("bf16", formats::bf16);
  print_row("fp16", formats::fp16);
  print_row("fp32", formats::fp32);

  std::printf("\nE2M1:");
  for (unsigned code = 0; code < 16; ++code) {
    std::printf(" %g", static_cast<double>(float(e2m1::from_bits(static_cast<std::uint8_t>(code)))));
  }
  std::printf("\n");
}
