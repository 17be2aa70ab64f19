// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tiles and epilogue of AMD's GEMM kernels. They multiply rows of B by rows of A, so a lane holds four neighbouring
// columns of a row of C.
#pragma once

#include "gpu/dialect/amd_matrix.hpp"
#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/output.hpp"

namespace rotoscale::gpu::amd {

inline constexpr int threads = 256;  // four waves

/// Rows × Columns outputs of a block of gfx942's kernel and of the dense kernel. Its four waves form a 2 × 2 or a 1 × 4
/// grid.
template <int Rows, int Columns>
struct tile {
  static constexpr int rows = Rows, columns = Columns;
  static constexpr int waves_down = Rows >= Columns && Rows % 32 == 0 ? 2 : 1, waves_across = 4 / waves_down;
  static constexpr int wave_rows = Rows / waves_down, wave_columns = Columns / waves_across;
  static constexpr int row_tiles = wave_rows / 16, column_tiles = wave_columns / 16;
  static_assert(wave_rows % 16 == 0 && wave_columns % 16 == 0);
  /// Of operand m: number of rows, and their first index in a buffer of both operands.
  __device__ static constexpr int extent(int m) { return m == 0 ? Rows : Columns; }
  __device__ static constexpr int first(int m) { return m == 0 ? 0 : Rows; }
};

/// Stores four columns as BF16 (8-byte aligned rows, no C, no bias).
__device__ inline void store_four(const gemm_arguments& p, float4 acc, int row, int column) {
  std::uint32_t bits[4];
  ROTOSCALE_UNROLL
  for (int e = 0; e < 4; ++e) {
    const gemm_epilogue finish{.factor = output_factor(p), .nan_bits = p.nan_bits};
    bits[e] = bf16_bits_keeping_nan(finish(acc[e], 0.0f, 0.0f));
  }
  *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(p.out) + row * p.out_stride + column) =
      uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
}

/// Stores four columns of any output, with rows of whole, aligned fours of elements.
__device__ inline void store_any_four(const gemm_arguments& p, float4 acc, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  std::uint16_t* const narrow = static_cast<std::uint16_t*>(p.out) + at;
  float* const wide = static_cast<float*>(p.out) + at;
  float4 old = {};
  if (p.accumulate && p.bf16_out) {
    const uint2 two = *reinterpret_cast<const uint2*>(narrow);
    old = float4{fp32_from_bits(two[0] << 16), fp32_from_bits(two[0] & 0xFFFF0000u), fp32_from_bits(two[1] << 16),
                 fp32_from_bits(two[1] & 0xFFFF0000u)};
  } else if (p.accumulate) {
    old = *reinterpret_cast<const float4*>(wide);
  }
  float4 x;
  ROTOSCALE_UNROLL
  for (int e = 0; e < 4; ++e) {
    const float bias = p.bias != nullptr ? p.bias[column + e] : 0.0f;
    x[e] = gemm_epilogue{output_factor(p), p.accumulate, p.beta, p.bias != nullptr, p.nan_bits}(acc[e], old[e], bias);
  }
  if (p.bf16_out) {
    std::uint32_t bits[4];
    ROTOSCALE_UNROLL
    for (int e = 0; e < 4; ++e) bits[e] = bf16_bits_keeping_nan(x[e]);
    *reinterpret_cast<uint2*>(narrow) = uint2{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16};
  } else {
    ROTOSCALE_UNROLL
    for (int e = 0; e < 4; ++e) x[e] = float_output(p, x[e]);
    *reinterpret_cast<float4*>(wide) = x;
  }
}

/// Stores four columns of a row, or the unscaled sums of a part of K. `fours`: rows of the target are whole, aligned
/// fours of elements.
__device__ inline void store_columns(const gemm_arguments& p, bool fours, float4 acc, int row, int column, int part) {
  if (row >= p.m || column >= p.n) return;
  float* const sums = p.partial + (static_cast<std::int64_t>(part) * p.m + row) * p.n + column;
  if (fours) {
    if (p.parts > 1) {
      *reinterpret_cast<float4*>(sums) = acc;
    } else {
      store_any_four(p, acc, row, column);
    }
    return;
  }
  ROTOSCALE_KEEP_LOOP
  for (int e = 0; e < 4 && column + e < p.n; ++e) {
    if (p.parts > 1) {
      sums[e] = acc[0];
    } else {
      store_output(p, output_factor(p), acc[0], row, column + e);
    }
    acc = float4{acc[1], acc[2], acc[3], acc[0]};
  }
}

}  // namespace rotoscale::gpu::amd
