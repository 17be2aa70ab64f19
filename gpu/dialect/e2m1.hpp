// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// E2M1 codes, eight in a word: table lookups to bytes of another format, and expansion to BF16 with the block's scale.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/block.hpp"

namespace rotoscale::gpu {

/// Signs of eight codes in the top bits of bytes: `low` has codes 0 to 3, `high` 4 to 7.
struct sign_bytes {
  std::uint32_t low, high;
};
__device__ inline sign_bytes spread_signs(std::uint32_t codes) {
  const std::uint32_t even = codes << 4 & 0x80808080u, odd = codes & 0x80808080u;
  return {permute_bytes<0x5140>(even, odd), permute_bytes<0x7362>(even, odd)};
}

/// Maps E2M1 magnitudes 0 to 7 to bytes. `of` looks up the low four codes of a word.
struct byte_table {
  std::uint32_t low, high;
  __device__ std::uint32_t of(std::uint32_t codes) const { return permute_bytes(low, high, codes & 0x7777u); }
};

/// Returns the value of a scale byte as a pair of BF16. 2^-127 is subnormal, 0xFF is NaN.
__device__ inline std::uint32_t bf16_scale_pair(std::uint32_t byte) {
  const std::uint32_t bits = byte == 0 ? 0x0040u : byte == nan_scale_byte ? 0x7FC0u : byte << 7;
  return bits | bits << 16;
}

/// Returns eight codes times the scale as BF16. Products are exact, Inf where FP32 has Inf, or NaN.
__device__ inline vec16 scale_eight(std::uint32_t x, std::uint32_t scale) {
  const byte_table upper{0x3F3F3F00u, 0x40404040u}, lower{0xC0800000u, 0xC0804000u};
  const sign_bytes signs = spread_signs(x);
  const std::uint32_t high[2] = {upper.of(x) | signs.low, upper.of(x >> 16) | signs.high};
  const std::uint32_t low[2] = {lower.of(x), lower.of(x >> 16)};
  return {{multiply_bf16(permute_bytes<0x5140>(low[0], high[0]), scale),
           multiply_bf16(permute_bytes<0x7362>(low[0], high[0]), scale),
           multiply_bf16(permute_bytes<0x5140>(low[1], high[1]), scale),
           multiply_bf16(permute_bytes<0x7362>(low[1], high[1]), scale)}};
}

}  // namespace rotoscale::gpu
