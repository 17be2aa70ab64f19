// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The last step of an output element as every GEMM kernel of gpu/ does it.
#pragma once

#include "gpu/gemm_arguments.hpp"
#include "gpu/hip.hpp"

namespace rotoscale::gpu {

/// alpha * acc, C and bias, rounded and written.
__device__ inline void store_output(const gemm_arguments& p, float acc, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  std::uint16_t* narrow = static_cast<std::uint16_t*>(p.out) + at;
  float* wide = static_cast<float*>(p.out) + at;
  float old = 0.0f;
  if (p.accumulate) old = p.bf16_out ? fp32_from_bits(static_cast<std::uint32_t>(*narrow) << 16) : *wide;
  const float bias = p.bias != nullptr ? p.bias[column] : 0.0f;
  const float x = finish_value(acc, p.alpha, p.accumulate, p.beta, old, p.bias != nullptr, bias, p.nan_bits);
  if (p.bf16_out) {
    *narrow = static_cast<std::uint16_t>(bf16_bits(x));
  } else {
    *wide = x;
  }
}

}  // namespace rotoscale::gpu
