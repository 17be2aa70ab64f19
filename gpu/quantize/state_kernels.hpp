// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels of gpu/api/quantize_state.hpp.
#pragma once

#include "gpu/api/quantize_state.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/math.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/nn/gradient_estimator.hpp"
#include "rotoscale/nn/kept_values.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned state_threads = 256, state_subgroups = state_threads / subgroup_lanes;

/// One thread block per tensor:
/// 1. shift the history by one entry, from its end, so that no entry is overwritten before it is read; take its maximum
/// 2. select amax by the rule, and reset the recorded one
/// 3. compute scale and inverse; both stay if amax is zero or not finite
[[maybe_unused]] static __global__ void __launch_bounds__(state_threads)
    update_scales_kernel(const nn::scaling_state s, const nn::delayed_scaling rule) {
  struct maxima {
    float of[state_subgroups];
  };
  const index_t t = block_index().x;
  const int length = s.history_length, thread = static_cast<int>(thread_index().x);
  float* const history = s.history + t * length;
  constexpr int step = static_cast<int>(state_threads);
  float most = 0.0f;
  for (int first = (length - 1) / step * step; first >= 0; first -= step) {
    const int i = first + thread;
    const float x = i >= length ? 0.0f : i == 0 ? s.amax[t] : history[i - 1];
    block_barrier();
    if (i < length) history[i] = x;
    most = larger_number(most, x);
  }
  most = subgroup_reduce(most, larger_number);
  maxima& shared = block_shared<maxima>();
  if (thread % subgroup_lanes == 0) shared.of[thread / subgroup_lanes] = most;
  block_barrier();
  if (thread != 0) return;
  float amax = history[0];
  if (rule.algorithm == nn::amax_algorithm::max) {
    for (unsigned i = 0; i < state_subgroups; ++i) amax = larger_number(amax, shared.of[i]);
  }
  s.amax[t] = 0.0f;
  if (!(amax > 0.0f) || !(fp32_bits(amax) < fp32_infinity_bits)) return;
  const float scale = s.largest[t] / amax * pow2_fp32(-rule.margin);
  s.scale[t] = (fp32_bits(scale) & fp32_magnitude_mask) < fp32_infinity_bits ? scale : fp32_from_bits(0x7F7FFFFFu);
  s.scale_inverse[t] = 1.0f / s.scale[t];
}

/// One thread.
[[maybe_unused]] static __global__ void __launch_bounds__(1)
    current_scale_kernel(const float* amax, const float largest, float* scale, float* scale_inverse) {
  const float made = nn::current_fp8_scale(largest, *amax);
  *scale = made;
  *scale_inverse = 1.0f / made;
}

struct round_arguments {
  const float* from;
  index_t stride, rows, columns;
  std::uint16_t* to;
  bool vectors;  ///< four elements at a time
};

/// Four elements per thread and step.
[[maybe_unused]] static __global__ void __launch_bounds__(state_threads) round_bf16_kernel(const round_arguments a) {
  const index_t across = (a.columns + 3) / 4, groups = a.rows * across;
  for (index_t i = index_t{block_index().x} * state_threads + thread_index().x; i < groups;
       i += index_t{grid_size().x} * state_threads) {
    const index_t row = i / across, column = i % across * 4;
    const float* const from = a.from + row * a.stride + column;
    std::uint16_t* const to = a.to + row * a.columns + column;
    if (a.vectors) {
      const vec16 x = load_streaming(from);
      std::uint32_t y[4];
      ROTOSCALE_UNROLL
      for (int j = 0; j < 4; ++j) y[j] = canonical_bf16(fp32_from_bits(x.word[j]));
      store_streaming8(to, y[0] | y[1] << 16, y[2] | y[3] << 16);
      continue;
    }
    for (index_t j = 0; j < 4 && column + j < a.columns; ++j) {
      to[j] = static_cast<std::uint16_t>(canonical_bf16(from[j]));
    }
  }
}

struct estimate_arguments {
  format scale;
  index_t rows = 0, k = 0, block_rows = 0, block = 0, scale_stride = 0;
  const std::uint8_t* scales = nullptr;
  const float *factor = nullptr, *values = nullptr;  ///< null factor: 1
  float* gradient = nullptr;
};

/// One thread per element and step.
[[maybe_unused]] static __global__ void __launch_bounds__(state_threads)
    estimate_gradient_kernel(const estimate_arguments a) {
  const float factor = a.factor != nullptr ? *a.factor : 1.0f;
  for (index_t i = index_t{block_index().x} * state_threads + thread_index().x; i < a.rows * a.k;
       i += index_t{grid_size().x} * state_threads) {
    const std::uint8_t scale = a.scales[i / a.k / a.block_rows * a.scale_stride + i % a.k / a.block];
    const float x = fp32_from_bits(canonical_bf16(a.values[i]) << 16) * nn::element_factor(a.scale, scale, factor);
    a.gradient[i] *= nn::dge_slope(x);
  }
}

}  // namespace rotoscale::gpu
