// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Reference for block quantization, written from docs/reference/numerics.md. It uses the library's structs and none of
// its functions. A number is an exact `long double`, and a format is the list of its magnitudes. Scales come from
// comparing numbers, elements from comparing x / scale with its two neighbours in the list.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "rotoscale/block.hpp"

namespace rotoscale::oracle {

/// FP64 values times powers of two of FP32's range must be exact and normal.
using exact_t = long double;
static_assert(std::numeric_limits<exact_t>::digits >= 64 && std::numeric_limits<exact_t>::max_exponent >= 16384);

/// Magnitudes of a format by magnitude code, ascending, up to the largest finite number.
struct grid {
  std::vector<exact_t> values;
  exact_t next = 0;       ///< the number after the largest one
  int fraction_bits = 0;  ///< of the numbers with the largest exponent

  explicit grid(const format& f) {
    std::uint64_t count = std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits);
    if (f.specials == specials::nan_only) count -= 1;
    if (f.specials == specials::ieee) count -= std::uint64_t{1} << f.mantissa_bits;
    for (std::uint64_t code = 0; code < count; ++code) {
      const std::uint64_t per_binade = std::uint64_t{1} << f.mantissa_bits;
      const auto field = static_cast<int>(code / per_binade);
      const auto mantissa = static_cast<exact_t>(code % per_binade) / static_cast<exact_t>(per_binade);
      if (field == 0 && f.has_subnormals) {
        values.push_back(std::ldexp(mantissa, 1 - f.bias));
      } else if (field == 0 && f.has_zero) {
        values.push_back(0);
      } else {
        values.push_back(std::ldexp(1 + mantissa, field - f.bias));
      }
    }
    const std::size_t last = values.size() - 1;
    next = values[last] + (last > 0 && f.mantissa_bits > 0 ? values[last] - values[last - 1] : values[last]);
    fraction_bits = std::ilogb(values[last]) - std::ilogb(next - values[last]);
  }

  exact_t largest() const { return values.back(); }
  int largest_exponent() const { return std::ilogb(largest()); }
};

/// Element of exact value x (any sign, NaN, Inf), saturating. `word`: random bits, `count` of them used.
inline std::uint32_t element_code(const format& f, const grid& g, exact_t x, rounding r, std::uint32_t word,
                                  int count) {
  const std::uint32_t sign_bit = 1u << (f.exponent_bits + f.mantissa_bits);
  const bool negative = std::signbit(x);
  const auto finish = [&](std::size_t magnitude) {
    const auto m = static_cast<std::uint32_t>(magnitude);
    if (!negative || !f.is_signed) return m;
    if (f.twos_complement) return (2 * sign_bit - m) % (2 * sign_bit);
    if (m == 0 && f.specials == specials::fnuz) return m;
    return sign_bit + m;
  };
  if (std::isnan(x)) {
    switch (f.specials) {
      case specials::none: return finish(g.values.size() - 1);
      case specials::fnuz: return sign_bit;
      case specials::nan_only: return finish(sign_bit - 1);
      case specials::ieee: return finish(g.values.size() + (1u << (f.mantissa_bits - 1)));
    }
  }
  if (negative && !f.is_signed) return 0;
  const exact_t m = std::fabs(x);
  if (m >= g.largest()) return finish(g.values.size() - 1);
  if (m <= g.values.front()) return finish(0);
  const auto code =
      static_cast<std::size_t>(std::upper_bound(g.values.begin(), g.values.end(), m) - g.values.begin()) - 1;
  const exact_t low = g.values[code], high = g.values[code + 1], step = high - low;
  if (m == low) return finish(code);
  const exact_t rest = m - low;  // exact: no bits of m below its own last place
  bool up = false;
  switch (r) {
    case rounding::nearest_even: up = rest * 2 > step || (rest * 2 == step && code % 2 == 1); break;
    case rounding::nearest_away: up = rest * 2 >= step; break;
    case rounding::toward_zero: break;
    case rounding::up: up = !negative; break;
    case rounding::down: up = negative; break;
    case rounding::to_odd: up = code % 2 == 0; break;
    case rounding::stochastic: {
      const exact_t all = std::ldexp(exact_t{1}, count);
      up = std::floor(rest / step * all) + std::fmod(static_cast<exact_t>(word), all) >= all;
      break;
    }
  }
  return finish(code + (up ? 1 : 0));
}

