// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Digests of the numerics headers' results, computed by the same functions on host and device. A section is a number of
// items. Each item is an independent 64-bit digest, so that a device computes one per thread.
#pragma once

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/mma_models.hpp"
#include "rotoscale/mma_ref.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace digests {

using namespace rotoscale;

/// FNV-1a, 64 bits, over little-endian bytes.
class hash {
 public:
  ROTOSCALE_HD constexpr void add(std::uint64_t x, int bytes) {
    for (int i = 0; i < bytes; ++i) value_ = (value_ ^ (x >> (8 * i) & 0xFF)) * 0x100000001B3u;
  }
  ROTOSCALE_HD constexpr void add(float x) { add(fp32_bits(x), 4); }
  template <class T>
  ROTOSCALE_HD constexpr void add(const T* x, index_t count) {
    for (index_t i = 0; i < count; ++i) {
      if constexpr (sizeof(T) == 1) add(x[i], 1);
      if constexpr (sizeof(T) == 4) add(x[i]);
    }
  }
  ROTOSCALE_HD constexpr std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325u;
};

/// Memory of one item.
struct scratch {
  float source[64 * 64];
  float back[64 * 64];
  std::uint8_t codes[64 * 64];
  std::uint8_t scales[64 * 64];
  std::uint8_t placed[256 * 64];
};

inline constexpr int format_count = 21;
ROTOSCALE_HD constexpr format format_of(index_t i) {
  constexpr format all[format_count] = {formats::e2m1,
                                        formats::e2m3,
                                        formats::e3m2,
                                        formats::e4m3,
                                        formats::e5m2,
                                        formats::e4m3fnuz,
                                        formats::e5m2fnuz,
                                        formats::e4m3b11fnuz,
                                        formats::int8,
                                        formats::e8m0,
                                        formats::ue4m3,
                                        formats::ue5m3,
                                        formats::bf16,
                                        formats::fp16,
                                        formats::tf32,
                                        formats::fp32,
                                        formats::fp64,
                                        {4, 3, 7},
                                        {3, 0, 3, true, specials::none},
                                        {0, 3, 0, true, specials::none},
                                        {4, 3, 7, true, specials::none, false}};
  return all[i];
}

/// FP32 bits: arbitrary, or near one with an occasional zero, subnormal, Inf or NaN.
ROTOSCALE_HD constexpr std::uint32_t number(const random_stream& random, std::uint64_t i) {
  const std::uint32_t word = random.word(i);
  if (word % 61 == 0) return word & fp32_sign_mask;
  if (word % 67 == 0) return word & 0x807FFFFFu;
  if (word % 71 == 0) return (word & fp32_sign_mask) | fp32_infinity_bits | (i % 2 == 0 ? 0x00400000u : 0u);
  if (word % 3 == 0) return word * 0x9E3779B9u;
  return (word & 0x807FFFFFu) | (118u + (word >> 23) % 16) << 23;
}

/// Conversions between all formats, under each rounding and overflow mode.
inline constexpr index_t conversions = format_count * format_count * 7 * 3;
ROTOSCALE_HD constexpr std::uint64_t conversion(index_t item, scratch&) {
  const format from = format_of(item % format_count), to = format_of(item / format_count % format_count);
  const index_t mode = item / (format_count * format_count);
  const random_stream random{1, static_cast<std::uint64_t>(item)};
  hash h;
  for (std::uint64_t i = 0; i < 16; ++i) {
    const std::uint64_t wide = std::uint64_t{random.word(2 * i + 99)} << 32 | random.word(2 * i + 100);
    const std::uint64_t near_one = convert(formats::fp32, number(random, i), from);
    const std::uint64_t code = i % 4 == 0 ? wide & (from.magnitude_mask() | from.sign_mask()) : near_one;
    const random_bits bits{random.word(i + 999), 1 + static_cast<int>(random.word(i + 1999) % 32)};
    h.add(convert(from, code, to, static_cast<rounding>(mode % 7), static_cast<overflow>(mode / 7), bits), 8);
    h.add(decode(from, code));
  }
  return h.value();
}

ROTOSCALE_HD constexpr block_policy policy_of(index_t i) {
  constexpr block_policy all[] = {policies::te_rocm, policies::ocp,           policies::primus,
                                  policies::aiter,   policies::aiter_nonzero, policies::nvidia};
  return all[i];
}

