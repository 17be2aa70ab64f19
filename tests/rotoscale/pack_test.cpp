// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Storage order of codes.
#include "rotoscale/pack.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace pack_test {

using namespace rotoscale;

TEST_CASE("the even element is in the low nibble") {
  for (std::uint32_t even = 0; even < 16; ++even) {
    for (std::uint32_t odd = 0; odd < 16; ++odd) {
      const std::uint8_t byte = pack_nibbles(even, odd);
      CHECK(byte == even + 16 * odd);
      CHECK(nibble(byte, 0) == even);
      CHECK(nibble(byte, 1) == odd);
      CHECK(nibble(byte, 6) == even);
      CHECK(nibble(byte, 7) == odd);
    }
  }
}

TEST_CASE("bytes of a row") {
  CHECK(packed_bytes(formats::e2m1, 0) == 0);
  CHECK(packed_bytes(formats::e2m1, 1) == 1);
  CHECK(packed_bytes(formats::e2m1, 32) == 16);
  CHECK(packed_bytes(formats::e2m3, 4) == 3);
  CHECK(packed_bytes(formats::e2m3, 5) == 4);
  CHECK(packed_bytes(formats::ue4m3, 5) == 5);
  CHECK(packed_bytes(formats::e4m3, 5) == 5);
  CHECK(packed_bytes(formats::bf16, 5) == 10);
  CHECK(packed_bytes(formats::fp32, 5) == 20);
}

TEST_CASE("6-bit codes are a little-endian stream of bits: four in three bytes") {
  for (const std::uint32_t word : {0u, 0xFFFFFFu, 0x123456u, 0xFEDCBAu, 0x5A5A5Au, 0x00FF0Fu}) {
    const std::uint8_t row[3] = {static_cast<std::uint8_t>(word), static_cast<std::uint8_t>(word >> 8),
                                 static_cast<std::uint8_t>(word >> 16)};
    std::uint8_t copy[3] = {0xFF, 0x00, 0xAA};
    for (index_t i = 0; i < 4; ++i) {
      CHECK(load_code(formats::e3m2, row, i) == (word >> (6 * i) & 0x3Fu));
      store_code(formats::e2m3, copy, i, word >> (6 * i) & 0x3Fu);
    }
    CHECK((copy[0] == row[0] && copy[1] == row[1] && copy[2] == row[2]));
  }
}

TEST_CASE("stored codes are read back in any order, and neighbours stay") {
  for (const format& f : {formats::e2m1, formats::e2m3, formats::e4m3}) {
    const std::uint32_t codes = 1u << f.bits();
    std::vector<std::uint8_t> row(static_cast<std::size_t>(packed_bytes(f, 19)), 0xFF);
    for (index_t i = 18; i >= 0; i -= 2) store_code(f, row.data(), i, static_cast<std::uint32_t>(7 * i) % codes);
    for (index_t i = 1; i < 19; i += 2) store_code(f, row.data(), i, static_cast<std::uint32_t>(7 * i) % codes);
    for (index_t i = 0; i < 19; ++i) CHECK(load_code(f, row.data(), i) == static_cast<std::uint32_t>(7 * i) % codes);
    store_code(f, row.data(), 4, 0);
    CHECK(load_code(f, row.data(), 3) == 21 % codes);
    CHECK(load_code(f, row.data(), 4) == 0);
    CHECK(load_code(f, row.data(), 5) == 35 % codes);
  }
  std::uint8_t four[2] = {};
  for (index_t i = 0; i < 4; ++i) store_code(formats::e2m1, four, i, static_cast<std::uint32_t>(i) + 1);
  CHECK(four[0] == 0x21);
  CHECK(four[1] == 0x43);
}

}  // namespace pack_test
