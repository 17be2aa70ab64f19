// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A tile of the fast quantizer: one block per lane of a register. Hadamard transform, maximum and rounding then need no
// shuffles. Columns of a source are lanes already; rows are transposed first.
//
// There are two paths with the same bytes. The quick path serves tiles whose scales are ordinary numbers: it ignores
// NaN, folds the Hadamard factor into the scale and computes shared_scale with one addition. The exact path follows
// quantize_ref step by step.
#pragma once

#include "rotoscale/detail/fast_round.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Constants shared by all tiles of a call.
struct tile_plan {
  block_format f;
  block_options o;
  bool round_to_bf16 = false;
  int words = 0;  ///< words of codes per block
  /// Quick path: shared_scale is (FP32 bits + `bump`), shifted down to the exponent, minus `offset`. Tiles outside
  /// [lower, lower + range) take the exact path.
  std::uint32_t bump = 0, lower = 0, range = 0;
  int offset = 0;
  int fold = 0;  ///< the Hadamard factor 2^-fold is left out of the elements
};

/// Expresses shared_scale as an addition: every rule moves to the next byte at some mantissa.
inline void plan_quick_scales(tile_plan& p) {
  constexpr std::uint32_t one = fp32_bits(1.0f);
  const auto byte = [&](std::uint32_t amax) { return shared_scale(amax, p.f.element, p.o.rule, policies::ocp); };
  std::uint32_t first = 0, last = 1u << 23;  // the least mantissa with the next byte is in (first, last]
  while (last - first > 1) {
    const std::uint32_t middle = (first + last) / 2;
    if (byte(one + middle) == byte(one)) {
      first = middle;
    } else {
      last = middle;
    }
  }
  p.bump = (1u << 23) - last;
  p.fold = p.o.rotation.points == 16 ? 2 : 0;
  p.offset = 127 - byte(one) + p.fold;
  // Range of amax:
  // - At least 2^-60. A Hadamard factor rounds away bits below 2^-149.
  //   These are then below the last place of any format,
  //   and below the 32 bits of a stochastic rounding's fraction.
  // - Below 2^124: 2^4 / scale is then a normal number.
  constexpr format e5m2 = formats::e5m2;  // the widest format: smallest last place relative to its largest number
  static_assert(-60 - e5m2.max_exponent() + e5m2.min_exponent() - e5m2.mantissa_bits - 32 > -149);
  const int least = p.o.policy.least_byte + p.offset, usual = 127 - 60 + 1 + p.fold, end = 252;
  p.lower = static_cast<std::uint32_t>(least > usual ? least : usual) << 23;
  p.range = p.lower < static_cast<std::uint32_t>(end) << 23 ? (static_cast<std::uint32_t>(end) << 23) - p.lower : 0;
}

inline tile_plan plan_tiles(block_format f, const block_options& o, bool round_to_bf16) {
  tile_plan p{f, o, round_to_bf16, f.length * storage_bits(f.element) / 32};
  if (f.has_e8m0_scale()) plan_quick_scales(p);
  return p;
}

/// Loads one element per lane as FP32 bits. NaN need not be canonical, since only its sign is used.
inline void load_as_fp32(const float* from, lanes_u32& to) { to = load_lanes<lanes_u32>(from); }
template <format F>
inline void load_as_fp32(const small_float<F>* from, lanes_u32& to) {
  static_assert(F == formats::bf16 || F == formats::fp16);
  using half_register = std::uint16_t __attribute__((vector_size(2 * lane_count)));
  to = __builtin_convertvector(load_lanes<half_register>(from), lanes_u32);
  if constexpr (F == formats::bf16) {
    to <<= 16;
  } else {
    widen_fp16(to);
  }
}

