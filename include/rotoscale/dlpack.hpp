// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// DLPack type codes of formats (DLDataTypeCode of DLPack 1.1), for exchanging arrays with NumPy, JAX and PyTorch. Only
// numbers live here: DLPack's header is not needed.
#pragma once

#include <optional>

#include "rotoscale/format.hpp"

namespace rotoscale {

/// Members, sizes and order of DLDataType, so that bit_cast converts between the two.
struct dlpack_type {
  std::uint8_t code = 0;    ///< DLDataTypeCode
  std::uint8_t bits = 0;    ///< bits per element
  std::uint16_t lanes = 1;  ///< elements of a vector type

  ROTOSCALE_ISA_TAG constexpr bool operator==(const dlpack_type&) const = default;
};

/// In DLManagedTensorVersioned::flags: elements of less than 8 bits take a byte each, as in an array of small_float.
/// Without the flag they are a little-endian bit stream without gaps. pack.hpp writes such a stream for each row. A
/// matrix is one stream if the bits of a row fill whole bytes.
inline constexpr std::uint64_t dlpack_subbyte_padded = 1u << 2;

namespace detail {
struct dlpack_entry {
  format element;
  std::uint8_t code;
};
/// bits are the format's. IEEE's E3M4 and E4M3 have codes but no name here.
inline constexpr dlpack_entry dlpack_codes[] = {
    {formats::fp16, 2},      {formats::fp32, 2},  {formats::fp64, 2},        {formats::bf16, 4},
    {{3, 4, 3}, 7},          {{4, 3, 7}, 8},      {formats::e4m3b11fnuz, 9}, {formats::e4m3, 10},
    {formats::e4m3fnuz, 11}, {formats::e5m2, 12}, {formats::e5m2fnuz, 13},   {formats::e8m0, 14},
    {formats::e2m3, 15},     {formats::e3m2, 16}, {formats::e2m1, 17}};
}  // namespace detail

/// The DLPack type for `lanes` codes of `f` per tensor element. Returns nullopt for formats that DLPack lacks:
/// - INT8: kDLInt would read code 64 as 64, not 1.
/// - TF32 and UE5M3.
/// - UE4M3. It is E4M3 without a sign, so NVFP4 scales can be passed as formats::e4m3.
constexpr std::optional<dlpack_type> to_dlpack(format f, std::uint16_t lanes = 1) {
  for (const auto& entry : detail::dlpack_codes) {
    if (entry.element == f) return dlpack_type{entry.code, static_cast<std::uint8_t>(f.bits()), lanes};
  }
  return std::nullopt;
}

/// The format of a DLPack type with any number of lanes. Returns nullopt for integers, bool and complex, and where
/// `bits` is not the number that DLPack demands.
constexpr std::optional<format> from_dlpack(dlpack_type type) {
  for (const auto& entry : detail::dlpack_codes) {
    if (entry.code == type.code && entry.element.bits() == type.bits) return entry.element;
  }
  return std::nullopt;
}

static_assert(sizeof(dlpack_type) == 4);
static_assert(to_dlpack(formats::e2m1) == dlpack_type{17, 4, 1} && !to_dlpack(formats::int8));

}  // namespace rotoscale