/// x rounded to nearest even, or to odd, in a floating-point format of at most 52 mantissa bits. NaN is kept.
inline exact_t stored_as(const format& f, exact_t x, bool to_odd = false) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const int least = (f.has_subnormals ? 1 : 0) - f.bias;
  const exact_t place = std::ldexp(exact_t{1}, std::max(std::ilogb(x), least) - f.mantissa_bits);
  const exact_t scaled = x / place;
  exact_t rounded = std::rint(scaled);  // to even; std::nearbyint is five times slower
  if (to_odd && rounded != scaled) {
    rounded = std::trunc(scaled);
    if (std::fmod(rounded, 2) == 0) rounded += x > 0 ? 1 : -1;
  }
  const int top = (1 << f.exponent_bits) - 2 - f.bias;  // of IEEE formats
  const exact_t limit = std::ldexp(exact_t{1}, top + 1);
  if (std::fabs(rounded * place) < limit) return rounded * place;
  const exact_t largest = limit - std::ldexp(exact_t{1}, top - f.mantissa_bits);
  return std::copysign(to_odd ? largest : std::numeric_limits<exact_t>::infinity(), x);
}

inline float as_float(exact_t x) { return static_cast<float>(x); }

/// A run after its signs and Hadamard transform, as FP32 butterflies: element i is paired with element i XOR stride.
inline void rotated(std::vector<exact_t>& x, const rotation& r) {
  if (r.points == 0) return;
  std::vector<float> now(x.size()), then(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    now[i] = as_float(x[i]);
    if (r.signs[i / 32] >> (i % 32) & 1) now[i] = -now[i];
  }
  const auto points = static_cast<std::size_t>(r.points);
  for (std::size_t stride = 1; stride < points; stride *= 2) {
    for (std::size_t i = 0; i < now.size(); ++i) {
      then[i] = (i & stride) == 0 ? now[i] + now[i ^ stride] : now[i ^ stride] - now[i];
    }
    now.swap(then);
  }
  const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(points)));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float product = now[i] * factor;
    x[i] = std::isnan(product) ? std::numeric_limits<exact_t>::quiet_NaN() : static_cast<exact_t>(product);
  }
}

/// A block's amax under the policy: the largest magnitude that it considers, or NaN.
inline exact_t amax_of(const std::vector<exact_t>& x, const block_policy& p) {
  std::vector<exact_t> magnitudes;
  for (const exact_t v : x) {
    if (std::isnan(v) && p.nan == block_policy::nan_rule::nan_scale) return v;
    if (!std::isnan(v)) magnitudes.push_back(std::fabs(v));
  }
  if (magnitudes.empty() && p.nan == block_policy::nan_rule::ignore_unless_all)
    return std::numeric_limits<exact_t>::infinity();
  return magnitudes.empty() ? 0 : *std::max_element(magnitudes.begin(), magnitudes.end());
}

/// E8M0 scale byte.
inline std::uint8_t e8m0_byte(exact_t amax, const grid& g, scale_rule rule, const block_policy& p) {
  if (amax == 0) return p.zero_byte;
  if (std::isnan(amax)) return 255;
  bool infinite = std::isinf(amax);
  int byte = 0;
  if (!infinite) {
    int e = std::ilogb(amax);
    const exact_t significand = std::ldexp(amax, -e);
    switch (rule) {
      case scale_rule::floor: break;
      case scale_rule::ceil: e += significand > 1; break;
      case scale_rule::even: e += significand >= 2 - std::ldexp(exact_t{1}, -1 - g.fraction_bits); break;
      case scale_rule::rceil:
        for (e = -127 + g.largest_exponent(); amax > std::ldexp(g.largest(), e - g.largest_exponent());) ++e;
        break;
    }
    infinite = rule == scale_rule::even && e == 128;
    byte = e + 127 - g.largest_exponent();
  }
  if (infinite) {
    if (p.infinity == block_policy::infinity_rule::nan_scale) return 255;
    byte = p.infinity == block_policy::infinity_rule::largest_scale ? 254 : 128 + 127 - g.largest_exponent();
  }
  return static_cast<std::uint8_t>(std::clamp(byte, static_cast<int>(p.least_byte), 254));
}

