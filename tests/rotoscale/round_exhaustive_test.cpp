// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// All 2^32 FP32 inputs into every format, rounding and overflow mode.
//
// Inputs are walked in ascending order of magnitude. A stretch is one half of the interval between two numbers of a
// format. In it, every rounding except the stochastic one gives a constant code. oracle::rounder computes that code
// from the definition. The default suite walks every stretch with few inputs each.
#include <doctest/doctest.h>

#include <atomic>

#include "oracle/format_oracle.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/small_float.hpp"

using namespace rotoscale;
using oracle::direction;
using oracle::excess;

namespace {

constexpr int fixed_roundings = 6;  // all but the stochastic one, which is last
static_assert(static_cast<int>(rounding::stochastic) == fixed_roundings);

double value_of(std::uint32_t bits) { return static_cast<double>(fp32_from_bits(bits)); }

/// FP32 bits of the least number >= x, for x >= 0; Inf if there is none.
std::uint32_t first_from(double x) {
  if (x > 0x1.FFFFFEp127) return fp32_infinity_bits;
  std::uint32_t u = fp32_bits(static_cast<float>(x));
  while (u > 0 && value_of(u - 1) >= x) --u;
  while (value_of(u) < x) ++u;
  return u;
}

/// FP32 magnitudes [first, last) with equal codes under `mode`. Stochastic rounding gives `down`, or `up` if the random
/// bits carry.
struct stretch {
  std::uint32_t first, last;
  overflow mode;
  std::uint64_t code[2][fixed_roundings];  ///< [negative][rounding]
  std::uint64_t down[2], up[2];
  double low = 0, step = 0;  ///< fraction = (value - low) / step; step 0: exact, or beyond all numbers
};

/// Computes the codes of a stretch that starts at `first`, in one overflow mode.
stretch make_stretch(const oracle::rounder& expected, std::uint32_t first, std::uint32_t last, excess e) {
  stretch s{};
  s.first = first;
  s.last = last;
  s.mode = static_cast<overflow>(e);
  const auto& list = expected.list;
  const double m = value_of(first);
  const auto above = std::upper_bound(list.begin(), list.end(), m);
  if (m == m && above != list.begin() && above != list.end() && *(above - 1) != m) {
    s.low = *(above - 1);
    s.step = *above - s.low;
  }
  for (const int negative : {0, 1}) {
    const double sign = negative == 1 ? -1.0 : 1.0;
    for (int r = 0; r < fixed_roundings; ++r)
      s.code[negative][r] = expected(std::copysign(m, sign), static_cast<direction>(r), e);
    // Zero random bits never carry. All ones carry at a fraction of one half.
    s.down[negative] = s.up[negative] = expected(std::copysign(m, sign), direction::stochastic, e, 0u);
    if (s.step != 0) s.up[negative] = expected(sign * (s.low + s.step / 2), direction::stochastic, e, 0xFFFFFFFFu);
  }
  return s;
}

/// The leading 32 bits of each fraction in a stretch of normal numbers of one exponent, in integers. It is the number's
/// 24-bit significand minus low's (0 if low is 0), in units of step.
struct fractions {
  std::uint32_t low = 0;
  int step_bits = 0;  ///< step = 2^step_bits last places of FP32

