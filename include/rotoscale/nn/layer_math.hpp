// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the layers do to one element, and what follows from a row's sum: the formulas of docs/reference/layers.md, once, for the
// CPU's loops and every device's kernels. Always inline: loops over rows become vector code only then.
#pragma once

#include "rotoscale/nn/math.hpp"

namespace rotoscale::nn {

/// Rows whose terms of a norm's gain gradient form one chain.
inline constexpr index_t gain_chunk = 64;
/// Logits of a row whose exponentials share a maximum and a sum.
inline constexpr index_t softmax_chunk = 4096;

/// Two results of one element.
struct float_pair {
  float first;   ///< gate, or lower half
  float second;  ///< up, or upper half
};

/// 1 / sqrt(mean square + eps) of a row of d elements.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_reciprocal(float squares, index_t d, float eps) {
  const float mean = squares / static_cast<float>(d);
  return 1.0f / sqrt(mean + eps);
}
/// An element of the norm.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_normed(float x, float rstd, float gain) { return x * rstd * gain; }
/// What the backward pass adds to dx for each unit of x; dot = Σ gain dy x.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_pull(float dot, index_t d, float rstd) {
  return -(dot / static_cast<float>(d)) * rstd * rstd * rstd;
}
/// dx with the norm's gradient added.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_gradient(float x, float pull, float gain, float dy, float rstd,
                                                              float dx) {
  return fma(x, pull, fma(gain * dy, rstd, dx));
}

/// The pair (low, high) of a head rotated by an angle.
[[gnu::always_inline]] ROTOSCALE_HD inline float_pair rotate(float low, float high, float cosine, float sine) {
  return {fma(low, cosine, -(high * sine)), fma(high, cosine, low * sine)};
}

/// 1 / (1 + e^-x).
[[gnu::always_inline]] ROTOSCALE_HD inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
/// Up to this |x|, e^x, 1 + e^x and its reciprocal are normal numbers.
inline constexpr float sigmoid_normal_limit = 87.0f;
/// silu(gate) * up, where s = sigmoid(gate) is known.
[[gnu::always_inline]] ROTOSCALE_HD inline float swiglu(float gate, float up, float s) { return gate * s * up; }
/// silu(gate) * up.
[[gnu::always_inline]] ROTOSCALE_HD inline float swiglu(float gate, float up) { return swiglu(gate, up, sigmoid(gate)); }
/// Gradients of gate and up, where s = sigmoid(gate) is known; silu'(g) = s (1 + g (1 - s)).
[[gnu::always_inline]] ROTOSCALE_HD inline float_pair swiglu_gradients(float dh, float gate, float up, float s) {
  const float slope = s * fma(gate, 1.0f - s, 1.0f);
  return {dh * up * slope, dh * gate * s};
}
/// Gradients of gate and up.
[[gnu::always_inline]] ROTOSCALE_HD inline float_pair swiglu_gradients(float dh, float gate, float up) {
  return swiglu_gradients(dh, gate, up, sigmoid(gate));
}

/// An element of dropout.
[[gnu::always_inline]] ROTOSCALE_HD inline float dropped(float x, float factor, bool kept) {
  return kept ? x * factor : 0.0f;
}
/// An element of dropout, added to y.
[[gnu::always_inline]] ROTOSCALE_HD inline float dropped_onto(float x, float factor, bool kept, float y) {
  return kept ? fma(x, factor, y) : y;
}

/// A chunk's maximum as its exponentials take it: a chunk of nothing but -Inf has a sum of 0.
[[gnu::always_inline]] ROTOSCALE_HD inline float softmax_shift(float largest) {
  return fp32_bits(largest) == (fp32_infinity_bits | fp32_sign_mask) ? 0.0f : largest;
}

}  // namespace rotoscale::nn
