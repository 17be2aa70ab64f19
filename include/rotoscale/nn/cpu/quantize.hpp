// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizes GEMM operands on the CPU by a recipe: FP32 and BF16 copies, per-tensor FP8 with delayed scaling, MX blocks.
// Every format but fp32 rounds its source to BF16 first, because training stores BF16.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "rotoscale/nn/cpu/storage.hpp"
#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/nn/operations.hpp"
#include "rotoscale/parallel.hpp"
#include "rotoscale/quantize.hpp"

namespace rotoscale::nn::cpu {

namespace detail {

/// encode(f, x, nearest_even, saturate), branch-free.
template <format F>
inline std::uint32_t fp8_bits(float x) {
  std::uint32_t u = fp32_bits(x);
  rotoscale::detail::fast_encode<F>(u);
  return u;
}

/// Converts n <= 64 contiguous numbers. Two loops of one lane width each: compilers vectorise those best.
template <class Code, class T, class Convert>
inline void convert_strip(const T* from, index_t n, const Convert& convert, Code* to) {
  decltype(convert(0.0f)) wide[64];
  if (n == 64) {
    for (int i = 0; i < 64; ++i) wide[i] = convert(load_element(from[i]));
    for (int i = 0; i < 64; ++i) to[i] = static_cast<Code>(wide[i]);
  } else {
    for (index_t i = 0; i < n; ++i) to[i] = static_cast<Code>(convert(load_element(from[i])));
  }
}

/// to[r][c] = convert(source[r][c]), dense.
template <class Code, class T, class Convert>
void convert_matrix(matrix<T> source, std::uint8_t* to, const Convert& convert, thread_pool& pool) {
  constexpr index_t strip = 64;
  const index_t cols = source.extent(1);
  for_each_chunk(pool, source.extent(0), strip, [&](index_t first, index_t last) {
    for (index_t r = first; r < last; ++r) {
      Code* row = reinterpret_cast<Code*>(to) + r * cols;
      for (index_t c = 0; c < cols; c += strip) {
        convert_strip(&source(r, c), std::min(strip, cols - c), convert, row + c);
      }
    }
  });
}

/// Largest finite magnitude after rounding to BF16; NaN and Inf are left out.
template <class T>
float finite_amax(matrix<T> x, thread_pool& pool) {
  std::atomic<std::uint32_t> most{0};
  for_each_chunk(pool, x.extent(0), 64, [&](index_t first, index_t last) {
    std::uint32_t largest = 0;
    for (index_t r = first; r < last; ++r) {
      const T* row = &x(r, 0);
      for (index_t c = 0; c < x.extent(1); ++c) {
        const std::uint32_t u = (bf16_bits(load_element(row[c])) << 16) & fp32_magnitude_mask;
        const std::uint32_t finite = u < fp32_infinity_bits ? u : 0;
        largest = finite > largest ? finite : largest;
      }
    }
    // Bits of non-negative numbers compare like the numbers. A maximum does not depend on the order.
    std::uint32_t before = most.load(std::memory_order_relaxed);
    while (before < largest && !most.compare_exchange_weak(before, largest, std::memory_order_relaxed)) {
    }
  });
  return fp32_from_bits(most.load());
}

}  // namespace detail

/// E4M3 or E5M2 of the source's BF16 value times `scale`, in the source's order; words are numbered along its rows.
template <class T>
void quantize_fp8(matrix<T> source, const form_options& form, float scale, std::uint8_t* codes, thread_pool& pool) {
  const format f = element_format(form.recipe.format);
  const auto stored = [scale](float x) { return fp32_from_bits(detail::bf16_bits(x) << 16) * scale; };
  if (form.recipe.rounding != rounding::nearest_even) {
    const index_t cols = source.extent(1);
    pool.for_each(source.extent(0), [&](index_t r) {
      for (index_t c = 0; c < cols; ++c) {
        const index_t at = r * cols + c;
        const std::uint32_t random =
            form.recipe.rounding == rounding::stochastic ? form.random.word(static_cast<std::uint64_t>(at)) : 0;
        codes[at] = static_cast<std::uint8_t>(
            encode(f, stored(load_element(source(r, c))), form.recipe.rounding, overflow::saturate, random));
      }
    });
  } else if (f == formats::e4m3) {
    detail::convert_matrix<std::uint8_t>(
        source, codes, [stored](float x) { return detail::fp8_bits<formats::e4m3>(stored(x)); }, pool);
  } else {
    detail::convert_matrix<std::uint8_t>(
        source, codes, [stored](float x) { return detail::fp8_bits<formats::e5m2>(stored(x)); }, pool);
  }
}

/// Transformer Engine's rule. The recorded amax enters the history. The scale becomes (largest / amax) / 2^margin, at
/// most FLT_MAX. It stays if amax is 0 or not finite.
inline void compute(const op::update_scales::in& i, const op::update_scales::out& o, thread_pool&) {
  const scaling_state& s = o.state;
  for (index_t t = 0; t < s.count; ++t) {
    float* history = s.history + t * s.history_length;
    std::copy_backward(history, history + s.history_length - 1, history + s.history_length);
    history[0] = s.amax[t];
    s.amax[t] = 0.0f;
    float amax = history[0];
    if (i.rule.algorithm == amax_algorithm::max) {
      for (int entry = 1; entry < s.history_length; ++entry) amax = std::fmax(amax, history[entry]);
    }
    if (!(amax > 0.0f) || !std::isfinite(amax)) continue;
    const float scale = s.largest[t] / amax * pow2_fp32(-i.rule.margin);
    s.scale[t] = std::isfinite(scale) ? scale : std::numeric_limits<float>::max();
    s.scale_inverse[t] = 1.0f / s.scale[t];
  }
}

}  // namespace rotoscale::nn::cpu
