// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Slope of a differentiable quantizer of E2M1 (DGE, arXiv:2501.17116), as AMD-AGI/ALTO clips it.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/math.hpp"

namespace rotoscale::nn {

/// min(3, (half / |x - middle|)^0.8 / 5) in the interval of E2M1 numbers that holds |x|, or in the last one beyond 6.
ROTOSCALE_HD inline float dge_slope(float x) {
  const float size = fp32_from_bits(fp32_bits(x) & fp32_magnitude_mask);
  float half = 0.25f, middle = 0.25f;
  if (size > 4.0f) {
    half = 1.0f, middle = 5.0f;
  } else if (size > 2.0f) {
    half = 0.5f, middle = size > 3.0f ? 3.5f : 2.5f;
  } else {
    middle = size > 1.5f ? 1.75f : size > 1.0f ? 1.25f : size > 0.5f ? 0.75f : 0.25f;
  }
  const float from = fp32_from_bits(fp32_bits(size - middle) & fp32_magnitude_mask);
  const float slope = 0.2f * exp(fma(0.8f, log(half / from), 0.0f));
  return slope < 3.0f ? slope : 3.0f;
}

/// Inverse of a block's scale times the operand's factor: scales an element to E2M1's range.
ROTOSCALE_HD inline float element_factor(const format& scale, std::uint8_t code, float factor) {
  const float divisor = scale_value(scale, code) * factor;
  return divisor > 0x1p-128f ? 1.0f / divisor : 0x1.FFFFFEp127f;
}

}  // namespace rotoscale::nn
