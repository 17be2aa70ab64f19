// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Difficult values for block quantizers and GEMMs, shared by the tests of quantize_ref, quantize and the GEMMs.
#pragma once

#include <vector>

#include "rotoscale/bits.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::oracle {

/// rows × cols values (row-major), mostly of one magnitude. Occasional runs of `run` elements along a row are special:
///
/// - All zero, negative zero, subnormal, or near FP32's maximum.
/// - On ties of E2M1.
/// - Arbitrary bits.
/// - With one NaN or Inf.
inline std::vector<float> block_values(index_t rows, index_t cols, std::uint64_t seed, bool specials = true,
                                       std::size_t run = 32) {
  const random_stream random{seed, 77};
  std::vector<float> x(static_cast<std::size_t>(rows * cols));
  philox_block words{};  // four blocks per Philox call
  std::uint32_t kind = 15;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 4 == 0) words = random.block(i / 4);
    if (specials && i % run == 0) kind = random.word((std::uint64_t{1} << 40) + i / run) % 16;
    const std::uint32_t word = words.word[i % 4];
    const std::uint32_t sign = word & fp32_sign_mask;
    std::uint32_t u = sign | (word & 0x007FFFFFu) | (118u + (word >> 24 & 0x7F) % 12) << 23;
    const bool one = i % run == word % 7 % run;
    switch (kind) {
      case 0: u = 0; break;
      case 1: u = fp32_sign_mask; break;
      case 2: u = sign | (word & 0x007FFFFFu); break;
      case 3: u = sign | (word & 0x007FFFFFu) | (252u + (word >> 24) % 3) << 23; break;
      case 4: u = sign | fp32_bits(static_cast<float>(word % 33) * 0.25f); break;
      case 5: u = word; break;
      case 6: u = one ? word | 0x7F800001u : u; break;
      case 7: u = one ? sign | fp32_infinity_bits : u; break;
      case 8: u = sign | (word & 0x007FFFFFu) | ((word >> 24) % 6) << 23; break;
      case 9: u = sign | fp32_nan_bits; break;
      default: break;
    }
    x[i] = fp32_from_bits(u);
  }
  return x;
}

}  // namespace rotoscale::oracle
