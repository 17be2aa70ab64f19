// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// a * b + c rounded once to FP32, in 128-bit integers: the arithmetic of every accumulation step of the GEMMs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace rotoscale::oracle {

/// significand * 2^exponent.
struct exact_number {
  std::int64_t significand = 0;
  int exponent = 0;
};

inline exact_number exact(float x) {
  int e = 0;
  const float m = std::frexp(x, &e);
  return {static_cast<std::int64_t>(std::ldexp(m, 24)), e - 24};
}

/// n * 2^e rounded to FP32, ties to even; n is not zero.
inline float round_exact(__int128 n, int e) {
  const bool negative = n < 0;
  unsigned __int128 m = negative ? -static_cast<unsigned __int128>(n) : static_cast<unsigned __int128>(n);
  int bits = 0;
  while (bits < 128 && m >> bits != 0) ++bits;
  const int last_place = std::max(e + bits - 24, -149);  // exponent of FP32's last place
  if (last_place > e) {
    const int drop = last_place - e;
    if (drop >= 128) {
      m = 0;
    } else {
      const unsigned __int128 rest = m & ((static_cast<unsigned __int128>(1) << drop) - 1);
      const unsigned __int128 half = static_cast<unsigned __int128>(1) << (drop - 1);
      m >>= drop;
      if (rest > half || (rest == half && m % 2 == 1)) ++m;
    }
    e = last_place;
  }
  // At most 25 bits remain, so double is exact. ldexp overflows where the rounded value exceeds FP32.
  const double magnitude = std::ldexp(static_cast<double>(static_cast<std::uint64_t>(m)), e);
  const float result = magnitude >= 0x1p128 ? HUGE_VALF : static_cast<float>(magnitude);
  return negative ? -result : result;
}

/// p + c rounded once, for |p.significand| < 2^48 and finite c. Zero results are +0 unless both are -0.
inline float exact_add(exact_number p, bool p_negative, float c) {
  exact_number q = exact(c);
  if (p.significand == 0 && q.significand == 0) return p_negative && std::signbit(c) ? -0.0f : 0.0f;
  if (p.significand == 0) return c;
  if (q.significand == 0) return round_exact(p.significand, p.exponent);
  if (p.exponent < q.exponent) std::swap(p, q);
  const int apart = p.exponent - q.exponent;
  __int128 sum;
  int exponent = q.exponent;
  if (apart <= 78) {  // 48 + 78 bits and a sign fit
    sum = static_cast<__int128>(p.significand) * (static_cast<__int128>(1) << apart) + q.significand;
  } else {
    // The lower number is below 2^(48 - 79) = 2^-31 of the higher number's unit. A tie needs one of its bits 25 places
    // below the higher number's first bit, at the unit or above. So every amount with this sign rounds the same way.
    sum = static_cast<__int128>(p.significand) * (static_cast<__int128>(1) << 31) + (q.significand < 0 ? -1 : 1);
    exponent = p.exponent - 31;
  }
  return sum == 0 ? 0.0f : round_exact(sum, exponent);
}

inline float exact_fma(float a, float b, float c) {
  const exact_number x = exact(a), y = exact(b);
  return exact_add({x.significand * y.significand, x.exponent + y.exponent}, std::signbit(a) != std::signbit(b), c);
}

}  // namespace rotoscale::oracle
