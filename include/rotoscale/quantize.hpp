// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast block quantizer, equal to quantize_ref by bytes. Sixteen blocks are quantized at once, one a lane, so that
// the Hadamard, the maximum and the rounding are straight vertical code; rows of the source are transposed into lanes
// first, columns already are lanes.
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/detail/mxfp4_rows.hpp"
#include "rotoscale/detail/simd.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale {

namespace detail {

inline constexpr int mx_length = 32;

/// What one tile of 16 MXFP4 blocks becomes: lane l's codes are words[0..3][l], low nibble first.
struct mxfp4_tile {
  lanes_u32 words[4];
  std::uint8_t scales[lane_count];
};

// Vectors go by reference: without AVX-512, passing 64 bytes by value would change with the compiler's flags.

/// Signs, H16 on each half and NaN canonicalisation, as rotate_block for every lane.
inline void rotate_lanes(lanes_u32 (&x)[mx_length], std::uint32_t signs) {
  if (signs != 0) {
    for (int i = 0; i < mx_length; ++i) x[i] ^= ((signs >> i) & 1u) << 31;
  }
  for (int first = 0; first < mx_length; first += 16) {
    lanes_f32 y[16];
    for (int i = 0; i < 16; ++i) y[i] = reinterpret_cast<lanes_f32>(x[first + i]);
    for (int step = 1; step < 16; step *= 2) {
      for (int base = 0; base < 16; base += 2 * step) {
        for (int i = base; i < base + step; ++i) {
          const lanes_f32 a = y[i];
          y[i] = a + y[i + step];
          y[i + step] = a - y[i + step];
        }
      }
    }
    for (int i = 0; i < 16; ++i) {
      const lanes_u32 u = reinterpret_cast<lanes_u32>(y[i] * 0.25f);
      x[first + i] = (u & fp32_magnitude_mask) > fp32_infinity_bits ? lanes_u32{} + fp32_nan_bits : u;
    }
  }
}

/// FP32 lanes to E2M1 magnitudes 0..7: nearest even, saturating, NaN to 7; the sign is dropped.
inline void round_lanes_to_e2m1(lanes_u32& y) {
  const lanes_u32 magnitude = y & fp32_magnitude_mask;
  // At or above 1: round the 23-bit mantissa to one bit; code = exponent and mantissa bit, with 1.0 (127 << 1) as 2.
  const lanes_u32 rounded = ((magnitude + 0x1FFFFFu + ((magnitude >> 22) & 1u)) >> 22) - 252u;
  // Below 1 the step is 0.5: adding 2^22, whose last place is 0.5, lets the FP32 adder round to nearest even.
  const lanes_f32 shifted = reinterpret_cast<lanes_f32>(magnitude) + 0x1p22f;
  const lanes_u32 subnormal = reinterpret_cast<lanes_u32>(shifted) - 0x4A800000u;
  y = magnitude < 0x3F800000u ? subnormal : (rounded > 7u ? lanes_u32{} + 7u : rounded);
}
static_assert(fp32_bits(0x1p22f) == 0x4A800000u && fp32_bits(1.0f) == 0x3F800000u);

/// Quantizes the 32 × 16 values in x (element i of lane l's block in x[i][l]); x is overwritten.
inline void quantize_mxfp4_tile(const block_options& o, lanes_u32 (&x)[mx_length], mxfp4_tile& out) {
  if (o.source == formats::bf16) {
    for (auto& v : x) round_lanes_to_bf16(v);
  }
  if (o.rotation.points == 16) rotate_lanes(x, o.rotation.signs[0]);

  lanes_u32 amax{};
  for (const auto& v : x) {
    lanes_u32 u = v & fp32_magnitude_mask;
    if (o.policy.nan == block_policy::nan_rule::ignore) u = u > fp32_infinity_bits ? lanes_u32{} : u;
    amax = u > amax ? u : amax;
  }

  lanes_f32 inverse{};
  for (int l = 0; l < lane_count; ++l) {
    out.scales[l] = shared_scale(amax[l], formats::e2m1, o.rule, o.policy);
    // A NaN scale stores zero codes: a factor of 0 does that for finite values, the mask below for the others.
    inverse[l] = out.scales[l] == nan_scale_byte ? 0.0f : pow2_fp32(-scale_exponent(out.scales[l]));
  }
  const lanes_u32 keep = reinterpret_cast<lanes_u32>(inverse != 0.0f) & 0xFu;

  for (int w = 0; w < 4; ++w) {
    lanes_u32 word{};
    for (int i = 0; i < 8; ++i) {
      const lanes_u32 u = x[8 * w + i];
      // The product is exact, or so small that it rounds to zero either way.
      lanes_u32 code = reinterpret_cast<lanes_u32>(reinterpret_cast<lanes_f32>(u) * inverse);
      round_lanes_to_e2m1(code);
      word |= ((code | ((u >> 28) & 8u)) & keep) << (4 * i);
    }
    out.words[w] = word;
  }
}

/// Row-wise tile: lanes are rows r0.. (rows beyond the matrix repeat the last), elements are columns c0..c0 + 31.
inline void load_rows(matrix<const float> in, index_t r0, index_t c0, lanes_u32 (&x)[mx_length]) {
  for (int half = 0; half < 2; ++half) {
    lanes_u32 t[lane_count];
    for (int l = 0; l < lane_count; ++l) {
      const index_t r = r0 + l < in.extent(0) ? r0 + l : in.extent(0) - 1;
      __builtin_memcpy(&t[l], in.data + r * in.stride(0) + c0 + 16 * half, sizeof t[l]);
    }
    transpose_lanes(t);
    for (int i = 0; i < lane_count; ++i) x[16 * half + i] = t[i];
  }
}

/// Column-wise tile: lanes are columns c0.. (padded with zeros), elements are rows r0..r0 + 31.
inline void load_columns(matrix<const float> in, index_t r0, index_t c0, lanes_u32 (&x)[mx_length]) {
  const index_t lanes = in.extent(1) - c0 < lane_count ? in.extent(1) - c0 : lane_count;
  const auto row = [&](int i) { return in.data + (r0 + i) * in.stride(0) + c0; };
  if (lanes == lane_count) {
    for (int i = 0; i < mx_length; ++i) __builtin_memcpy(&x[i], row(i), sizeof x[i]);
    return;
  }
  for (int i = 0; i < mx_length; ++i) {
    x[i] = lanes_u32{};
    __builtin_memcpy(&x[i], row(i), static_cast<std::size_t>(lanes) * sizeof(float));
  }
}

/// Stores block `b` of output rows v0.. from a tile.
inline void store_tile(const mxfp4_tile& tile, block_matrix<std::uint8_t> out, index_t v0, index_t b) {
  const int lanes = static_cast<int>(out.rows - v0 < lane_count ? out.rows - v0 : lane_count);
  for (int l = 0; l < lanes; ++l) {
    const std::uint32_t words[4] = {tile.words[0][l], tile.words[1][l], tile.words[2][l], tile.words[3][l]};
    __builtin_memcpy(out.codes + (v0 + l) * out.code_stride + b * 16, words, sizeof words);
    out.scales[(v0 + l) * out.scale_stride + b] = tile.scales[l];
  }
}

/// Does the 16-lane path cover these arguments?
template <class T>
bool mxfp4_tiles_apply(block_format f, const block_options& o, matrix<T> source) {
  if (!std::is_same_v<std::remove_const_t<T>, float>) return false;
  const bool source_ok = o.source == formats::fp32 || o.source == formats::bf16;
  const bool rotation_ok = o.rotation.points == 0 || o.rotation.points == 16;
  return f == mxfp4 && o.rounding == rounding::nearest_even && source_ok && rotation_ok && source.stride(1) == 1;
}

}  // namespace detail

