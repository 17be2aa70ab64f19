// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The core of the fast MXFP4 quantizer: sixteen blocks at once, one a lane, so that the Hadamard, the maximum, the
// scale and the rounding are straight vertical code. It covers plain blocks (finite, away from the ends of FP32); the
// others are the definition's.
#pragma once

#include <type_traits>

#include "rotoscale/block.hpp"
#include "rotoscale/detail/simd.hpp"

namespace rotoscale::detail {

template <int Step>
inline void butterfly_stage(lanes_f32 (&y)[16]) {
  for (int i = 0; i < 16; ++i) {  // compilers unroll this: Step is a constant
    if ((i & Step) != 0) continue;
    const lanes_f32 a = y[i];
    y[i] = a + y[i + Step];
    y[i + Step] = a - y[i + Step];
  }
}

/// The butterflies of H16 over 16 registers, without the final factor.
inline void butterflies16(lanes_u32* x) {
  lanes_f32 y[16];
  for (int i = 0; i < 16; ++i) y[i] = reinterpret_cast<lanes_f32>(x[i]);
  butterfly_stage<1>(y);
  butterfly_stage<2>(y);
  butterfly_stage<4>(y);
  butterfly_stage<8>(y);
  for (int i = 0; i < 16; ++i) x[i] = reinterpret_cast<lanes_u32>(y[i]);
}

/// shared_scale for E2M1 and finite lanes whose exponents lie well inside FP32's: no clamps but the policy's.
inline void choose_scales(const block_options& o, const lanes_u32& amax, lanes_u32& bytes) {
  const lanes_u32 u = o.rule == scale_rule::even ? amax + (1u << 21) : amax;
  const lanes_u32 mantissa = u & 0x007FFFFFu;
  lanes_u32 byte = (u >> 23) - 2u;
  // A comparison of vectors is -1 where it holds.
  if (o.rule == scale_rule::ceil) byte -= reinterpret_cast<lanes_u32>(mantissa != 0u);
  if (o.rule == scale_rule::rceil) byte -= reinterpret_cast<lanes_u32>(mantissa > 0x00400000u);
  const lanes_u32 least = lanes_u32{} + o.policy.least_byte;
  byte = byte > least ? byte : least;
  bytes = amax == 0u ? lanes_u32{} + o.policy.zero_byte : byte;
}

/// Adds one E2M1 code to words of codes, the first at the bottom after eight of them. In code space E2M1 rounds
/// g(x) = min(2x, x + 2, x / 2 + 4) to an integer, ties to even: adding 1.5 * 2^23 leaves that integer in the low bits
/// with FP32's own rounding. The products are exact, so a fused multiply-add gives the same bits.
/// `s` is the inverse scale.
inline void push_code(const lanes_u32& y, const lanes_f32& two_s, const lanes_f32& s, const lanes_f32& half_s,
                      lanes_u32& words) {
  constexpr float magic = 0x1.8p23f;
  const lanes_u32 bits = y & fp32_magnitude_mask;
  const lanes_f32 m = reinterpret_cast<lanes_f32>(bits);
  const lanes_f32 low = m * two_s + magic, middle = m * s + (magic + 2.0f), high = m * half_s + (magic + 4.0f);
  lanes_u32 code = reinterpret_cast<lanes_u32>(low);
  const lanes_u32 code2 = reinterpret_cast<lanes_u32>(middle), code3 = reinterpret_cast<lanes_u32>(high);
  code = code < code2 ? code : code2;  // positive floats are ordered as their bits
  code = code < code3 ? code : code3;
  constexpr std::uint32_t seven = fp32_bits(magic + 7.0f);
  lanes_u32 largest{};  // in two steps: nvcc 13's front end does not survive lanes_u32{} + seven
  largest += seven;
  code = code < largest ? code : largest;
  code = (code & 7u) | ((y >> 28) & 8u);
#if defined(__AVX512VBMI2__)
  words = reinterpret_cast<lanes_u32>(
      _mm512_shrdi_epi32(reinterpret_cast<__m512i>(words), reinterpret_cast<__m512i>(code), 4));
#else
  words = (words >> 4) | (code << 28);
#endif
}
static_assert((fp32_bits(0x1.8p23f) & 7u) == 0);

/// Quantizes 16 blocks, one a lane, whose FP32 bits are in x (overwritten): four words of codes and a scale byte a
/// lane. False if a lane's block needs the definition.
inline bool quantize_lanes(const block_options& o, lanes_u32 (&x)[32], lanes_u32* words, lanes_u32& bytes) {
  constexpr format bf16_format = formats::bf16;
  if (o.source == bf16_format) {
    for (auto& v : x) round_lanes_to_bf16(v);
  }
  const bool rotated = o.rotation.points == 16;
  if (rotated) {
    for (int i = 0; i < 32 && o.rotation.signs[0] != 0; ++i) x[i] ^= ((o.rotation.signs[0] >> i) & 1u) << 31;
    butterflies16(x);
    butterflies16(x + 16);
  }
  lanes_u32 amax{};
  for (const auto& v : x) {
    const lanes_u32 u = v & fp32_magnitude_mask;
    amax = u > amax ? u : amax;
  }
  // 1. Plain lanes: all zero, or of an amax between 2^-100 and 2^100. There neither the factor 1/4 of H16 (which joins
  //    the scale below) nor the scale takes a number that matters out of FP32's normal range: what underflows is below
  //    2^-20 of the block's unit, and what becomes of it rounds to zero.
  const lanes_u32 outside =
      reinterpret_cast<lanes_u32>(amax - (27u << 23) > (200u << 23)) & reinterpret_cast<lanes_u32>(amax != 0u);
  std::uint32_t any = 0;
  for (int l = 0; l < lane_count; ++l) any |= outside[l];
  if (any != 0) return false;

  // 2. Scales, and their inverses with the rotation's factor.
  const lanes_u32 zero = reinterpret_cast<lanes_u32>(amax == 0u);
  const lanes_u32 true_amax = rotated ? (amax - (2u << 23)) & ~zero : amax;
  choose_scales(o, true_amax, bytes);
  lanes_u32 inverse = ((254u - (rotated ? 2u : 0u)) - bytes) << 23;
  inverse = zero != 0u ? lanes_u32{} + fp32_bits(1.0f) : inverse;

  // 3. Codes.
  const lanes_f32 scale = reinterpret_cast<lanes_f32>(inverse);
  const lanes_f32 two_s = scale * 2.0f, half_s = scale * 0.5f;
  for (int w = 0; w < 4; ++w) {
    words[w] = lanes_u32{};
    for (int i = 0; i < 8; ++i) push_code(x[8 * w + i], two_s, scale, half_s, words[w]);
  }
  return true;
}

/// Does this core cover these arguments? The policy's least byte must leave the scales' window alone.
template <class T>
bool mxfp4_lanes_apply(block_format f, const block_options& o, matrix<T> source) {
  using element = std::remove_const_t<T>;
  constexpr block_format covered = mxfp4;
  constexpr format fp32 = formats::fp32, bf16_format = formats::bf16;
  const bool source_ok = o.source == fp32 || o.source == bf16_format;
  const bool rotation_ok = o.rotation.points == 0 || o.rotation.points == 16;
  return (std::is_same_v<element, float> || std::is_same_v<element, bf16>)&&f == covered &&
         o.rounding == rounding::nearest_even && source_ok && rotation_ok && source.stride(1) == 1 &&
         o.policy.least_byte <= 1;
}

/// Outputs that are larger than caches bypass them.
inline constexpr index_t streaming_bytes = index_t{4} << 20;

}  // namespace rotoscale::detail
