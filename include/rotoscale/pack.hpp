// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Storage of codes: two 4-bit codes a byte with the even element in the low nibble (as AMD's kernels, AITER, torchao,
// HIP and CUDA store them), one byte or more for wider codes.
#pragma once

#include "rotoscale/format.hpp"

namespace rotoscale {

/// Two 4-bit codes; `even` has the even index.
ROTOSCALE_HD constexpr std::uint8_t pack_nibbles(std::uint32_t even, std::uint32_t odd) {
  return static_cast<std::uint8_t>((even & 0xF) | (odd << 4));
}

ROTOSCALE_HD constexpr std::uint32_t nibble(std::uint8_t byte, index_t i) { return (byte >> (4 * (i & 1))) & 0xFu; }

/// Bytes that `count` codes of `f` take; 4-bit codes come in pairs.
ROTOSCALE_HD constexpr index_t packed_bytes(format f, index_t count) {
  return f.bits() == 4 ? (count + 1) / 2 : count * ((f.bits() + 7) / 8);
}

/// Code `i` of a packed row of codes of 4 or up to 8 bits.
ROTOSCALE_HD constexpr std::uint32_t load_code(format f, const std::uint8_t* row, index_t i) {
  return f.bits() == 4 ? nibble(row[i / 2], i) : row[i];
}

/// Stores code `i`, leaving its neighbour in the byte alone.
ROTOSCALE_HD constexpr void store_code(format f, std::uint8_t* row, index_t i, std::uint32_t code) {
  if (f.bits() != 4) {
    row[i] = static_cast<std::uint8_t>(code);
  } else {
    const std::uint32_t old = row[i / 2];
    row[i / 2] = (i & 1) == 0 ? pack_nibbles(code, old >> 4) : pack_nibbles(old, code);
  }
}

static_assert(pack_nibbles(0x3, 0xA) == 0xA3 && nibble(0xA3, 0) == 0x3 && nibble(0xA3, 1) == 0xA);

}  // namespace rotoscale
