// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The choice between 4/6's two scales in the tile kernel: errors of 16 elements per thread, in the definition's order
// (choose_four_over_six of quantize_ref.hpp).
#pragma once

#include "gpu/quantize/made_options.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace rotoscale::gpu {

/// A magnitude rounded to E2M1, nearest even, saturating.
__device__ inline float nearest_e2m1(float m) {
  const float shift = m < 2.0f ? 0x1p22f : m < 4.0f ? 0x1p23f : 0x1p24f;  // last places of .5, 1 and 2
  const float rounded = (m + shift) - shift;
  return rounded < 6.0f ? rounded : 6.0f;
}

/// Sum of squared errors of 16 elements of one vector under the scale with this byte, `multiplier` its scale_inverse.
__device__ inline float error_of_sixteen(const float (&x)[16], std::uint32_t byte, float multiplier, float encode) {
  const float scale = fp8_value(true, byte);
  const auto error = [&](float v) {
    const float m = fp32_from_bits(fp32_bits(v) & fp32_magnitude_mask);  // the sign changes no square
    return __builtin_fmaf(-m, encode, nearest_e2m1(rounded_product(m, multiplier)) * scale);
  };
  float sum[8];
  ROTOSCALE_UNROLL
  for (int i = 0; i < 8; ++i) sum[i] = pair_error(error(x[2 * i]), error(x[2 * i + 1]));
  ROTOSCALE_UNROLL
  for (int n = 4; n > 0; n /= 2) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < n; ++i) sum[i] = sum[2 * i] + sum[2 * i + 1];
  }
  return sum[0];
}

}  // namespace rotoscale::gpu