/// Loads sixteen elements of a tile's blocks: lane l is output row v + l, x[i] element e + i. Rows beyond the matrix
/// repeat its last row; columns beyond it are zero.
template <class T>
[[gnu::always_inline]] inline void load_half(matrix<const T> source, block_axis axis, index_t v, index_t e,
                                             lanes_u32 (&x)[16]) {
  if (axis == block_axis::row) {
    const index_t last = source.extent(0) - 1 - v;
    for (int part = 0; part < 16; part += lane_count) {
      const T* from = source.data + v * source.stride(0) + e + part;
      lanes_u32 t[lane_count];
      for (int l = 0; l < lane_count; ++l) {
        load_as_fp32(from, t[l]);
        if (l < last) from += source.stride(0);
      }
      transpose_lanes(t);
      unrolled<lane_count>([&](auto i) __attribute__((always_inline)) { x[part + i] = t[i]; });
    }
    return;
  }
  const index_t lanes = source.extent(1) - v;
  const T* from = source.data + e * source.stride(0) + v;
  if (lanes >= lane_count) {
    unrolled<16>([&](auto i) __attribute__((always_inline)) { load_as_fp32(from + i * source.stride(0), x[i]); });
    return;
  }
  for (int i = 0; i < 16; ++i) {
    T some[lane_count] = {};
    for (index_t l = 0; l < lanes; ++l) some[l] = from[i * source.stride(0) + l];
    load_as_fp32(some, x[i]);
  }
}

/// The butterflies of a 16-point Hadamard transform, without the factor.
[[gnu::always_inline]] inline void butterflies(lanes_u32 (&x)[16]) {
  unrolled<4>([&](auto pass) __attribute__((always_inline)) {
    unrolled<8>([&](auto pair) __attribute__((always_inline)) {
      constexpr int step = 1 << pass, i = pair / step * 2 * step + pair % step;
      const auto a = __builtin_bit_cast(lanes_f32, x[i]), b = __builtin_bit_cast(lanes_f32, x[i + step]);
      x[i] = __builtin_bit_cast(lanes_u32, a + b);
      x[i + step] = __builtin_bit_cast(lanes_u32, a - b);
    });
  });
}

/// Loads a tile and applies source rounding, signs and butterflies. Quick tiles do not test for NaN. If rounding wraps
/// a NaN around to a number, the sign bit of `wrapped` is set.
template <bool Exact, int Length, class T>
inline void load_tile(const tile_plan& p, matrix<const T> source, block_axis axis, index_t v, index_t e,
                      lanes_u32 (&x)[Length], lanes_u32& wrapped) {
  for (int half = 0; half < Length / 16; ++half) {
    lanes_u32 h[16];
    load_half(source, axis, v, e + 16 * half, h);
    if (p.round_to_bf16) {
      unrolled<16>([&](auto i) __attribute__((always_inline)) {
        const lanes_u32 before = h[i];
        if constexpr (Exact) {
          round_to_bf16(h[i]);
        } else {
          round_number_to_bf16(h[i]);
          wrapped |= before ^ h[i];
        }
      });
    }
    if (p.o.rotation.points != 0) {
      const std::uint32_t signs = p.o.rotation.signs[0] >> (16 * half) & 0xFFFFu;
      if (signs != 0) {
        unrolled<16>([&](auto i) __attribute__((always_inline)) { h[i] ^= ((signs >> i) & 1u) << 31; });
      }
      butterflies(h);
    }
    unrolled<16>([&](auto i) __attribute__((always_inline)) { x[16 * half + i] = h[i]; });
  }
}

/// Completes load_tile's rotation: the last butterflies of 32 points, the factor, canonical NaN.
template <bool Exact, int Length>
inline void finish_rotation(const tile_plan& p, lanes_u32 (&x)[Length]) {
  const int points = p.o.rotation.points;
  if (points == 32) {
    for (int i = 0; i < Length / 2; ++i) {
      const auto a = __builtin_bit_cast(lanes_f32, x[i]), b = __builtin_bit_cast(lanes_f32, x[i + Length / 2]);
      x[i] = __builtin_bit_cast(lanes_u32, a + b);
      x[i + Length / 2] = __builtin_bit_cast(lanes_u32, a - b);
    }
  }
  if (points == 0 || (!Exact && p.fold != 0)) return;
  const float factor = hadamard_factor(points);
  for (auto& v : x) {
    v = __builtin_bit_cast(lanes_u32, __builtin_bit_cast(lanes_f32, v) * factor);
    if constexpr (Exact) v = (v & fp32_magnitude_mask) > fp32_infinity_bits ? broadcast(fp32_nan_bits) : v;
  }
}

/// amax of a tile's blocks. If NaN is ignored, lanes of `numbers` that have a number get bits set.
template <bool Exact, int Length>
inline void join_amax(const lanes_u32 (&x)[Length], bool ignore_nan, lanes_u32& amax,
                      [[maybe_unused]] lanes_u32& numbers) {
  for (const auto& v : x) {
    lanes_u32 u = v & fp32_magnitude_mask;
    if constexpr (Exact) {
      const auto number = __builtin_bit_cast(lanes_u32, u <= fp32_infinity_bits);
      numbers |= number;
      if (ignore_nan) u &= number;
    }
    amax = u > amax ? u : amax;
  }
}