  explicit fractions(const stretch& s) {
    if (s.step == 0) return;
    const int last_place = std::ilogb(value_of(s.first)) - 23;
    low = static_cast<std::uint32_t>(std::ldexp(s.low, -last_place));
    step_bits = std::ilogb(s.step) - last_place;
  }
  std::uint64_t leading(std::uint32_t mantissa) const {
    const std::uint64_t above = (0x800000u | mantissa) - low;
    if (step_bits == 0) return 0;
    return step_bits <= 32 ? above << (32 - step_bits) : step_bits < 64 ? above >> (step_bits - 32) : 0;
  }
};

// Loops over normal numbers of one exponent, rounding and sign, which compilers can vectorize. Nearest even uses
// encode, the others round_to with unpack's result (the last test case covers unpack). They return the bits in which
// any code is wrong.

constexpr std::uint32_t mantissa_mask = 0x007FFFFFu;

unpacked normal(std::uint32_t first, std::uint32_t mantissa, bool negative) {
  return {value_class::finite, negative, static_cast<int>(first >> 23) - 127,
          std::uint64_t{0x800000u | mantissa} << 40};
}

template <format F, rounding R, bool Negative>
[[gnu::flatten, gnu::noinline]] std::uint64_t walk(const stretch& s, std::uint32_t stride) {
  const std::uint64_t want = s.code[Negative][static_cast<int>(R)];
  const overflow mode = s.mode;
  const std::uint32_t first = s.first, count = s.last - s.first;
  std::uint64_t wrong = 0;
  for (std::uint32_t i = 0; i < count; i += stride) {
    if constexpr (R == rounding::nearest_even) {
      wrong |= encode(F, fp32_from_bits((first + i) | (Negative ? fp32_sign_mask : 0)), R, mode) ^ want;
    } else {
      wrong |= round_to(F, normal(first, (first & mantissa_mask) + i, Negative), R, mode) ^ want;
    }
  }
  return wrong;
}

/// Random words just below and at the threshold, for `count` random bits and with `garbage` above them.
template <format F, bool Negative>
[[gnu::flatten, gnu::noinline]] std::uint64_t walk_stochastic(const stretch& s, std::uint32_t stride, int count,
                                                              std::uint32_t garbage) {
  const fractions f(s);
  const std::uint64_t down = s.down[Negative], up = s.up[Negative];
  const std::uint32_t first = s.first, mantissa = first & mantissa_mask, inputs = s.last - s.first;
  const std::uint64_t mask = (std::uint64_t{1} << count) - 1;
  const overflow mode = s.mode;
  std::uint64_t wrong = 0;
  for (std::uint32_t i = 0; i < inputs; i += stride) {
    const std::uint64_t leading = f.leading(mantissa + i) >> (32 - count);
    const unpacked v = normal(first, mantissa + i, Negative);
    const auto word = [&](std::uint64_t low) { return static_cast<std::uint32_t>((low & mask) | (garbage & ~mask)); };
    wrong |= round_to(F, v, rounding::stochastic, mode, {word(~leading), count}) ^ down;
    wrong |= round_to(F, v, rounding::stochastic, mode, {word(0 - leading), count}) ^ (leading != 0 ? up : down);
  }
  return wrong;
}

template <format F, bool Negative>
std::uint64_t walk_all(const stretch& s, std::uint32_t stride) {
  std::uint64_t wrong = walk<F, rounding::nearest_even, Negative>(s, stride) |
                        walk<F, rounding::nearest_away, Negative>(s, stride) |
                        walk<F, rounding::toward_zero, Negative>(s, stride) |
                        walk<F, rounding::up, Negative>(s, stride) | walk<F, rounding::down, Negative>(s, stride) |
                        walk<F, rounding::to_odd, Negative>(s, stride) | walk_stochastic<F, Negative>(s, stride, 32, 0);
  // One stretch in eight uses fewer random bits (round_test.cpp covers all counts with fewer inputs).
  const std::uint32_t hash = s.first * 0x9E3779B9u >> 24;
  if (hash % 8 == 0) wrong |= walk_stochastic<F, Negative>(s, stride, 1 + static_cast<int>(hash / 8), 0x5A5A5A5Au);
  return wrong;
}

/// The same with encode only, for subnormal numbers, Inf and NaN.
template <format F>
std::uint64_t walk_others(const stretch& s, std::uint32_t stride) {
  std::uint64_t wrong = 0;
  for (std::uint32_t u = s.first; u < s.last; u += stride) {
    // Exact: the difference is (see format_oracle.hpp), and step is a power of two.
    const auto leading = s.step == 0 ? 0 : static_cast<std::uint64_t>(std::ldexp((value_of(u) - s.low) / s.step, 32));
    const auto threshold = static_cast<std::uint32_t>(0 - leading);  // least word that carries, if any does
    for (const int negative : {0, 1}) {
      const float x = fp32_from_bits(u | (negative == 1 ? fp32_sign_mask : 0));
      for (int r = 0; r < fixed_roundings; ++r)
        wrong |= encode(F, x, static_cast<rounding>(r), s.mode) ^ s.code[negative][r];
      const std::uint64_t down = s.down[negative], up = s.up[negative];
      wrong |= encode(F, x, rounding::stochastic, s.mode, threshold - 1) ^ down;
      wrong |= encode(F, x, rounding::stochastic, s.mode, threshold) ^ (leading != 0 ? up : down);
    }
  }
  return wrong;
}

constexpr std::uint64_t none = ~std::uint64_t{0};

/// First magnitude in [first, last) whose stretch has an error, or `none`. All roundings; overflow modes in turn, and
/// all three above the largest number.
template <format F>
std::uint64_t first_wrong(const oracle::rounder& expected, std::uint32_t first, std::uint32_t last,
                          std::uint32_t stride) {
  const auto& list = expected.list;
  // A stretch ends at a number, after it, at the middle, after it, at an exponent change, at Inf, and after Inf.
  const auto end_of = [&](std::uint32_t u) {
    if (u > fp32_infinity_bits) return fp32_sign_mask;
    const double m = value_of(u);
    const auto above = std::upper_bound(list.begin(), list.end(), m);
    const double low = above == list.begin() ? -1.0 : *(above - 1);
    const double middle = above == list.begin() || above == list.end() ? -1.0 : low + (*above - low) / 2;
    if (u == 0 || u == fp32_infinity_bits || m == low || m == middle) return u + 1;
    const std::uint32_t end = above == list.end() ? fp32_infinity_bits : first_from(m < middle ? middle : *above);
    return std::min(end, ((u >> 23) + 1) << 23);
  };
  for (std::uint32_t u = first, end = 0; u < last; u = end) {
    end = std::min(end_of(u), last);
    const bool is_normal = u >= 0x00800000u && u < fp32_infinity_bits;
    const bool all_modes = value_of(u) >= list[list.size() - 2] || u >= fp32_infinity_bits;
    for (std::uint32_t o = 0; o < 3; ++o) {
      if (!all_modes && o != (u >> 8) % 3) continue;
      const stretch s = make_stretch(expected, u, end, static_cast<excess>(o));
      const std::uint64_t wrong =
          is_normal ? walk_all<F, false>(s, stride) | walk_all<F, true>(s, stride) : walk_others<F>(s, stride);
      if (wrong != 0) return u;
    }
  }
  return none;
}

template <format F>
void compare(std::uint32_t stride) {
  const oracle::rounder expected(oracle::facts_of(F));
  CAPTURE(expected.f.name);
  thread_pool pool;
  std::atomic<std::uint64_t> wrong{none};
  const std::uint32_t size = 1u << 20;
  pool.for_each((std::int64_t{1} << 31) / size, [&](index_t i) {
    const auto first = static_cast<std::uint32_t>(i) * size;
    const std::uint64_t at = first_wrong<F>(expected, first, first + size, stride);
    if (at != none) wrong = at;
  });
  CHECK(wrong.load() == none);
}

/// unpack of FP32: by IEEE 754's formula for finite numbers, in integers.
void compare_unpack(std::uint32_t stride) {
  thread_pool pool;
  std::atomic<std::uint64_t> wrong{0};
  pool.for_each(512, [&](index_t sign_and_field) {
    const auto base = static_cast<std::uint32_t>(sign_and_field) << 23;
    const std::uint32_t field = base >> 23 & 0xFF;
    std::uint64_t differ = 0;
    for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += stride) {
      const unpacked v = unpack(formats::fp32, base | mantissa);
      unpacked want{value_class::finite, base >= fp32_sign_mask, 0, 0};
      if (field == 255) {
        want.kind = mantissa == 0 ? value_class::infinity : value_class::nan;
      } else if (field == 0 && mantissa == 0) {
        want.kind = value_class::zero;
      } else {
        // value = significand * 2^(exponent - 63) = (mantissa [+ 2^23]) * 2^(max(field, 1) - 150), normalised
        want.exponent = static_cast<int>(field == 0 ? 1 : field) - 127;
        want.significand = std::uint64_t{field == 0 ? mantissa : mantissa + 0x800000u} << 40;
        while (want.significand < std::uint64_t{1} << 63) {
          want.significand *= 2;
          --want.exponent;
        }
      }
      differ += v.kind != want.kind || v.negative != want.negative || v.exponent != want.exponent ||
                v.significand != want.significand;
    }
    wrong += differ;
  });
  CHECK(wrong.load() == 0);
}

