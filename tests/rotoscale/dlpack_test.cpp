// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// DLPack's type codes, written independently from dlpack.h, and its rule for sub-byte elements.
#include "rotoscale/dlpack.hpp"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "rotoscale/names.hpp"
#include "rotoscale/pack.hpp"
#include "rotoscale/round.hpp"

namespace dlpack_test {

using namespace rotoscale;

/// DLDataTypeCode of DLPack 1.1, in its order.
enum dlpack_code {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLOpaqueHandle = 3,
  kDLBfloat = 4,
  kDLComplex = 5,
  kDLBool = 6,
  kDLFloat8_e3m4 = 7,
  kDLFloat8_e4m3 = 8,
  kDLFloat8_e4m3b11fnuz = 9,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14,
  kDLFloat6_e2m3fn = 15,
  kDLFloat6_e3m2fn = 16,
  kDLFloat4_e2m1fn = 17
};

/// DLDataType, as dlpack.h declares it.
struct c_type {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct row {
  format value;
  dlpack_code code;
  int bits;
};

const row known[] = {{formats::fp16, kDLFloat, 16},
                     {formats::fp32, kDLFloat, 32},
                     {formats::fp64, kDLFloat, 64},
                     {formats::bf16, kDLBfloat, 16},
                     {format{3, 4, 3}, kDLFloat8_e3m4, 8},
                     {format{4, 3, 7}, kDLFloat8_e4m3, 8},
                     {formats::e4m3b11fnuz, kDLFloat8_e4m3b11fnuz, 8},
                     {formats::e4m3, kDLFloat8_e4m3fn, 8},
                     {formats::e4m3fnuz, kDLFloat8_e4m3fnuz, 8},
                     {formats::e5m2, kDLFloat8_e5m2, 8},
                     {formats::e5m2fnuz, kDLFloat8_e5m2fnuz, 8},
                     {formats::e8m0, kDLFloat8_e8m0fnu, 8},
                     {formats::e2m3, kDLFloat6_e2m3fn, 6},
                     {formats::e3m2, kDLFloat6_e3m2fn, 6},
                     {formats::e2m1, kDLFloat4_e2m1fn, 4}};

/// DLPack: (D >> (i * bits)) & mask is element i, with D the bytes as one little-endian number.
template <format F>
void check_stream() {
  constexpr int count = 10, bits = to_dlpack(F)->bits;  // at most 60 bits
  constexpr std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  const auto element = [](int i) { return static_cast<std::uint32_t>((i * 7 + 3) & static_cast<int>(mask)); };
  std::uint8_t row[8] = {};
  for (int i = 0; i < count; ++i) store_code(F, row, i, element(i));
  std::uint64_t data = 0;
  for (int i = 0; i < 8; ++i) data |= static_cast<std::uint64_t>(row[i]) << (8 * i);
  for (int i = 0; i < count; ++i) CHECK(((data >> (i * bits)) & mask) == element(i));
}

TEST_CASE("every format that DLPack knows, there and back") {
  for (const row& r : known) {
    CAPTURE(r.code);
    const auto type = to_dlpack(r.value);
    REQUIRE(type.has_value());
    const auto c = bit_cast<c_type>(*type);
    CHECK(c.code == r.code);
    CHECK(c.bits == r.bits);
    CHECK(c.lanes == 1);
    CHECK(from_dlpack(*type) == r.value);
    CHECK(to_dlpack(r.value, 4)->lanes == 4);
    CHECK(from_dlpack(*to_dlpack(r.value, 4)) == r.value);
  }
}

TEST_CASE("formats and types that the other side does not know") {
  std::set<std::string> unknown;
  for (const auto& entry : enum_names<format>::table) {
    if (!to_dlpack(entry.value)) unknown.emplace(entry.name);
  }
  CHECK(unknown == std::set<std::string>{"int8", "tf32", "ue4m3", "ue5m3"});
  int formats_found = 0;
  for (int code = 0; code < 256; ++code) {
    for (int bits = 0; bits < 256; ++bits) {
      formats_found += from_dlpack({static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits)}).has_value();
    }
  }
  CHECK(formats_found == static_cast<int>(std::size(known)));
  CHECK_FALSE(from_dlpack({kDLInt, 8}));
  CHECK_FALSE(from_dlpack({kDLFloat4_e2m1fn, 8}));
}

TEST_CASE("NVFP4's scales may go as E4M3: the codes mean the same") {
  for (std::uint32_t code = 0; code < 0x80; ++code) {
    CHECK(fp32_bits(decode(formats::ue4m3, code)) == fp32_bits(decode(formats::e4m3, code)));
  }
}

TEST_CASE("packed rows are the stream of bits that DLPack prescribes") {
  check_stream<formats::e2m1>();
  check_stream<formats::e2m3>();
  check_stream<formats::e3m2>();
  CHECK(dlpack_subbyte_padded == 4);  // DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
}

}  // namespace dlpack_test