/// Copies the largest lane to all lanes, for scales that several rows share.
inline void spread_largest(lanes_u32& u) {
  std::uint32_t largest = 0;
  for (int l = 0; l < lane_count; ++l) largest = u[l] > largest ? u[l] : largest;
  u = broadcast(largest);
}

/// Scales of a tile: their codes, the factor of the elements, and a mask of lanes whose codes are kept (not under a NaN
/// scale).
struct tile_scales {
  lanes_u32 codes;
  lanes_f32 inverse;
  lanes_u32 keep;
};

/// shared_scale for ordinary numbers. Returns false if there are others.
inline bool quick_scales(const tile_plan& p, const lanes_u32& amax, const lanes_u32& wrapped, tile_scales& s) {
  lanes_u32 zero = __builtin_bit_cast(lanes_u32, amax == 0u);
  if (p.o.policy.zero_byte == nan_scale_byte) zero = lanes_u32{};  // under a NaN scale zeros lose their signs
  const lanes_u32 bumped = amax + p.bump;
  const auto outside = __builtin_bit_cast(lanes_u32, bumped - p.lower >= p.range);
  if (any_bit((outside & ~zero) | wrapped >> 31)) return false;
  const lanes_u32 exponent = zero != 0u ? broadcast(127u) : bumped >> 23;  // any scale does for zeros
  s.codes =
      zero != 0u ? broadcast(std::uint32_t{p.o.policy.zero_byte}) : exponent - static_cast<std::uint32_t>(p.offset);
  s.inverse = __builtin_bit_cast(lanes_f32, (static_cast<std::uint32_t>(254 + p.offset - p.fold) - exponent) << 23);
  s.keep = ~lanes_u32{};
  return true;
}

inline void exact_e8m0_scales(const tile_plan& p, const lanes_u32& amax, tile_scales& s) {
  for (int l = 0; l < lane_count; ++l) {
    const std::uint8_t byte = shared_scale(amax[l], p.f.element, p.o.rule, p.o.policy);
    const bool nan = byte == nan_scale_byte;
    s.codes[l] = byte;
    // The product with an element is exact, or too small to affect rounding.
    s.inverse[l] = nan ? 0.0f : pow2_fp32(-scale_exponent(byte));
    s.keep[l] = nan ? 0u : ~0u;
  }
}

/// shared_scale and scale_inverse of a floating-point scale, operation by operation.
template <format Scale>
inline void exact_float_scales(const tile_plan& p, const lanes_u32& amax, tile_scales& s) {
  constexpr auto nan = static_cast<std::uint32_t>(Scale.nan_code());
  const float target = element_target(p.f.element, p.o.choice);
  const lanes_f32 wanted = __builtin_bit_cast(lanes_f32, amax) / target * p.o.encode_factor;
  lanes_u32 code = __builtin_bit_cast(lanes_u32, wanted);
  nearest_magnitude<Scale>(code);
  code = code < p.o.policy.least_byte ? broadcast(std::uint32_t{p.o.policy.least_byte}) : code;
  const bool infinity_is_nan = p.o.policy.infinity == block_policy::infinity_rule::nan_scale;
  code = amax >= fp32_infinity_bits + (infinity_is_nan ? 0u : 1u) ? broadcast(nan) : code;
  code = amax == 0u ? broadcast(std::uint32_t{p.o.policy.zero_byte}) : code;
  s.codes = code;
  code &= static_cast<std::uint32_t>(Scale.magnitude_mask());
  s.keep = __builtin_bit_cast(lanes_u32, code != nan);
  const auto shifted = __builtin_bit_cast(lanes_f32, code << (23 - Scale.mantissa_bits));
  const lanes_f32 divisor = shifted * pow2_fp32(127 - Scale.bias) * (1.0f / p.o.encode_factor);
  const auto quotient = __builtin_bit_cast(lanes_u32, 1.0f / divisor);
  const lanes_u32 inverse =
      __builtin_bit_cast(lanes_u32, divisor) > fp32_bits(0x1p-128f) ? quotient : broadcast(fp32_bits(0x1.FFFFFEp127f));
  s.inverse = __builtin_bit_cast(lanes_f32, inverse);
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
