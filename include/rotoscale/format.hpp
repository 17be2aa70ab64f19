// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A number format is a value: its fields say everything that encoding and decoding need, so a new format is one line.
// Element and scale types follow OCP Microscaling (MX) v1.0 and OFP8 r1.0, section 5. The FNUZ types are from AMD's
// CDNA3 and Graphcore; E4M3B11FNUZ is Google's. Rounding is in round.hpp.
#pragma once

#include "rotoscale/bits.hpp"

namespace rotoscale {

/// Meaning of the codes at the top of the range.
enum class specials {
  none,      ///< every code is a number (E2M1, E2M3, E3M2)
  nan_only,  ///< all exponent and mantissa bits set is NaN, no Inf (E4M3, E8M0)
  ieee,      ///< top exponent holds Inf (mantissa 0) and NaN (E5M2, FP16, BF16, FP32)
  fnuz       ///< the code of -0 is NaN; neither Inf nor -0 (AMD CDNA3 FP8)
};

/// A number format: sign, exponent and mantissa field, from the highest bit down. A number is (1 + m / 2^mantissa_bits)
/// * 2^(exponent - bias). The flags below give the meaning of exponent field 0.
struct format {
  int exponent_bits;                                         ///< width of the exponent field
  int mantissa_bits;                                         ///< width of the mantissa field, without the implicit bit
  int bias;                                                  ///< subtracted from the exponent field
  bool is_signed = true;                                     ///< is there a sign bit?
  rotoscale::specials specials = rotoscale::specials::ieee;  ///< meaning of the top codes
  bool has_subnormals = true;    ///< exponent field 0 holds m * 2^(1 - bias - mantissa_bits)
  bool has_zero = true;          ///< false for E8M0, whose code 0 is 2^-127
  bool twos_complement = false;  ///< negative codes are 2^bits() - magnitude (MX INT8) instead of sign and magnitude

  ROTOSCALE_ISA_TAG constexpr bool operator==(const format&) const = default;

  /// Width of a code without its sign.
  ROTOSCALE_HD constexpr int magnitude_bits() const { return exponent_bits + mantissa_bits; }
  /// Width of a code.
  ROTOSCALE_HD constexpr int bits() const { return magnitude_bits() + (is_signed ? 1 : 0); }

  /// The mantissa field of a code.
  ROTOSCALE_HD constexpr std::uint64_t mantissa_mask() const { return (std::uint64_t{1} << mantissa_bits) - 1; }
  /// All bits of a code except the sign.
  ROTOSCALE_HD constexpr std::uint64_t magnitude_mask() const { return (std::uint64_t{1} << magnitude_bits()) - 1; }
  /// The sign bit of a code; 0 for unsigned formats.
  ROTOSCALE_HD constexpr std::uint64_t sign_mask() const {
    return is_signed ? std::uint64_t{1} << magnitude_bits() : 0;
  }

  /// Is there an Inf?
  ROTOSCALE_HD constexpr bool has_infinity() const { return specials == rotoscale::specials::ieee; }
  /// Is there a NaN?
  ROTOSCALE_HD constexpr bool has_nan() const { return specials != rotoscale::specials::none; }
  /// Is there a -0?
  ROTOSCALE_HD constexpr bool has_negative_zero() const {
    return is_signed && has_zero && !twos_complement && specials != rotoscale::specials::fnuz;
  }

  /// Code of the number with this sign and magnitude code. In a format without -0, zero loses its sign.
  ROTOSCALE_HD constexpr std::uint64_t signed_code(bool negative, std::uint64_t magnitude) const {
    if (!negative || !is_signed || (magnitude == 0 && has_zero && !has_negative_zero())) return magnitude;
    return twos_complement ? 2 * sign_mask() - magnitude : sign_mask() | magnitude;
  }
  /// Is the sign bit set?
  ROTOSCALE_HD constexpr bool is_negative(std::uint64_t code) const { return (code & sign_mask()) != 0; }
  /// Magnitude code of a number. Two's complement has one more magnitude for negative numbers: 2^magnitude_bits().
  ROTOSCALE_HD constexpr std::uint64_t magnitude(std::uint64_t code) const {
    return twos_complement && is_negative(code) ? 2 * sign_mask() - code : code & magnitude_mask();
  }

  /// Code of +Inf; only where has_infinity().
  ROTOSCALE_HD constexpr std::uint64_t infinity_code() const { return magnitude_mask() & ~mantissa_mask(); }

  /// Code of the canonical NaN: quiet for ieee formats, the only NaN of others. Only where has_nan().
  ROTOSCALE_HD constexpr std::uint64_t nan_code() const {
    if (specials == rotoscale::specials::fnuz) return sign_mask();
    if (specials == rotoscale::specials::ieee) return infinity_code() | (std::uint64_t{1} << (mantissa_bits - 1));
    return magnitude_mask();
  }

  /// Code of the largest finite number.
  ROTOSCALE_HD constexpr std::uint64_t max_code() const {
    if (specials == rotoscale::specials::ieee) return infinity_code() - 1;
    if (specials == rotoscale::specials::nan_only) return magnitude_mask() - 1;
    return magnitude_mask();
  }

