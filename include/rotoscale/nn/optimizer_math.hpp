// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The optimizer's arithmetic on one element, and the factors from the norm of all gradients. The CPU and every device's
// kernels share it.
#pragma once

#include "rotoscale/nn/math.hpp"
#include "rotoscale/nn/step_state.hpp"

namespace rotoscale::nn {

/// Elements of a chunk of the sum of squares. A parameter begins at a multiple of it, so a chunk has one parameter.
inline constexpr index_t parameter_alignment = 4096;

/// Neither NaN nor Inf.
ROTOSCALE_HD constexpr bool is_finite(double x) { return (bit_cast<std::uint64_t>(x) >> 52 & 0x7FFu) != 0x7FFu; }
/// The same.
ROTOSCALE_HD constexpr bool is_finite(float x) { return (fp32_bits(x) & fp32_infinity_bits) != fp32_infinity_bits; }

/// Norm and clip factor from the state's squares, as PyTorch's clip_grad_norm_.
ROTOSCALE_HD inline void set_norm(const optimizer_config& config, step_state& state) {
  state.gradient_norm = sqrt(state.squares);
  const double share = config.clip / (state.gradient_norm + 1e-6);
  state.clip_factor = config.clip > 0 ? static_cast<float>(share < 1.0 ? share : 1.0) : 1.0f;
}

/// 1 / valid tokens; 0 where there are none.
ROTOSCALE_HD inline float gradient_scale_of(std::int64_t valid_tokens) {
  return valid_tokens == 0 ? 0.0f : static_cast<float>(1.0 / static_cast<double>(valid_tokens));
}

/// May parameters change?
ROTOSCALE_HD inline bool may_update(const step_state& state) {
  return is_finite(state.squares) && is_finite(state.loss_sum);
}

/// Decay of a moving average of weights in update `step`, from 0. It grows as step / (step + 9), so that the average
/// needs no initial value (TensorFlow's ExponentialMovingAverage, one update later).
ROTOSCALE_HD inline float average_decay(const optimizer_config& c, std::uint64_t step) {
  const float growing = static_cast<float>(step) / static_cast<float>(step + 9);
  return growing < c.average_decay ? growing : c.average_decay;
}

/// Coefficients of one AdamW step for every element of a parameter.
struct adamw_step {
  float keep;     ///< of the weight
  float step;     ///< learning rate over the first moment's bias correction
  float root;     ///< 1 / root of the second's
  float new1;     ///< 1 - beta1
  float new2;     ///< 1 - beta2
  float beta2;    ///< as configured
  float epsilon;  ///< as configured
  float scale;    ///< of the gradient
  float average;  ///< decay of the weights' moving average in this step

  /// Coefficients for a parameter with or without decay.
  ROTOSCALE_HD adamw_step(const optimizer_config& c, const step_state& s, bool decays)
      : keep(fma(-s.inputs.learning_rate, decays ? c.weight_decay : 0.0f, 1.0f)),
        step(s.inputs.learning_rate / s.inputs.bias_correction1),
        root(1.0f / sqrt(s.inputs.bias_correction2)),
        new1(1.0f - c.beta1),
        new2(1.0f - c.beta2),
        beta2(c.beta2),
        epsilon(c.epsilon),
        scale(s.clip_factor),
        average(average_decay(c, s.inputs.step)) {}

  /// One element.
  [[gnu::always_inline]] ROTOSCALE_HD void apply(float& weight, float gradient, float& m, float& v) const {
    const float g = gradient * scale;
    m = fma(new1, fma(gradient, scale, -m), m);
    v = fma(new2 * g, g, beta2 * v);
    const float denominator = fma(sqrt(v), root, epsilon);
    weight = fma(-step, m / denominator, weight * keep);
  }
  /// The moving average after the update of `weight`.
  ROTOSCALE_HD float averaged(float weight, float before) const { return fma(average, before - weight, weight); }
};

}  // namespace rotoscale::nn
