// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizing GEMM operands on the CPU as a recipe says: FP32 and BF16 copies, per-tensor FP8 with delayed scaling, MX
// blocks. Every format but fp32 sees its source rounded to BF16 first, since that is what a training run stores.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rotoscale/nn/backend.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale::nn::cpu {

namespace detail {

/// BF16 bits of an FP32 value, nearest even, NaN canonical with its sign: round_to(formats::bf16, ·), branch-free.
inline std::uint32_t bf16_bits(float x) {
  std::uint32_t u = fp32_bits(x);
  rotoscale::detail::round_to_bf16(u);
  return u >> 16;
}

/// encode(f, x, nearest_even, saturate), branch-free.
template <format F>
inline std::uint32_t fp8_bits(float x) {
  std::uint32_t u = fp32_bits(x);
  rotoscale::detail::fast_encode<F>(u);
  return u;
}

/// Converts n <= 64 contiguous numbers. Two loops of one lane width each: compilers vectorise those best.
template <class Code, class Convert>
inline void convert_strip(const float* from, index_t n, const Convert& convert, Code* to) {
  decltype(convert(0.0f)) wide[64];
  if (n == 64) {
    for (int i = 0; i < 64; ++i) wide[i] = convert(from[i]);
    for (int i = 0; i < 64; ++i) to[i] = static_cast<Code>(wide[i]);
  } else {
    for (index_t i = 0; i < n; ++i) to[i] = static_cast<Code>(convert(from[i]));
  }
}

/// Writes out[r][c] = convert(source element) for every row of `out`, c along the blocks' axis. The transposed case
/// goes in square tiles, so that both sides are touched a cache line at a time.
template <class Code, class Convert>
void convert_matrix(matrix<const float> source, block_axis axis, const block_matrix<std::uint8_t>& out,
                    const Convert& convert, thread_pool& pool) {
  constexpr index_t strip = 64;
  const auto row = [&](index_t r) { return reinterpret_cast<Code*>(out.codes + r * out.code_stride); };
  for_each_chunk(pool, out.rows, strip, [&](index_t first, index_t last) {
    if (axis == block_axis::row) {
      for (index_t r = first; r < last; ++r) {
        for (index_t c = 0; c < out.k; c += strip) {
          convert_strip(&source(r, c), std::min(strip, out.k - c), convert, row(r) + c);
        }
      }
      return;
    }
    for (index_t c0 = 0; c0 < out.k; c0 += strip) {
      const index_t depth = std::min(strip, out.k - c0);
      Code tile[strip][strip];
      for (index_t c = 0; c < depth; ++c) convert_strip(&source(c0 + c, first), last - first, convert, tile[c]);
      for (index_t r = first; r < last; ++r) {
        Code* to = row(r) + c0;
        for (index_t c = 0; c < depth; ++c) to[c] = tile[c][r - first];
      }
    }
  });
}

/// Largest finite magnitude after rounding to BF16; NaN and Inf are left out.
inline float finite_amax(matrix<const float> x, thread_pool& pool) {
  constexpr index_t rows = 64;
  std::vector<std::uint32_t> partial(static_cast<std::size_t>((x.extent(0) + rows - 1) / rows));
  for_each_chunk(pool, x.extent(0), rows, [&](index_t first, index_t last) {
    std::uint32_t largest = 0;
    for (index_t r = first; r < last; ++r) {
      const float* row = &x(r, 0);
      for (index_t c = 0; c < x.extent(1); ++c) {
        const std::uint32_t u = (bf16_bits(row[c]) << 16) & fp32_magnitude_mask;
        const std::uint32_t finite = u < fp32_infinity_bits ? u : 0;
        largest = finite > largest ? finite : largest;
      }
    }
    partial[static_cast<std::size_t>(first / rows)] = largest;
  });
  std::uint32_t largest = 0;
  for (const std::uint32_t u : partial) largest = u > largest ? u : largest;
  return fp32_from_bits(largest);
}

}  // namespace detail

inline block_options options_of(const quantize_args& args) {
  block_options o;
  o.source = formats::bf16;
  o.rotation = {args.recipe.rotation == rotation_kind::none ? 0 : 16, {args.signs}};
  o.rule = args.recipe.rule;
  o.policy = policy_of(args.recipe.policy);
  o.rounding = args.recipe.rounding;
  o.random = args.random;
  return o;
}

