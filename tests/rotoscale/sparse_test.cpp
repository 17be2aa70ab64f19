// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// 2:4 and 1:2 metadata, by examples worked out by hand from the PTX ISA.
#include "rotoscale/sparse.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace sparse_test {

using namespace rotoscale;

using bytes = std::vector<std::uint8_t>;

bytes expanded(format f, const bytes& kept, const bytes& metadata, index_t k) {
  bytes dense(static_cast<std::size_t>(k * storage_bits(f) / 8), 0xEE);
  REQUIRE(expand_sparse_row(f, kept.data(), metadata.data(), k, dense.data()) == -1);
  return dense;
}

TEST_CASE("E4M3: all six pairs, the first kept element at the low index") {
  // Windows 0 to 5 keep (0,1), (0,2), (0,3), (1,2), (1,3), (2,3); windows 6 and 7 the first two.
  const bytes kept{0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x10};
  CHECK(expanded(formats::e4m3, kept, {0x84, 0x9C, 0xED, 0x44}, 32) ==
        bytes{0x01, 0x02, 0, 0,    0x03, 0, 0x04, 0,    0x05, 0,    0, 0x06, 0,    0x07, 0x08, 0,
              0,    0x09, 0, 0x0A, 0,    0, 0x0B, 0x0C, 0x0D, 0x0E, 0, 0,    0x0F, 0x10, 0,    0});
}

TEST_CASE("FP16 and FP32: wider elements, windows of four and of two") {
  CHECK(expanded(formats::fp16, {0x11, 0x12, 0x21, 0x22, 0x31, 0x32, 0x41, 0x42}, {0x4E}, 8) ==
        bytes{0, 0, 0, 0, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32, 0x41, 0x42, 0, 0, 0, 0});
  CHECK(expanded(formats::fp32, {0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24}, {0x4E}, 4) ==
        bytes{0, 0, 0, 0, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0, 0, 0, 0});
  CHECK(sparse_metadata_bytes(formats::bf16, 32) == 4);
  CHECK(sparse_metadata_bytes(formats::fp32, 16) == 4);
  CHECK(sparse_metadata_bytes(formats::e5m2, 64) == 8);
}

TEST_CASE("zeros that are kept become -0, as TF32 units read them; other numbers stay") {
  CHECK(expanded(formats::e5m2, {0x00, 0x80, 0x01, 0x81}, {0x44}, 8) == bytes{0x80, 0x80, 0, 0, 0x01, 0x81, 0, 0});
  // 2^-137 has only low bits, which the unit drops; 2^-136 is TF32's least number.
  CHECK(expanded(formats::fp32, {0xFF, 0x1F, 0, 0, 0x00, 0x20, 0, 0}, {0x44}, 4) ==
        bytes{0, 0, 0, 0x80, 0, 0, 0, 0, 0x00, 0x20, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("metadata that names one element twice, or half an FP32 word, is found") {
  bytes dense(32);
  const bytes kept(16);
  for (const int twice : {0x0, 0x5, 0xA, 0xF}) {
    const bytes metadata{0x44, static_cast<std::uint8_t>(0x40 + twice)};
    CHECK(expand_sparse_row(formats::e4m3, kept.data(), metadata.data(), 16, dense.data()) == 2);
  }
  for (std::uint8_t i = 0; i < 16; ++i) {
    const bytes metadata{static_cast<std::uint8_t>(0x40 | i)};
    CHECK((expand_sparse_row(formats::fp32, kept.data(), metadata.data(), 4, dense.data()) == -1) ==
          (i == 0x4 || i == 0xE));
  }
}

TEST_CASE("rows that keep too much") {
  const bytes row{1, 2, 0, 0, 0, 3, 0, 4, 5, 6, 0x80, 0};
  CHECK(first_dense_window(formats::e4m3, row.data(), 8) == -1);
  CHECK(first_dense_window(formats::e4m3, row.data(), 12) == 2);  // -0 is kept
  const bytes words{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 1, 0};
  CHECK(first_dense_window(formats::fp32, words.data(), 2) == -1);
  CHECK(first_dense_window(formats::fp32, words.data(), 4) == 1);
}

}  // namespace sparse_test
