// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The layers' arithmetic on one element and on a row's sum. The CPU's loops and every device's kernels share these
// formulas of docs/reference/layers.md. Always inline: loops over rows become vector code only then.
#pragma once

#include "rotoscale/nn/math.hpp"

namespace rotoscale::nn {

/// Rows whose terms of the gradient of a gain or bias form one chain.
inline constexpr index_t gain_chunk = 64;
/// Logits of a row whose exponentials share a maximum and a sum.
inline constexpr index_t softmax_chunk = 4096;

/// Two results of one element.
struct float_pair {
  float first;   ///< of the gate, or lower half
  float second;  ///< of up, or upper half
};

/// 1 / sqrt(mean square + eps) of a row of d elements.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_reciprocal(float squares, index_t d, float eps) {
  const float mean = squares / static_cast<float>(d);
  return 1.0f / sqrt(mean + eps);
}
/// An element of the norm.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_normed(float x, float rstd, float gain) { return x * rstd * gain; }
/// Addend of the backward pass to dx for each unit of x; dot = Σ gain dy x.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_pull(float dot, index_t d, float rstd) {
  return -(dot / static_cast<float>(d)) * rstd * rstd * rstd;
}
/// dx with the norm's gradient added.
[[gnu::always_inline]] ROTOSCALE_HD inline float rms_gradient(float x, float pull, float gain, float dy, float rstd,
                                                              float dx) {
  return fma(x, pull, fma(gain * dy, rstd, dx));
}

/// An element of LayerNorm before gain and bias.
[[gnu::always_inline]] ROTOSCALE_HD inline float layer_unit(float x, float mean, float rstd) {
  return (x - mean) * rstd;
}
/// An element of LayerNorm.
[[gnu::always_inline]] ROTOSCALE_HD inline float layer_normed(float x, float mean, float rstd, float gain, float bias) {
  return fma(layer_unit(x, mean, rstd), gain, bias);
}
/// dx with the gradient of LayerNorm added. `unit`: layer_unit of x; pulled: mean of gain dy; `pull`: mean of gain dy
/// unit.
[[gnu::always_inline]] ROTOSCALE_HD inline float layer_gradient(float unit, float pulled, float pull, float gain,
                                                                float dy, float rstd, float dx) {
  return fma(fma(-unit, pull, fma(gain, dy, -pulled)), rstd, dx);
}

/// The pair (low, high) of a head rotated by an angle.
[[gnu::always_inline]] ROTOSCALE_HD inline float_pair rotate(float low, float high, float cosine, float sine) {
  return {fma(low, cosine, -(high * sine)), fma(high, cosine, low * sine)};
}

/// 1 / (1 + e^-x).
[[gnu::always_inline]] ROTOSCALE_HD inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
/// Up to this |x|, e^x, 1 + e^x and its reciprocal are normal numbers.
inline constexpr float sigmoid_normal_limit = 87.0f;

/// Calls X(name) for each activation of an MLP.
#define ROTOSCALE_ACTIVATIONS(X) X(swiglu) X(gelu_tanh)
#define ROTOSCALE_NAME(name) name,
/// An activation of an MLP.
enum class activation : std::uint8_t { ROTOSCALE_ACTIVATIONS(ROTOSCALE_NAME) };
#undef ROTOSCALE_NAME

/// Arithmetic of an activation:
///   gated            It has two inputs, x (the gate) and up. Otherwise `up` is not used.
///   contract         Defined in docs/reference/layers.md.
///   forward_name     In digests.
///   backward_name    In digests.
///   sigmoid_input    `value` and `gradients` take its sigmoid `s`.
///   value            Returns h.
///   gradients        Gradients of x and up from dh.
template <activation>
struct activation_math;