inline std::uint8_t nan_of(const format& scale) {
  const std::uint32_t all = (1u << (scale.exponent_bits + scale.mantissa_bits)) - 1;
  if (scale.specials == specials::nan_only) return static_cast<std::uint8_t>(all);
  return static_cast<std::uint8_t>((all >> scale.mantissa_bits << scale.mantissa_bits) +
                                   (1u << (scale.mantissa_bits - 1)));
}

inline bool is_nan_scale(const format& scale, const grid& g, std::uint8_t code) {
  const bool infinity = scale.specials == specials::ieee && code == g.values.size();
  return code >= g.values.size() && !infinity;
}

/// Floating-point scale with NVIDIA's arithmetic, each step rounded to FP32. `more`: 1.5 for 4 in place of 6.
inline std::uint8_t float_scale(exact_t amax, const grid& g, const format& scale, const grid& scales,
                                const block_options& o, float more = 1) {
  const block_policy& p = o.policy;
  if (amax == 0) return p.zero_byte;
  if (std::isnan(amax)) return nan_of(scale);
  if (std::isinf(amax) && p.infinity == block_policy::infinity_rule::nan_scale) return nan_of(scale);
  const exact_t top = g.largest() * (o.choice == scale_choice::headroom ? exact_t{16} / 17
                                     : o.choice == scale_choice::eden   ? 16 / exact_t{15.81f}
                                                                        : exact_t{1});
  const float share = as_float(amax) / as_float(top);
  const float first = share * o.encode_factor, wanted = first * more;
  const auto code = element_code(scale, scales, wanted, rounding::nearest_even, 0, 32);
  return static_cast<std::uint8_t>(std::max<std::uint32_t>(code, p.least_byte));
}

/// A scaled element before it is rounded to the element format.
inline exact_t scaled_element(exact_t x, bool power_of_two, std::uint8_t code, const grid& scales, float encode) {
  if (power_of_two) return std::ldexp(x, 127 - static_cast<int>(code));
  const float decode = 1.0f / encode;
  const float divisor = as_float(scales.values[code]) * decode;
  const float inverse = 1.0f / divisor;
  const float factor = inverse < std::numeric_limits<float>::max() ? inverse : std::numeric_limits<float>::max();
  const float product = as_float(x) * factor;
  return std::isnan(product) ? std::numeric_limits<exact_t>::quiet_NaN() : static_cast<exact_t>(product);
}

/// Codes of one row as a bit stream, least significant bit first. Codes that are not 4 or 6 bits wide take a byte.
inline std::vector<std::uint8_t> packed(const format& f, const std::vector<std::uint32_t>& codes) {
  const int bits = f.exponent_bits + f.mantissa_bits + (f.is_signed ? 1 : 0);
  const std::size_t width = bits == 4 || bits == 6 ? static_cast<std::size_t>(bits) : 8;
  std::vector<std::uint8_t> bytes((codes.size() * width + 7) / 8, 0);
  for (std::size_t i = 0; i < codes.size() * width; ++i) {
    if (codes[i / width] >> (i % width) & 1) bytes[i / 8] = static_cast<std::uint8_t>(bytes[i / 8] | 1u << (i % 8));
  }
  return bytes;
}

struct quantized {
  std::vector<std::uint8_t> codes, scales;  ///< dense, row after row
  std::vector<std::uint32_t> elements;      ///< codes before packing
};

/// `x`: rows × cols exact values of the source. `exactly`: FP64 sources are used as they are. Otherwise they are
/// rounded to odd FP32 first, as the library does. `word(i)`: random word i of the stream.
class block_quantizer {
 public:
  block_quantizer(const block_format& f, const block_options& o)
      : f_(f),
        o_(o),
        elements_(f.element),
        scales_(f.scale),
        power_of_two_(f.scale == format{8, 0, 127, false, specials::nan_only, false, false}) {}

