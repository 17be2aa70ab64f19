// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// small_float<format>: one code in the smallest unsigned integer that holds it, with explicit conversions and no
// arithmetic. limits.hpp adds numeric_limits, hash and text.
#pragma once

#include "rotoscale/round.hpp"

namespace rotoscale {

namespace detail {
template <int Bits>
struct storage_for {
  using type = std::uint64_t;
};
template <int Bits>
  requires(Bits <= 8)
struct storage_for<Bits> {
  using type = std::uint8_t;
};
template <int Bits>
  requires(Bits > 8 && Bits <= 16)
struct storage_for<Bits> {
  using type = std::uint16_t;
};
template <int Bits>
  requires(Bits > 16 && Bits <= 32)
struct storage_for<Bits> {
  using type = std::uint32_t;
};
}  // namespace detail

/// A number of `Format` in 1, 2, 4 or 8 bytes, trivially copyable. Conversions are explicit, there is no arithmetic,
/// and equality compares codes.
template <format Format>
class small_float {
 public:
  using storage = typename detail::storage_for<Format.bits()>::type;  ///< the unsigned integer that holds a code
  static constexpr rotoscale::format format = Format;                 ///< the format

  constexpr small_float() = default;
  /// Rounds `x` once; by default to nearest even, saturating.
  ROTOSCALE_HD constexpr explicit small_float(float x, rounding r = rounding::nearest_even,
                                              overflow o = overflow::saturate, random_bits random = {})
      : bits_(static_cast<storage>(encode(Format, x, r, o, random))) {}
  /// Rounds `x` once, directly from FP64.
  ROTOSCALE_HD constexpr explicit small_float(double x, rounding r = rounding::nearest_even,
                                              overflow o = overflow::saturate, random_bits random = {})
      : bits_(static_cast<storage>(convert(formats::fp64, bit_cast<std::uint64_t>(x), Format, r, o, random))) {}

  /// The number with code `bits`. Bits above the low Format.bits() must be zero.
  ROTOSCALE_HD static constexpr small_float from_bits(storage bits) {
    small_float x;
    x.bits_ = bits;
    return x;
  }
  /// The code.
  ROTOSCALE_HD constexpr storage bits() const { return bits_; }

  /// The number as FP32: exact for every format of at most 32 bits.
  ROTOSCALE_HD constexpr explicit operator float() const { return decode(Format, bits_); }
  /// The number as FP64: exact.
  ROTOSCALE_HD constexpr explicit operator double() const {
    return bit_cast<double>(convert(Format, bits_, formats::fp64, rounding::nearest_even, overflow::to_inf));
  }

  /// Do both have the same code? A NaN equals itself and 0 differs from -0, unlike in float(x) == float(y).
  ROTOSCALE_HD constexpr bool operator==(small_float other) const { return bits_ == other.bits_; }

  /// Is it a NaN?
  ROTOSCALE_HD constexpr bool is_nan() const { return Format.is_nan(bits_); }

 private:
  storage bits_ = 0;
};

using e2m1 = small_float<formats::e2m1>;                ///< OCP MX FP4
using e2m3 = small_float<formats::e2m3>;                ///< OCP MX FP6
using e3m2 = small_float<formats::e3m2>;                ///< OCP MX FP6
using e4m3 = small_float<formats::e4m3>;                ///< OCP FP8
using e5m2 = small_float<formats::e5m2>;                ///< OCP FP8
using e4m3fnuz = small_float<formats::e4m3fnuz>;        ///< FP8 of CDNA3
using e5m2fnuz = small_float<formats::e5m2fnuz>;        ///< FP8 of CDNA3
using e4m3b11fnuz = small_float<formats::e4m3b11fnuz>;  ///< FP8 with bias 11
using mx_int8 = small_float<formats::int8>;             ///< the element of MXINT8
using e8m0 = small_float<formats::e8m0>;                ///< the scale of MX blocks
using ue4m3 = small_float<formats::ue4m3>;              ///< the scale of NVFP4's blocks
using ue5m3 = small_float<formats::ue5m3>;              ///< a scale with more range
using bf16 = small_float<formats::bf16>;                ///< bfloat16
using fp16 = small_float<formats::fp16>;                ///< IEEE binary16
using tf32 = small_float<formats::tf32>;                ///< TensorFloat-32, in the low 19 bits

static_assert(sizeof(e2m1) == 1 && sizeof(e8m0) == 1 && sizeof(bf16) == 2);
static_assert(e4m3(464.0f).bits() == 0x7E && e5m2(61440.0f, rounding::nearest_even, overflow::to_inf).bits() == 0x7C);

}  // namespace rotoscale