/// h = silu(x) * up.
template <>
struct activation_math<activation::swiglu> {
  static constexpr bool gated = true;                          ///< takes `up`
  static constexpr const char* contract = "swiglu-fp32-exp7";  ///< in layers.md
  static constexpr const char* forward_name = "swiglu_forward";    ///< in digests
  static constexpr const char* backward_name = "swiglu_backward";  ///< in digests
  /// Input of the sigmoid `s`.
  [[gnu::always_inline]] ROTOSCALE_HD static float sigmoid_input(float x) { return x; }
  /// h.
  [[gnu::always_inline]] ROTOSCALE_HD static float value(float x, float up, float s) { return x * s * up; }
  /// silu'(x) = s (1 + x (1 - s)).
  [[gnu::always_inline]] ROTOSCALE_HD static float_pair gradients(float dh, float x, float up, float s) {
    const float slope = s * fma(x, 1.0f - s, 1.0f);
    return {dh * up * slope, dh * x * s};
  }
};

/// h = x (1 + tanh(u)) / 2 = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x³): "gelu_new".
template <>
struct activation_math<activation::gelu_tanh> {
  static constexpr bool gated = false;                            ///< takes `up`
  static constexpr const char* contract = "gelu-tanh-fp32-exp7";  ///< in layers.md
  static constexpr const char* forward_name = "gelu_tanh_forward";    ///< in digests
  static constexpr const char* backward_name = "gelu_tanh_backward";  ///< in digests
  static constexpr float linear = 0x1.988454p+0f;   ///< 2 sqrt(2 / pi)
  static constexpr float cubic = 0x1.2444f2p-4f;    ///< 0.044715 of it
  static constexpr float cubic_3 = 0x1.b6676cp-3f;  ///< 3 times that
  /// x², at most 2^40: its product with a slope of 0 is 0.
  [[gnu::always_inline]] ROTOSCALE_HD static float square(float x) { return x * x < 0x1p40f ? x * x : 0x1p40f; }
  /// Input of the sigmoid `s`.
  [[gnu::always_inline]] ROTOSCALE_HD static float sigmoid_input(float x) { return x * fma(square(x), cubic, linear); }
  /// h.
  [[gnu::always_inline]] ROTOSCALE_HD static float value(float x, float, float s) { return x * s; }
  /// s + x s (1 - s) 2 u'.
  [[gnu::always_inline]] ROTOSCALE_HD static float_pair gradients(float dh, float x, float, float s) {
    return {dh * fma(x * (s * (1.0f - s)), fma(square(x), cubic_3, linear), s), 0.0f};
  }
};

/// Returns body(activation_math<which>{}).
template <class Body>
decltype(auto) with_activation(activation which, const Body& body) {
  switch (which) {
#define ROTOSCALE_CASE(name) \
  case activation::name: return body(activation_math<activation::name>{});
    ROTOSCALE_ACTIVATIONS(ROTOSCALE_CASE)
#undef ROTOSCALE_CASE
  }
  __builtin_unreachable();
}
/// Name of the forward operation in digests.
inline const char* forward_name(activation which) {
  return with_activation(which, [](auto a) { return decltype(a)::forward_name; });
}
/// Name of the backward operation in digests.
inline const char* backward_name(activation which) {
  return with_activation(which, [](auto a) { return decltype(a)::backward_name; });
}
/// Columns of an activation's input for each column of h.
inline index_t inputs_of(activation which) {
  return with_activation(which, [](auto a) { return index_t{decltype(a)::gated ? 2 : 1}; });
}

/// An element of dropout.
[[gnu::always_inline]] ROTOSCALE_HD inline float dropped(float x, float factor, bool kept) {
  return kept ? x * factor : 0.0f;
}
/// An element of dropout, added to y.
[[gnu::always_inline]] ROTOSCALE_HD inline float dropped_onto(float x, float factor, bool kept, float y) {
  return kept ? fma(x, factor, y) : y;
}

/// A chunk's maximum for its exponentials: a chunk of only -Inf has a sum of 0.
[[gnu::always_inline]] ROTOSCALE_HD inline float softmax_shift(float largest) {
  return fp32_bits(largest) == (fp32_infinity_bits | fp32_sign_mask) ? 0.0f : largest;
}

}  // namespace rotoscale::nn
