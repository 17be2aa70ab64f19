// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The one rounding routine: any format is unpacked to sign, exponent and 64-bit significand, and rounded once into any
// other. Integer-only and constexpr, so no compiler, flag or architecture can change a result.
#pragma once

#include "rotoscale/format.hpp"

namespace rotoscale {

/// Rounding of a value between two numbers of a format.
enum class rounding {
  nearest_even,  ///< roundTiesToEven, the MX default
  nearest_away,  ///< roundTiesToAway
  toward_zero,
  up,    ///< toward +infinity
  down,  ///< toward -infinity
  to_odd,
  stochastic  ///< away from zero with the probability of the fraction, decided by the caller's random bits
};

/// Random bits for rounding::stochastic: the low `count` bits of `word`. They are added to the leading `count` bits of
/// the discarded fraction; a carry rounds up. The probability of rounding up is therefore the fraction, truncated to
/// `count` bits.
struct random_bits {
  std::uint32_t word = 0;  ///< at least `count` random bits
  int count = 32;          ///< 1 to 32

  constexpr random_bits() = default;
  /// The low `n` bits of `w`.
  ROTOSCALE_HD constexpr random_bits(std::uint32_t w, int n = 32) : word(w), count(n) {}
};

/// Result for finite values that round beyond the largest finite number, and for infinities.
enum class overflow {
  saturate,  ///< the largest finite number, also for infinities
  to_inf,    ///< IEEE 754: Inf for nearest roundings, else by direction; NaN if there is no Inf
  to_nan     ///< NaN (E4M3 without saturation); the largest number if there is no NaN
};

/// Kind of value that a code has.
enum class value_class : std::uint8_t { zero, finite, infinity, nan };

/// A value. Finite ones are (-1)^negative * significand * 2^(exponent - 63), with bit 63 of the significand set.
struct unpacked {
  value_class kind = value_class::zero;  ///< exponent and significand count only for finite values
  bool negative = false;                 ///< sign, of all kinds
  int exponent = 0;                      ///< exponent of the highest bit
  std::uint64_t significand = 0;         ///< bit 63 set
};

/// The exact value of `code` in `f`.
ROTOSCALE_HD constexpr unpacked unpack(format f, std::uint64_t code) {
  unpacked u;
  u.negative = f.is_signed && (code & f.sign_mask()) != 0;
  if (f.is_nan(code)) {
    u.kind = value_class::nan;
    return u;
  }
  if (f.is_infinity(code)) {
    u.kind = value_class::infinity;
    return u;
  }
  const std::uint64_t magnitude = f.magnitude(code);
  const int field = f.exponent_bits == 0 ? 0 : static_cast<int>(magnitude >> f.mantissa_bits);
  const bool subnormal = field == 0 && f.has_subnormals;
  const std::uint64_t integer =
      subnormal ? magnitude : (magnitude & f.mantissa_mask()) | (std::uint64_t{1} << f.mantissa_bits);
  if (integer == 0 || (field == 0 && !f.has_subnormals && f.has_zero)) return u;
  const int top = highest_bit(integer);
  u.kind = value_class::finite;
  u.exponent = (subnormal ? f.min_exponent() : field - f.bias) + top - f.mantissa_bits;
  u.significand = integer << (63 - top);
  return u;
}

namespace detail {

/// Code of a value beyond the largest finite number. `away`: the rounding mode moves it away from zero.
ROTOSCALE_HD constexpr std::uint64_t overflow_code(format f, bool negative, overflow o, bool away) {
  if (o == overflow::to_inf && f.has_infinity()) {
    return f.signed_code(negative, away ? f.infinity_code() : f.max_code());
  }
  if (o != overflow::saturate && f.has_nan()) {
    return f.specials == specials::fnuz ? f.nan_code() : f.signed_code(negative, f.nan_code());
  }
  return f.signed_code(negative, f.max_code());
}

/// Is the magnitude `kept + fraction / 2^64` rounded up to kept + 1?
ROTOSCALE_HD constexpr bool rounds_away(rounding r, bool negative, std::uint64_t kept, std::uint64_t fraction,
                                        random_bits random) {
  constexpr std::uint64_t half = std::uint64_t{1} << 63;
  switch (r) {
    case rounding::nearest_even: return fraction > half || (fraction == half && (kept & 1) != 0);
    case rounding::nearest_away: return fraction >= half;
    case rounding::toward_zero: return false;
    case rounding::up: return fraction != 0 && !negative;
    case rounding::down: return fraction != 0 && negative;
    case rounding::to_odd: return fraction != 0 && (kept & 1) == 0;
    case rounding::stochastic: {
      const std::uint64_t word = random.word & ((std::uint64_t{1} << random.count) - 1);
      return ((fraction >> (64 - random.count)) + word) >> random.count != 0;
    }
  }
  return false;
}

}  // namespace detail

/// Rounds `v` into `f` and returns the code (in the low f.bits() bits).
/// - NaN becomes the format's NaN with its sign. Formats without NaN give the largest number with that sign, as
///   gfx950's
///   conversions do in HIP's host emulation.
/// - Negative values become the smallest code of an unsigned format.
/// - Two's complement formats never give their least code, which has no positive counterpart.
/// - Only rounding::stochastic uses `random`.
ROTOSCALE_HD constexpr std::uint64_t round_to(format f, unpacked v, rounding r = rounding::nearest_even,
                                              overflow o = overflow::saturate, random_bits random = {}) {
  // 1. Values that are not finite, and zero.
  if (v.kind == value_class::nan) return detail::overflow_code(f, v.negative, overflow::to_nan, true);
  if (v.negative && !f.is_signed) return 0;
  if (v.kind == value_class::infinity) return detail::overflow_code(f, v.negative, o, true);
  if (v.kind == value_class::zero) return f.signed_code(v.negative, 0);

  // 2. Split the significand at the format's last place: kept integer and 64-bit fraction.
  const int exponent = v.exponent < f.min_exponent() ? f.min_exponent() : v.exponent;
  const int shift = 63 - f.mantissa_bits + (exponent - v.exponent);  // bits below the last place, >= 11
  const std::uint64_t kept = shift > 63 ? 0 : v.significand >> shift;
  std::uint64_t fraction = 0;
  if (shift <= 64) {
    fraction = shift == 64 ? v.significand : v.significand << (64 - shift);
  } else {
    fraction = shift_right_sticky(v.significand, shift - 64);
  }

  // 3. Round. Codes are ordered, so a carry out of the mantissa moves into the exponent field.
  const bool away = detail::rounds_away(r, v.negative, kept, fraction, random);
  const std::uint64_t integer = kept + (away ? 1 : 0);
  if (!f.has_subnormals && (integer >> f.mantissa_bits) == 0) {
    // Below the smallest normal of a format without subnormals: zero, or that number if there is no zero (E8M0).
    return f.signed_code(v.negative, 0);
  }
  const std::uint64_t field = static_cast<std::uint64_t>(exponent - f.min_exponent());
  const std::uint64_t first = f.has_subnormals || f.has_zero ? 0 : std::uint64_t{1} << f.mantissa_bits;
  const std::uint64_t magnitude = (field << f.mantissa_bits) + integer - first;

  // 4. Range.
  if (v.exponent > f.max_exponent() || magnitude > f.max_code()) {
    const bool nearest = r == rounding::nearest_even || r == rounding::nearest_away || r == rounding::stochastic;
    return detail::overflow_code(f, v.negative, o, nearest || r == (v.negative ? rounding::down : rounding::up));
  }
  return f.signed_code(v.negative, magnitude);
}

/// Code of `from` converted to `to` with a single rounding.
ROTOSCALE_HD constexpr std::uint64_t convert(format from, std::uint64_t code, format to,
                                             rounding r = rounding::nearest_even, overflow o = overflow::saturate,
                                             random_bits random = {}) {
  return round_to(to, unpack(from, code), r, o, random);
}

/// FP32 to a code of `f`.
ROTOSCALE_HD constexpr std::uint64_t encode(format f, float x, rounding r = rounding::nearest_even,
                                            overflow o = overflow::saturate, random_bits random = {}) {
  return convert(formats::fp32, fp32_bits(x), f, r, o, random);
}

/// A code of `f` as FP32, exact for every format of at most 24 significand bits within FP32's range.
ROTOSCALE_HD constexpr float decode(format f, std::uint64_t code) {
  return fp32_from_bits(
      static_cast<std::uint32_t>(convert(f, code, formats::fp32, rounding::nearest_even, overflow::to_inf)));
}

/// `x` stored as `f` and read back: rounded to nearest even, Inf beyond f's range.
ROTOSCALE_HD constexpr float round_to_format(format f, float x) {
  constexpr format fp32 = formats::fp32;  // operator== takes references; device code has none to a global constant
  return f == fp32 ? x : decode(f, encode(f, x, rounding::nearest_even, overflow::to_inf));
}

static_assert(decode(formats::e2m1, 0x7) == 6.0f && decode(formats::e4m3, 0x7E) == 448.0f);
static_assert(decode(formats::e5m2, 0x7B) == 57344.0f && decode(formats::e8m0, 0) == 0x1p-127f);
static_assert(encode(formats::e2m1, 2.5f) == 0x4 && encode(formats::e2m1, 5.0f) == 0x6, "ties go to even");
static_assert(encode(formats::e2m1, 0.25f) == 0x0 && encode(formats::e2m1, 0.75f) == 0x2);

}  // namespace rotoscale