// Unnamed formats: IEEE E4M3, and extreme parameters.
using e4m3_ieee = small_float<format{4, 3, 7}>;
using e3m0 = small_float<format{3, 0, 3, true, specials::none}>;
using e0m3 = small_float<format{0, 3, 0, true, specials::none}>;
using e4m3_flushing = small_float<format{4, 3, 7, true, specials::none, false}>;
using ue6m2 = small_float<format{6, 2, 31, false, specials::nan_only, false, false}>;

}  // namespace

// Names in test cases.
TYPE_TO_STRING(e2m1);
TYPE_TO_STRING(e2m3);
TYPE_TO_STRING(e3m2);
TYPE_TO_STRING(e4m3);
TYPE_TO_STRING(e5m2);
TYPE_TO_STRING(e4m3fnuz);
TYPE_TO_STRING(e5m2fnuz);
TYPE_TO_STRING(e4m3b11fnuz);
TYPE_TO_STRING(mx_int8);
TYPE_TO_STRING(e8m0);
TYPE_TO_STRING(ue4m3);
TYPE_TO_STRING(ue5m3);
TYPE_TO_STRING(fp16);
TYPE_TO_STRING(bf16);
TYPE_TO_STRING(tf32);
TYPE_TO_STRING(e4m3_ieee);
TYPE_TO_STRING(e3m0);
TYPE_TO_STRING(e0m3);
TYPE_TO_STRING(e4m3_flushing);
TYPE_TO_STRING(ue6m2);

TEST_CASE_TEMPLATE("FP32 inputs, some of every stretch of equal codes", Float, e2m1, e2m3, e3m2, e4m3, e5m2, e4m3fnuz,
                   e5m2fnuz, e4m3b11fnuz, mx_int8, e8m0, ue4m3, ue5m3, fp16, bf16, tf32, e4m3_ieee, e3m0, e0m3,
                   e4m3_flushing, ue6m2) {
  compare<Float::format>(100003);
}

TEST_CASE("FP32 inputs unpacked, some of every exponent") { compare_unpack(10007); }

TEST_SUITE("slow") {
  TEST_CASE_TEMPLATE("all FP32 inputs", Float, e2m1, e2m3, e3m2, e4m3, e5m2, e4m3fnuz, e5m2fnuz, e4m3b11fnuz, mx_int8,
                     e8m0, ue4m3, ue5m3, fp16, bf16, tf32, e4m3_ieee, e3m0) {
    compare<Float::format>(1);
  }
  TEST_CASE("all FP32 inputs unpacked") { compare_unpack(1); }
}