/// Block scales of every element format, under each rule and policy, and floating-point scales.
inline constexpr index_t block_scales = 9 * 6;
ROTOSCALE_HD constexpr std::uint64_t block_scale(index_t item, scratch&) {
  const format element = format_of(item % 9);
  const block_policy policy = policy_of(item / 9);
  const random_stream random{2, static_cast<std::uint64_t>(item)};
  hash h;
  for (std::uint64_t i = 0; i < 600; ++i) {
    const std::uint32_t amax = (i % 3 == 0 ? random.word(i) : number(random, i)) & fp32_magnitude_mask;
    for (int rule = 0; rule < 4; ++rule) h.add(shared_scale(amax, element, static_cast<scale_rule>(rule), policy), 1);
    if (fp32_is_nan(amax)) continue;
    for (index_t s = 10; s < 12; ++s) {
      const format scale = format_of(s);
      const float factor = tensor_encode_factor(
          fp32_from_bits(number(random, i + 1) & fp32_magnitude_mask & ~0x40000000u), element, scale);
      const std::uint8_t code = shared_scale(amax, element, scale, factor, policy);
      h.add(factor);
      h.add(code, 1);
      h.add(canonical_nan(scale_inverse(scale, code, factor)));
      h.add(scale_value(scale, code));
    }
  }
  for (int byte = 0; byte < 256; ++byte) h.add(scale_value(formats::e8m0, static_cast<std::uint8_t>(byte)));
  return h.value();
}

/// Rotations of 2 to 256 points: forward, back, and forward again.
inline constexpr index_t rotations = 8 * 12;
ROTOSCALE_HD constexpr std::uint64_t rotated(index_t item, scratch& s) {
  const random_stream random{3, static_cast<std::uint64_t>(item)};
  rotation r{2 << item % 8, {}};
  for (std::uint32_t i = 0; i < 8; ++i) r.signs[i] = random.word(i);
  for (std::uint64_t i = 0; i < 256; ++i) {
    const std::uint32_t word = random.word(i + 8);
    const bool any = item % 3 == 0 && i >= 128;
    s.source[i] = fp32_from_bits(any ? number(random, i + 8) : (word & 0x807FFFFFu) | (120u + (word >> 23) % 12) << 23);
  }
  hash h;
  rotate_run(s.source, 256, r);
  h.add(s.source, 256);
  unrotate_run(s.source, 256, r);
  h.add(s.source, 256);
  hadamard(s.source, r.points);
  for (int i = 0; i < 256; ++i) h.add(canonical_nan(s.source[i]));
  return h.value();
}

ROTOSCALE_HD constexpr block_format block_format_of(index_t i) {
  constexpr block_format all[] = {mxfp4,
                                  mxfp6_e2m3,
                                  mxfp6_e3m2,
                                  mxfp8_e4m3,
                                  mxfp8_e5m2,
                                  mxint8,
                                  nvfp4,
                                  square_blocks(mxfp4),
                                  square_blocks(mxint8),
                                  {formats::e4m3fnuz},
                                  {formats::e2m1, 16, formats::ue5m3},
                                  {formats::e3m2, 64}};
  return all[i];
}
ROTOSCALE_HD constexpr block_options make_options(index_t i) {
  constexpr block_options all[] = {presets::te_rocm,        presets::primus,           presets::aiter_even,
                                   presets::aiter_round_up, presets::aiter_round_down, presets::aiter_ceil,
                                   presets::torchao_floor,  presets::torchao_rceil,    presets::torchao_even,
                                   presets::torchao_ceil,   presets::nvidia,           presets::ocp};
  return all[i];
}

/// 64 × 64 numbers quantized and dequantized: every block format, axis and preset, with and without a rotation (some
/// across several blocks) and random bits.
inline constexpr index_t quantized_blocks = 12 * 2 * 12 * 2;
ROTOSCALE_HD constexpr std::uint64_t quantized(index_t item, scratch& s) {
  const block_format f = block_format_of(item % 12);
  const auto axis = static_cast<block_axis>(item / 12 % 2);
  block_options o = make_options(item / 24 % 12);
  const random_stream random{4, static_cast<std::uint64_t>(item)};
  if (item >= 12 * 2 * 12) {
    o.rotation = {4 << item % 5, {random.word(1), random.word(2)}};
    o.rounding = static_cast<rounding>(6 - item % 3);
    o.random = {5, 6};
    o.random_count = 1 + static_cast<int>(random.word(3) % 32);
  }
  if (!f.has_e8m0_scale()) {
    o.encode_factor = tensor_encode_factor(3.0f, f.element, f.scale);
    if (o.policy.zero_byte > f.scale.max_code()) o.policy.zero_byte = 1;
  }
  const index_t n = 64;
  for (std::uint64_t i = 0; i < n * n; ++i) {
    // Special values are rare: otherwise all blocks of the square formats would be NaN.
    const std::uint32_t word = random.word(i + 9);
    const bool special = i / n % 32 == 5 && i % n < 16;
    s.source[i] =
        fp32_from_bits(special ? number(random, i + 9) : (word & 0x807FFFFFu) | (120u + (word >> 23) % 12) << 23);
  }
  hash h;
  const auto out = dense_blocks(f, n, n, s.codes, s.scales);
  for (std::uint8_t& byte : s.codes) byte = 0;
  quantize_ref(f, o, row_major<const float>(s.source, n, n), axis, out);
  h.add(s.codes, n * packed_bytes(f.element, n));
  h.add(s.scales, n / f.rows * (n / f.length));
  dequantize_ref(f, out, axis, row_major(s.back, n, n), 1.0f / o.encode_factor);
  h.add(s.back, n * n);
  return h.value();
}