  /// Exponent of the largest finite number ("emax_elem" of the MX specification).
  ROTOSCALE_HD constexpr int max_exponent() const { return static_cast<int>(max_code() >> mantissa_bits) - bias; }
  /// Exponent of the smallest normal number.
  ROTOSCALE_HD constexpr int min_exponent() const { return (has_subnormals || has_zero ? 1 : 0) - bias; }

  /// Is `code` a NaN?
  ROTOSCALE_HD constexpr bool is_nan(std::uint64_t code) const {
    const std::uint64_t top = code & magnitude_mask();
    switch (specials) {
      case rotoscale::specials::none: return false;
      case rotoscale::specials::nan_only: return top == magnitude_mask();
      case rotoscale::specials::ieee: return top > infinity_code();
      case rotoscale::specials::fnuz: return code == sign_mask();
    }
    return false;
  }
  /// Is `code` an Inf of either sign?
  ROTOSCALE_HD constexpr bool is_infinity(std::uint64_t code) const {
    return has_infinity() && (code & magnitude_mask()) == infinity_code();
  }
};

/// Is every number of the format also an FP32 number?
ROTOSCALE_HD constexpr bool fits_fp32(format f) {
  return f.mantissa_bits <= 23 && f.max_exponent() <= 127 && f.min_exponent() - f.mantissa_bits >= -149;
}

/// Formats by the names of their specifications. max is the largest finite number, min the smallest positive one.
namespace formats {
inline constexpr format e2m1{2, 1, 1, true, specials::none};          ///< OCP MX FP4: max = 6, min = 0.5
inline constexpr format e2m3{2, 3, 1, true, specials::none};          ///< OCP MX FP6: max = 7.5, min = 0.125
inline constexpr format e3m2{3, 2, 3, true, specials::none};          ///< OCP MX FP6: max = 28, min = 0.0625
inline constexpr format e4m3{4, 3, 7, true, specials::nan_only};      ///< OCP FP8 (E4M3FN): max = 448, min = 2^-9
inline constexpr format e5m2{5, 2, 15, true, specials::ieee};         ///< OCP FP8: max = 57344, min = 2^-16
inline constexpr format e4m3fnuz{4, 3, 8, true, specials::fnuz};      ///< CDNA3: max = 240, min = 2^-10
inline constexpr format e5m2fnuz{5, 2, 16, true, specials::fnuz};     ///< CDNA3: max = 57344, min = 2^-17
inline constexpr format e4m3b11fnuz{4, 3, 11, true, specials::fnuz};  ///< ml_dtypes: max = 30, min = 2^-13
inline constexpr format int8{0, 7, 0, true, specials::none, true, true, true};  ///< MX INT8: max = 1.984375, min = 2^-6
inline constexpr format e8m0{8, 0, 127, false, specials::nan_only, false, false};  ///< MX: max = 2^127, min = 2^-127
inline constexpr format ue4m3{4, 3, 7, false, specials::nan_only};   ///< NVFP4 scales: max = 448, min = 2^-9
inline constexpr format ue5m3{5, 3, 15, false, specials::nan_only};  ///< PTX, gfx1250: max = 114688, min = 2^-17
inline constexpr format bf16{8, 7, 127};                             ///< bfloat16: max = 3.39e38, min = 2^-133
inline constexpr format fp16{5, 10, 15};                             ///< IEEE binary16: max = 65504, min = 2^-24
inline constexpr format tf32{8, 10, 127};    ///< 19 bits of FP32, as tensor cores read it: max = 3.40e38, min = 2^-136
inline constexpr format fp32{8, 23, 127};    ///< IEEE binary32: max = 3.40e38, min = 2^-149
inline constexpr format fp64{11, 52, 1023};  ///< IEEE binary64: max = 1.80e308, min = 2^-1074
}  // namespace formats

static_assert(formats::e2m1.max_exponent() == 2 && formats::e2m1.max_code() == 0x7);
static_assert(formats::e4m3.max_exponent() == 8 && formats::e4m3.max_code() == 0x7E &&
              formats::e4m3.nan_code() == 0x7F);
static_assert(formats::e5m2.max_exponent() == 15 && formats::e5m2.max_code() == 0x7B &&
              formats::e5m2.nan_code() == 0x7E);
static_assert(formats::int8.max_exponent() == 0 && formats::int8.signed_code(true, 1) == 0xFF &&
              formats::int8.magnitude(0x80) == 128);
static_assert(formats::e4m3fnuz.max_exponent() == 7 && formats::e4m3fnuz.nan_code() == 0x80);
static_assert(formats::ue4m3.bits() == 7 && formats::ue5m3.max_code() == 0xFE && formats::tf32.bits() == 19);
static_assert(formats::e8m0.min_exponent() == -127 && formats::e8m0.max_exponent() == 127 && formats::e8m0.bits() == 8);
static_assert(formats::bf16.min_exponent() == -126 && formats::fp32.nan_code() == fp32_nan_bits);
static_assert(fits_fp32(formats::e5m2) && fits_fp32(formats::fp32) && !fits_fp32(formats::fp64));

}  // namespace rotoscale
