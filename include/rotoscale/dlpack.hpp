// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// DLPack's names of formats: the type codes of DLPack 1.1 (DLDataTypeCode in its dlpack.h), for exchanging arrays with
// NumPy, JAX, PyTorch and others. Only numbers: no declaration of DLPack's is used or needed.
#pragma once

#include <optional>

#include "rotoscale/format.hpp"

namespace rotoscale {

/// Same members, sizes and order as DLDataType, which bit_cast makes of it.
struct dlpack_type {
  std::uint8_t code = 0;    ///< DLDataTypeCode
  std::uint8_t bits = 0;    ///< of one element
  std::uint16_t lanes = 1;  ///< elements of a vector type

  ROTOSCALE_ISA_TAG constexpr bool operator==(const dlpack_type&) const = default;
};

/// In DLManagedTensorVersioned::flags: elements of less than 8 bits take a byte each, as in an array of small_float.
/// Without it they are a little-endian stream of bits without gaps, as pack.hpp stores a row (a whole matrix, where the
/// bits of a row fill its bytes).
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

/// The DLPack type of codes of `f`; `lanes` of them make one element of the tensor. Nothing for formats that DLPack
/// does not know: INT8 (its kDLInt would read code 64 as 64, not 1), TF32, UE5M3, and UE4M3 (whose codes are those of
/// E4M3 without a sign: NVFP4's scales can go as formats::e4m3).
constexpr std::optional<dlpack_type> to_dlpack(format f, std::uint16_t lanes = 1) {
  for (const auto& entry : detail::dlpack_codes) {
    if (entry.element == f) return dlpack_type{entry.code, static_cast<std::uint8_t>(f.bits()), lanes};
  }
  return std::nullopt;
}

/// The format of a DLPack type, whatever its lanes. Nothing for types that are no format (integers, bool, complex) and
/// where `bits` is not the number that DLPack demands.
constexpr std::optional<format> from_dlpack(dlpack_type type) {
  for (const auto& entry : detail::dlpack_codes) {
    if (entry.code == type.code && entry.element.bits() == type.bits) return entry.element;
  }
  return std::nullopt;
}

static_assert(sizeof(dlpack_type) == 4);
static_assert(to_dlpack(formats::e2m1) == dlpack_type{17, 4, 1} && !to_dlpack(formats::int8));

}  // namespace rotoscale