inline void quantize_fp8(matrix<const float> source, const quantize_args& args, const block_matrix<std::uint8_t>& out,
                         float* out_factor, thread_pool& pool) {
  const format f = element_format(args.recipe.format);
  const float scale = args.scale ? *args.scale : 1.0f;
  *out_factor = args.scale_inverse ? *args.scale_inverse : 1.0f;
  if (args.amax) *args.amax = std::fmax(*args.amax, detail::finite_amax(source, pool));
  const auto stored = [scale](float x) { return fp32_from_bits(detail::bf16_bits(x) << 16) * scale; };
  if (args.recipe.rounding != rounding::nearest_even) {
    // Words are numbered along the source's rows, whichever way the result lies.
    const auto word = [&](index_t r, index_t c) {
      const index_t at = args.axis == block_axis::row ? r * out.k + c : c * out.rows + r;
      return args.random.word(static_cast<std::uint64_t>(at));
    };
    const matrix<const float> in = args.axis == block_axis::row ? source : transposed(source);
    pool.for_each(out.rows, [&](index_t r) {
      std::uint8_t* to = out.codes + r * out.code_stride;
      for (index_t c = 0; c < out.k; ++c) {
        const std::uint32_t random = args.recipe.rounding == rounding::stochastic ? word(r, c) : 0;
        to[c] =
            static_cast<std::uint8_t>(encode(f, stored(in(r, c)), args.recipe.rounding, overflow::saturate, random));
      }
    });
  } else if (f == formats::e4m3) {
    detail::convert_matrix<std::uint8_t>(
        source, args.axis, out, [stored](float x) { return detail::fp8_bits<formats::e4m3>(stored(x)); }, pool);
  } else {
    detail::convert_matrix<std::uint8_t>(
        source, args.axis, out, [stored](float x) { return detail::fp8_bits<formats::e5m2>(stored(x)); }, pool);
  }
}

/// Fills the memory that `out` describes from `source`; only MX formats have scales.
inline void quantize_operand(matrix<const float> source, const quantize_args& args,
                             const block_matrix<std::uint8_t>& out, float* out_factor, thread_pool& pool) {
  ROTOSCALE_ASSERT(source.stride(1) == 1);
  switch (args.recipe.format) {
    case number_format::fp32:
      detail::convert_matrix<float>(
          source, args.axis, out, [](float x) { return x; }, pool);
      return;
    case number_format::bf16:
      detail::convert_matrix<std::uint16_t>(
          source, args.axis, out, [](float x) { return detail::bf16_bits(x); }, pool);
      return;
    case number_format::fp8_e4m3:
    case number_format::fp8_e5m2: quantize_fp8(source, args, out, out_factor, pool); return;
    case number_format::mxfp4:
    case number_format::mxfp8_e4m3:
    case number_format::mxfp8_e5m2: break;
  }
  rotoscale::quantize(block_format_of(args.recipe.format), options_of(args), source, args.axis, out, pool);
}

/// Transformer Engine's rule. The recorded amax enters the history; the scale becomes (largest / amax) / 2^margin, kept
/// where amax is 0 or not finite, at most FLT_MAX.
inline void update_scales(const scaling_state& s, const delayed_scaling& rule) {
  for (index_t t = 0; t < s.count; ++t) {
    float* history = s.history + t * s.history_length;
    for (int i = s.history_length - 1; i > 0; --i) history[i] = history[i - 1];
    history[0] = s.amax[t];
    s.amax[t] = 0.0f;
    float amax = history[0];
    if (rule.algorithm == amax_algorithm::max) {
      for (int i = 1; i < s.history_length; ++i) amax = std::fmax(amax, history[i]);
    }
    if (!(amax > 0.0f) || !std::isfinite(amax)) continue;
    const float scale = s.largest[t] / amax * pow2_fp32(-rule.margin);
    s.scale[t] = std::isfinite(scale) ? scale : std::numeric_limits<float>::max();
    s.scale_inverse[t] = 1.0f / s.scale[t];
  }
}

}  // namespace rotoscale::nn::cpu
