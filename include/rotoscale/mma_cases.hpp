// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Test inputs that distinguish models of matrix units, for tests and probes. The kinds follow arXiv:2511.10909 and its
// reimplementations: raw bits, edge values, many zeros, normal numbers, tiny numbers, outliers. This project adds
// cancelling sums, wide exponents, and rows that each show one property (width, rounding, product normalisation, order
// of k, carries, subnormals). Uses the C library's log and cos.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

#include "rotoscale/philox.hpp"
#include "rotoscale/round.hpp"

namespace rotoscale {

/// Kinds of test values; case_kind_names has their names. Each row of `properties` shows one property of a unit.
enum class case_kind { normal, raw_bits, edges, many_zeros, tiny, outliers, wide, cancelling, properties };
inline constexpr int case_kinds = 9;  ///< number of kinds
/// Names of the kinds, in their order.
inline constexpr const char* case_kind_names[case_kinds] = {"normal",   "raw_bits", "edges",      "many_zeros", "tiny",
                                                            "outliers", "wide",     "cancelling", "properties"};

/// Kind of test case `i`: all kinds in turn.
constexpr case_kind case_kind_of(std::int64_t i) { return static_cast<case_kind>(i % case_kinds); }

/// Random codes and scales of every kind. Seed and stream decide them, on every machine with the same C library (log
/// and cos).
class case_source {
 public:
  /// Starts at the first word of random_stream{seed, stream}.
  case_source(std::uint64_t seed, std::uint64_t stream) : words_{seed, stream} {}

  /// The next word.
  std::uint32_t word() { return words_.word(next_++); }
  /// Random bits of `f`'s width.
  std::uint64_t bits(const format& f) {
    if (f.bits() > 32) return word() | static_cast<std::uint64_t>(word()) << 32;
    return f.bits() == 32 ? word() : word() & ((1u << f.bits()) - 1);
  }
  /// Uniform in (0, 1).
  double uniform() { return (static_cast<double>(word()) + 0.5) * 0x1p-32; }
  /// N(0, 1), by Box and Muller.
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

  /// A code of `f`. For TF32 operands an FP32 word, which the unit truncates.
  std::uint64_t code(const format& f, case_kind g) {
    switch (g) {
      case case_kind::raw_bits: return bits(f);
      case case_kind::edges: return edge(f);
      case case_kind::many_zeros: return word() % 3 == 0 ? 0 : bits(f);
      case case_kind::tiny: return encoded(f, std::ldexp(normal(), f.min_exponent()));
      case case_kind::outliers: return encoded(f, normal() + (word() % 64 == 0 ? 100 * normal() : 0));
      case case_kind::wide: return encoded(f, std::ldexp(normal(), static_cast<int>(word() % 25) - 12));
      case case_kind::normal:
      case case_kind::cancelling:
      case case_kind::properties: break;
    }
    return encoded(f, normal());
  }

  /// Code of a block's scale:
  /// - `raw_bits`, `edges`: any bits, NaN included.
  /// - `wide`, `outliers`, `many_zeros`: far from the neighbours' scales, so that the unit's width shows.
  /// - Other kinds: around 1.
  std::uint8_t scale(const format& f, case_kind g) {
    const std::uint32_t random = word(), one = static_cast<std::uint32_t>(encode(f, 1.0f));
    if (g == case_kind::raw_bits || g == case_kind::edges) return static_cast<std::uint8_t>(random);
    const bool far = g == case_kind::wide || g == case_kind::outliers || g == case_kind::many_zeros;
    if (!far) return static_cast<std::uint8_t>(one - 4 + random % 8);
    // E8M0: 2^-20 to 2^19. UE4M3: all numbers.
    const std::uint32_t codes = f.mantissa_bits == 0 ? 40 : static_cast<std::uint32_t>(f.max_code()) + 1;
    return static_cast<std::uint8_t>(f.mantissa_bits == 0 ? one - 20 + random % codes : random % codes);
  }

  /// Code of `x` in `f`, nearest even, saturating.
  static std::uint64_t encoded(const format& f, double x) {
    return convert(formats::fp64, bit_cast<std::uint64_t>(x), f);
  }

 private:
  std::uint64_t edge(const format& f) {
    const std::uint64_t least_normal = std::uint64_t{1} << f.mantissa_bits;
    const std::uint64_t magnitudes[] = {0,
                                        1,
                                        least_normal - 1,
                                        least_normal,
                                        f.max_code(),
                                        f.max_code() - 1,
                                        encode(f, 1.0f),
                                        encode(f, 1.0f) + 1,
                                        f.has_infinity() ? f.infinity_code() : f.max_code(),
                                        f.has_nan() && word() % 8 == 0 ? f.nan_code() : encode(f, 0.5f)};
    const std::uint64_t magnitude = magnitudes[word() % std::size(magnitudes)];
    return word() % 2 == 0 ? magnitude : magnitude | f.sign_mask();
  }

  random_stream words_;
  std::uint64_t next_ = 0;
};

/// Element `i` of k in row `row` of A; rows show one property each. The square of 2^top neither overflows nor
/// underflows. The slide of a row moves its small term through the unit's width bit by bit.
inline double property_value(int row, int i, int k, int top) {
  const int slide = row / 6 % 32;
  const auto power = [&](int e) { return std::ldexp(1.0, std::max(e, top - 40)); };
  switch (row % 6) {
    case 0:  // width: 2^p - 2^p + 2^(p - slide)
      return i == 0 ? power(top) : i == 1 ? -power(top) : i == 2 ? power(top - slide) : 0;
    case 1:  // rounding of dropped bits: 2^p + 1.5 * 2^(p - slide)
      return i == 0 ? power(top) : i == k - 1 ? 1.5 * power(top - slide) : 0;
    case 2:  // are products of 1.5 * 1.5 renormalised before alignment?
      return i == 0 ? 1.5 * power(top) : i == 1 ? 1.25 * power(top - slide) : 0;
    case 3:  // order: a cancelling pair loses what is added before its second half
      return i == slide % k ? power(top) : i == (7 * slide + 3) % k ? -power(top) : power(top - 20);
    case 4:  // carries: k of the largest products
      return 1.9375 * power(top);
    default:  // subnormal numbers and small sums
      return i % 3 == slide % 3 ? std::ldexp(1.0, -slide) * power(top - 30) : 0;
  }
}

/// Makes one row of an operand of k elements; passes each code of `f` to store(i, code). For cancelling sums the second
/// half of k repeats the first, with the other sign in B. Some codes are off by one unit in the last place.
template <class Store>
void make_row(const format& f, case_kind kind, bool is_b, int row, int k, case_source& source, const Store& store) {
  std::uint64_t first_half[256] = {};
  for (int i = 0; i < k; ++i) {
    std::uint64_t code = 0;
    if (kind == case_kind::properties) {
      const int top = f.max_exponent() / 2 < 12 ? f.max_exponent() / 2 : 12;
      const double factors[] = {1, -1, 1.5, i % 2 == 0 ? 1.0 : -1.0};
      code = case_source::encoded(f, is_b ? factors[row % 4] : property_value(row, i, k, top));
    } else if (kind == case_kind::cancelling && i >= k / 2 && i - k / 2 < 256) {
      code = first_half[i - k / 2];
      if (is_b) code = f.signed_code(!f.is_negative(code), f.magnitude(code));
      if (source.word() % 16 == 0) code ^= 1;
    } else {
      code = source.code(f, kind);
    }
    if (i < k / 2 && i < 256) first_half[i] = code;
    store(i, code);
  }
}

}  // namespace rotoscale
