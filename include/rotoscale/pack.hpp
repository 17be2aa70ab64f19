// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Storage of codes in bytes:
// - 4 and 6 bits: a little-endian bit stream without gaps. Two 4-bit codes per byte, the even one in the low nibble, as
//   in AMD's kernels, AITER, torchao, HIP and CUDA. Four 6-bit codes in three bytes, as in gfx950's conversions and
//   HIP's fp6x32 types.
// - others: the smallest power-of-two number of bytes
#pragma once

#include "rotoscale/format.hpp"

namespace rotoscale {

/// Packs two 4-bit codes into a byte; `even` is the low nibble.
ROTOSCALE_HD constexpr std::uint8_t pack_nibbles(std::uint32_t even, std::uint32_t odd) {
  return static_cast<std::uint8_t>((even & 0xF) | (odd << 4));
}

/// Code i % 2 of a byte; 0 is the low nibble.
ROTOSCALE_HD constexpr std::uint32_t nibble(std::uint8_t byte, index_t i) { return (byte >> (4 * (i & 1))) & 0xFu; }

/// Bits from one code to the next.
ROTOSCALE_HD constexpr int storage_bits(format f) {
  const int bits = f.bits();
  if (bits == 4 || bits == 6) return bits;
  return bits <= 8 ? 8 : bits <= 16 ? 16 : bits <= 32 ? 32 : 64;
}

/// Bytes of `count` codes of `f`. The last byte is filled up with unused bits.
ROTOSCALE_HD constexpr index_t packed_bytes(format f, index_t count) { return (count * storage_bits(f) + 7) / 8; }

/// Code `i` of a packed row of codes of at most 8 bits.
ROTOSCALE_HD constexpr std::uint32_t load_code(format f, const std::uint8_t* row, index_t i) {
  switch (storage_bits(f)) {
    case 4: return nibble(row[i / 2], i);
    case 6: {
      const std::uint8_t* first = row + i * 6 / 8;
      const int shift = static_cast<int>(i * 6 % 8);
      const std::uint32_t low = first[0] >> shift;
      return (shift <= 2 ? low : low | static_cast<std::uint32_t>(first[1]) << (8 - shift)) & 0x3Fu;
    }
    default: return row[i];
  }
}

/// Stores code `i` without changing its neighbours.
ROTOSCALE_HD constexpr void store_code(format f, std::uint8_t* row, index_t i, std::uint32_t code) {
  const int bits = storage_bits(f);
  if (bits == 8) {
    row[i] = static_cast<std::uint8_t>(code);
    return;
  }
  const int shift = static_cast<int>(i * bits % 8);
  const std::uint32_t mask = ((1u << bits) - 1) << shift;
  std::uint8_t* first = row + i * bits / 8;
  first[0] = static_cast<std::uint8_t>((first[0] & ~mask) | (code << shift & mask));
  if (shift + bits > 8) first[1] = static_cast<std::uint8_t>((first[1] & ~(mask >> 8)) | (code << shift & mask) >> 8);
}

static_assert(pack_nibbles(0x3, 0xA) == 0xA3 && nibble(0xA3, 0) == 0x3 && nibble(0xA3, 1) == 0xA);
static_assert(packed_bytes(formats::e3m2, 32) == 24 && packed_bytes(formats::e2m1, 33) == 17);
static_assert(packed_bytes(formats::tf32, 1) == 4 && packed_bytes(formats::ue4m3, 3) == 3);

}  // namespace rotoscale