  quantized operator()(const std::vector<exact_t>& x, std::size_t rows, std::size_t cols, block_axis axis,
                       bool exactly = false, const std::function<std::uint32_t(std::uint64_t)>& word = nullptr) const {
    const std::size_t out_rows = axis == block_axis::row ? rows : cols, k = axis == block_axis::row ? cols : rows;
    const auto length = static_cast<std::size_t>(f_.length), tall = static_cast<std::size_t>(f_.rows);
    const std::size_t run = std::max(length, static_cast<std::size_t>(o_.rotation.points));
    // 1. The matrix whose rows are divided into blocks, one row per output row.
    std::vector<std::vector<exact_t>> seen(out_rows, std::vector<exact_t>(k));
    for (std::size_t r = 0; r < out_rows; ++r) {
      for (std::size_t c = 0; c < k; ++c) {
        exact_t v = axis == block_axis::row ? x[r * cols + c] : x[c * cols + r];
        if (!exactly) v = stored_as({8, 23, 127}, v, true);
        const bool as_it_is = o_.source.exponent_bits == 8 && o_.source.mantissa_bits == 23;
        seen[r][c] = as_it_is ? v : stored_as(o_.source, v);
      }
      for (std::size_t c = 0; c < k; c += run) {
        std::vector<exact_t> part(seen[r].begin() + static_cast<std::ptrdiff_t>(c),
                                  seen[r].begin() + static_cast<std::ptrdiff_t>(c + run));
        rotated(part, o_.rotation);
        std::copy(part.begin(), part.end(), seen[r].begin() + static_cast<std::ptrdiff_t>(c));
      }
    }
    // 2. Scales, then elements.
    quantized out;
    out.elements.resize(out_rows * k);
    for (std::size_t r0 = 0; r0 < out_rows; r0 += tall) {
      for (std::size_t c0 = 0; c0 < k; c0 += length) {
        std::vector<exact_t> block;
        for (std::size_t r = r0; r < r0 + tall; ++r)
          for (std::size_t c = c0; c < c0 + length; ++c) block.push_back(seen[r][c]);
        const exact_t amax = amax_of(block, o_.policy);
        const std::uint8_t scale =
            power_of_two_ ? e8m0_byte(amax, elements_, o_.rule, o_.policy) : chosen_scale(block, amax);
        out.scales.push_back(scale);
        for (std::size_t r = r0; r < r0 + tall; ++r)
          for (std::size_t c = c0; c < c0 + length; ++c)
            out.elements[r * k + c] = code(seen[r][c], scale, word ? word(r * k + c) : 0);
      }
    }
    if (o_.choice == scale_choice::eden) correct(seen, run, word, out);
    for (std::size_t r = 0; r < out_rows; ++r) {
      const auto first = out.elements.begin() + static_cast<std::ptrdiff_t>(r * k);
      const auto bytes = packed(f_.element, {first, first + static_cast<std::ptrdiff_t>(k)});
      out.codes.insert(out.codes.end(), bytes.begin(), bytes.end());
    }
    return out;
  }

  /// FP32 value of an element code under a scale: exact, or rounded once at the ends of FP32's range.
  float value(std::uint32_t code, std::uint8_t scale) const {
    const format& e = f_.element;
    const std::uint32_t sign_bit = 1u << (e.exponent_bits + e.mantissa_bits);
    const bool negative = e.is_signed && (code & sign_bit) != 0;
    std::uint32_t magnitude = negative ? code - sign_bit : code;
    if (negative && e.twos_complement) magnitude = 2 * sign_bit - code;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (is_nan_scale(f_.scale, scales_, scale)) return nan;
    if (e.specials == specials::fnuz && code == sign_bit) return nan;
    exact_t v = 0;
    if (magnitude < elements_.values.size()) {
      v = elements_.values[magnitude];
    } else if (e.twos_complement) {
      v = elements_.next;  // the most negative code
    } else if (e.specials == specials::ieee && magnitude == elements_.values.size()) {
      v = std::numeric_limits<exact_t>::infinity();
    } else {
      return nan;
    }
    if (negative) v = -v;
    const exact_t factor = scale < scales_.values.size() ? scales_.values[scale] : HUGE_VALL;
    const exact_t product = power_of_two_ ? std::ldexp(v, static_cast<int>(scale) - 127) : v * factor;
    return std::isnan(product) ? nan : as_float(product);
  }

