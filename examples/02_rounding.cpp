// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Rounding and overflow as arguments of one routine. Stochastic rounding takes its random word from the caller, so
// results are reproducible.
#include <cstdio>
#include <initializer_list>

#include "rotoscale/names.hpp"
#include "rotoscale/philox.hpp"
#include "rotoscale/small_float.hpp"

using namespace rotoscale;

int main() {
  const float inputs[] = {0.25f, 0.75f, 2.5f, 5.0f, -2.5f, 7.0f};
  std::printf("to E2M1      ");
  for (const float x : inputs) std::printf("%7g", static_cast<double>(x));
  for (const auto& mode : enum_names<rounding>::table) {
    if (mode.value == rounding::stochastic) continue;  // below
    std::printf("\n%-13s", std::string(mode.name).c_str());
    for (const float x : inputs) std::printf("%7g", static_cast<double>(float(e2m1(x, mode.value))));
  }

  std::printf("\n\n464 and 1e6 to E4M3 (largest 448):");
  for (const overflow o : {overflow::saturate, overflow::to_inf, overflow::to_nan}) {
    std::printf(" %g %g;", static_cast<double>(float(e4m3(464.0f, rounding::nearest_even, o))),
                static_cast<double>(float(e4m3(1e6f, rounding::nearest_even, o))));
  }

  // 2.2 is a fifth of the way from 2 to 3.
  const random_stream random{/*seed=*/1, /*stream=*/0};
  int ups = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    ups += float(e2m1(2.2f, rounding::stochastic, overflow::saturate, random.word(i))) == 3.0f;
  }
  std::printf("\n\n2.2 rounded stochastically 10000 times: %d times up\n", ups);
}
