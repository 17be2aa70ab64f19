// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Products and quotients of FP32 numbers rounded once to FP32, in 128-bit integers: the steps of floating-point scales.
#pragma once

#include "oracle/exact.hpp"

namespace rotoscale::oracle {

/// a * b for positive finite numbers.
inline float exact_product(float a, float b) {
  const exact_number x = exact(a), y = exact(b);
  return round_exact(static_cast<__int128>(x.significand) * y.significand, x.exponent + y.exponent);
}

/// a / b for positive finite numbers.
inline float exact_quotient(float a, float b) {
  const exact_number x = exact(a), y = exact(b);
  const __int128 dividend = static_cast<__int128>(x.significand) << 80;
  // At least 79 bits of the quotient, and a sticky bit for the remainder.
  const __int128 quotient = dividend / y.significand * 2 + (dividend % y.significand != 0 ? 1 : 0);
  return round_exact(quotient, x.exponent - y.exponent - 81);
}

}  // namespace rotoscale::oracle