/// quantize_ref, blocked and threaded.
template <class T>
void quantize(block_format f, const block_options& o, matrix<T> source, block_axis axis, block_matrix<std::uint8_t> out,
              thread_pool& pool) {
  ROTOSCALE_ASSERT(quantize_is_defined(f, o, source, axis, out));
  if (axis == block_axis::row && detail::mxfp4_rows_apply(f, o, source)) {
    if constexpr (std::is_same_v<std::remove_const_t<T>, float> || std::is_same_v<std::remove_const_t<T>, bf16>) {
      detail::quantize_mxfp4_rows(o, source, out, pool);
    }
    return;
  }
  if (!detail::mxfp4_tiles_apply(f, o, source)) {
    pool.for_each(out.rows / f.rows, [&](index_t tile) { quantize_tile_ref(f, o, source, axis, out, tile); });
    return;
  }
  if constexpr (std::is_same_v<std::remove_const_t<T>, float>) {
    const index_t blocks = out.k / f.length;
    pool.for_each((out.rows + detail::lane_count - 1) / detail::lane_count, [&](index_t group) {
      const index_t v0 = group * detail::lane_count;
      for (index_t b = 0; b < blocks; ++b) {
        detail::lanes_u32 x[detail::mx_length];
        if (axis == block_axis::row) {
          detail::load_rows(source, v0, b * detail::mx_length, x);
        } else {
          detail::load_columns(source, b * detail::mx_length, v0, x);
        }
        detail::mxfp4_tile tile;
        detail::quantize_mxfp4_tile(o, x, tile);
        detail::store_tile(tile, out, v0, b);
      }
    });
  }
}

}  // namespace rotoscale
