// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reference for NVIDIA's aligned sum ("T-FDPA"), in doubles. Switches give the wrong models that published tests must
// reject. Operands are finite, so products and aligned terms are exact in a double.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace rotoscale::oracle {

enum class alignment_rounding { truncate, floor, nearest };

struct fdpa {
  int group;
  int fraction_bits;
  int least_exponent;
  int operand_least_exponent;  ///< of a normal number
  alignment_rounding cut = alignment_rounding::truncate;
  bool renormalise_products = false;
  bool late_c = false;  ///< c joins after the products were summed and rounded

  /// One result before the final rounding, as an integer multiple of 2^unit.
  struct sum {
    double integer;
    int unit;
    double value() const { return std::ldexp(integer, unit); }
  };

  int exponent(double x) const { return x == 0 ? -100000 : std::max(std::ilogb(x), operand_least_exponent); }

  double aligned(double x, int unit) const {
    const double scaled = std::ldexp(x, -unit);
    switch (cut) {
      case alignment_rounding::truncate: return std::trunc(scaled);
      case alignment_rounding::floor: return std::floor(scaled);
      case alignment_rounding::nearest: return std::nearbyint(scaled);
    }
    return 0;
  }

  sum step(const std::vector<double>& a, const std::vector<double>& b, double c, bool with_c) const {
    int e = least_exponent;
    if (with_c && c != 0) e = std::max(e, std::max(std::ilogb(c), -126));
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i] == 0 || b[i] == 0) continue;
      e = std::max(e, renormalise_products ? std::ilogb(a[i] * b[i]) : exponent(a[i]) + exponent(b[i]));
    }
    const int unit = e - fraction_bits;
    double total = with_c ? aligned(c, unit) : 0;
    for (std::size_t i = 0; i < a.size(); ++i) total += aligned(a[i] * b[i], unit);
    return {total, unit};
  }

  /// Toward zero to `digits` significant bits (FP32's normal range only).
  static double truncate(double x, int digits) {
    if (x == 0) return 0;
    const int unit = std::ilogb(x) - digits + 1;
    return std::ldexp(std::trunc(std::ldexp(x, -unit)), unit);
  }

  /// The chain of steps, with results of `digits` bits rounded toward zero.
  double operator()(const std::vector<double>& a, const std::vector<double>& b, double c, int digits) const {
    double acc = c;
    for (std::size_t first = 0; first < a.size(); first += static_cast<std::size_t>(group)) {
      const auto end = std::min(a.size(), first + static_cast<std::size_t>(group));
      const std::vector<double> x(a.begin() + static_cast<std::ptrdiff_t>(first),
                                  a.begin() + static_cast<std::ptrdiff_t>(end));
      const std::vector<double> y(b.begin() + static_cast<std::ptrdiff_t>(first),
                                  b.begin() + static_cast<std::ptrdiff_t>(end));
      if (late_c) {
        acc = truncate(acc + truncate(step(x, y, 0, false).value(), digits), digits);
      } else {
        acc = truncate(step(x, y, acc, true).value(), digits);
      }
    }
    return acc;
  }
};

}  // namespace rotoscale::oracle