  /// Sum of squared errors under a scale, as docs/reference/numerics.md adds it.
  float error(const std::vector<exact_t>& block, std::uint8_t scale) const {
    std::vector<float> sums;
    for (const exact_t x : block) {
      const auto stored = static_cast<exact_t>(value(code(x, scale, 0), scale));
      sums.push_back(as_float(stored - x * static_cast<exact_t>(o_.encode_factor)));
    }
    for (std::size_t i = 0; i < sums.size(); i += 2) {
      const exact_t first = as_float(static_cast<exact_t>(sums[i]) * static_cast<exact_t>(sums[i]));
      const auto second = static_cast<exact_t>(sums[i + 1]);
      sums[i / 2] = as_float(first + second * second);
    }
    for (std::size_t n = sums.size() / 2; n > 1; n /= 2) {
      for (std::size_t i = 0; i < n; i += 2)
        sums[i / 2] = as_float(static_cast<exact_t>(sums[i]) + static_cast<exact_t>(sums[i + 1]));
    }
    return sums[0];
  }

 private:
  /// Scales times sum(y * y) / sum(y * q) of their run, rounded stochastically. `word` of a block's first element.
  void correct(const std::vector<std::vector<exact_t>>& seen, std::size_t run,
               const std::function<std::uint32_t(std::uint64_t)>& word, quantized& out) const {
    const auto length = static_cast<std::size_t>(f_.length), k = seen.empty() ? 0 : seen[0].size();
    for (std::size_t at = 0; at < seen.size() * k; at += run) {
      std::vector<exact_t> sums[2];  // of squares, of products
      for (std::size_t i = at; i < at + run; ++i) {
        const std::uint8_t scale = out.scales[i / length];
        const exact_t y = is_nan_scale(f_.scale, scales_, scale)  // the block has a NaN or Inf
                              ? std::numeric_limits<exact_t>::quiet_NaN()
                              : scales_.values[scale] == 0  // loses its elements
                                    ? 0
                                    : scaled_element(seen[i / k][i % k], false, scale, scales_, o_.encode_factor);
        const exact_t q = std::copysign(elements_.values[out.elements[i] & 7], (out.elements[i] & 8) != 0 ? -1 : 1);
        for (const int products : {0, 1}) {
          std::vector<exact_t>& sum = sums[products];
          const exact_t term = y * (products != 0 ? q : y);
          if (i % 2 == 0) {
            sum.push_back(as_float(term));
          } else {
            sum.back() = as_float(sum.back() + term);
          }
        }
      }
      for (std::vector<exact_t>& sum : sums) {
        for (std::size_t n = run / 2; n > 1; n /= 2) {
          for (std::size_t i = 0; i < n; i += 2) sum[i / 2] = as_float(sum[i] + sum[i + 1]);
        }
      }
      const float quotient = as_float(sums[0][0]) / as_float(sums[1][0]);
      const float factor = quotient > 0 && std::isfinite(quotient) ? quotient : 1.0f;
      for (std::size_t i = at; i < at + run; i += length) {
        std::uint8_t& scale = out.scales[i / length];
        const auto first = seen[i / k].begin() + static_cast<std::ptrdiff_t>(i % k);
        const std::vector<exact_t> block(first, first + static_cast<std::ptrdiff_t>(length));
        if (is_nan_scale(f_.scale, scales_, scale) || amax_of(block, o_.policy) == 0) continue;
        const float wanted = as_float(scales_.values[scale]) * factor;
        const std::uint32_t code =
            element_code(f_.scale, scales_, wanted, rounding::stochastic, word ? word(i) : 0, o_.random_count);
        scale = static_cast<std::uint8_t>(std::max<std::uint32_t>(code, o_.policy.least_byte));
      }
    }
  }
  std::uint8_t chosen_scale(const std::vector<exact_t>& block, exact_t amax) const {
    const std::uint8_t six = float_scale(amax, elements_, f_.scale, scales_, o_);
    if (o_.choice != scale_choice::four_over_six) return six;
    const std::uint8_t four = float_scale(amax, elements_, f_.scale, scales_, o_, 1.5f);
    return error(block, four) < error(block, six) ? four : six;
  }
  std::uint32_t code(exact_t x, std::uint8_t scale, std::uint32_t word) const {
    if (is_nan_scale(f_.scale, scales_, scale)) return 0;
    const exact_t scaled = scaled_element(x, power_of_two_, scale, scales_, o_.encode_factor);
    return element_code(f_.element, elements_, scaled, o_.rounding, word, o_.random_count);
  }

  block_format f_;
  block_options o_;
  grid elements_, scales_;
  bool power_of_two_;
};

}  // namespace rotoscale::oracle