/// Bytes in every layout and back.
inline constexpr index_t layouts = 6 * 8;
ROTOSCALE_HD constexpr std::uint64_t placed(index_t item, scratch& s) {
  const auto order = static_cast<placement>(item % 6);
  layout l{order, 1 + item / 6 * 9, 5 + item / 6 % 3 * 8};
  if (order == placement::aiter_data_16x16) l = {order, 16 + item / 6 % 2 * 16, 32};
  const random_stream random{7, static_cast<std::uint64_t>(item)};
  for (std::uint64_t i = 0; i < 64 * 64; ++i) s.codes[i] = static_cast<std::uint8_t>(random.word(i));
  hash h;
  place(row_major<const std::uint8_t>(s.codes, l.rows, l.columns), l, s.placed, unit_scale_byte);
  h.add(s.placed, l.size_bytes());
  gather(s.placed, l, row_major(s.scales, l.rows, l.columns));
  h.add(s.scales, l.rows * l.columns);
  for (index_t i = 0; i < l.size_bytes(); i += 7) {
    const matrix_position p = l.position(i);
    h.add(static_cast<std::uint64_t>(p.row * 1000 + p.column), 8);
    h.add(static_cast<std::uint64_t>(l.offset(p.row, p.column)), 8);
  }
  return h.value();
}

ROTOSCALE_HD constexpr mma_model model_of(index_t i) {
  constexpr mma_model all[] = {fp32_fma_chain,
                               fp32_blockwise,
                               models::hopper_f32,
                               models::hopper_f16,
                               models::with_tf32(models::hopper_k8_f32),
                               models::expanded_fp8(models::hopper_f32, 32, 2),
                               models::nvidia(32, 13, mma_result::e8m13, -133),
                               models::scaled_fp4(),
                               models::cdna2(4),
                               models::cdna3(8),
                               models::cdna3(16, mma_sum::late_c_split),
                               models::intel(32, mma_sum::split_chains),
                               models::intel(2, mma_sum::swapped_chain)};
  return all[i];
}

/// Instructions of the modelled matrix units, chained along K.
inline constexpr index_t mma_dots = 13 * 12;
ROTOSCALE_HD constexpr std::uint64_t mma_dot(index_t item, scratch&) {
  const mma_model m = model_of(item % 13);
  const random_stream random{8, static_cast<std::uint64_t>(item)};
  constexpr index_t operands[] = {0, 3, 4};  // e2m1, e4m3, e5m2: exact in every model's operand
  const format f = format_of(operands[item / 13 % 3]);
  constexpr format ue4m3 = formats::ue4m3;
  const int count = m.sum == mma_sum::scaled_groups ? 64 : 32;
  hash h;
  unpacked acc = unpack(formats::fp32, fp32_bits(0.25f));
  for (std::uint64_t step = 0; step < 8; ++step) {
    mma_product p[64] = {};
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i) {
      const std::uint64_t a = encode(f, fp32_from_bits(number(random, 1000 * step + 2 * i)));
      const std::uint64_t b = encode(f, fp32_from_bits(number(random, 1000 * step + 2 * i + 1)));
      p[i] = mma_multiply(m, mma_element(m, f, a), mma_element(m, f, b));
      if (m.sum == mma_sum::scaled_groups) mma_scale(p[i], ue4m3, random.word(1000 * step + 500 + i / 16) % 0x7F);
    }
    acc = mma_instruction(m, p, count, acc);
    h.add(fp32_value(acc));
    if (acc.kind == value_class::nan || acc.kind == value_class::infinity)
      acc = unpack(formats::fp32, fp32_bits(-3.0f));
  }
  return h.value();
}

struct section {
  const char* name;
  index_t items;
};
inline constexpr section sections[] = {{"conversions", conversions}, {"block scales", block_scales},
                                       {"rotations", rotations},     {"block quantizers", quantized_blocks},
                                       {"layouts", layouts},         {"matrix units", mma_dots}};

ROTOSCALE_HD constexpr std::uint64_t item_digest(int which, index_t item, scratch& s) {
  switch (which) {
    case 0: return conversion(item, s);
    case 1: return block_scale(item, s);
    case 2: return rotated(item, s);
    case 3: return quantized(item, s);
    case 4: return placed(item, s);
    default: return mma_dot(item, s);
  }
}

}  // namespace digests
