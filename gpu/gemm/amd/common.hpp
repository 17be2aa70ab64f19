// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What AMD's GEMM kernels share: they multiply rows of B by rows of A, so a lane holds four neighbouring columns of a
// row of C.
#pragma once

#include "gpu/dialect/amd_matrix.hpp"
#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/output.hpp"

namespace rotoscale::gpu::amd {

/// Four columns as BF16 (rows of whole 8 bytes, no C, no bias).
__device__ inline void store_four(const gemm_arguments& p, float4 acc, int row, int column) {
  std::uint32_t bits[4];
  ROTOSCALE_UNROLL
  for (int e = 0; e < 4; ++e) {
    const gemm_epilogue finish{.factor = p.alpha, .nan_bits = p.nan_bits};
    bits[e] = bf16_bits_keeping_nan(finish(acc[e], 0.0f, 0.0f));
  }
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(p.out) + row * p.out_stride + column) =
      uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
}

}  // namespace rotoscale::gpu::amd
