// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The FP32 microkernel: C += A · B over panels of B, one fused multiply-add per product. Each accumulator is one chain
// along ascending K, so blocking of K, M and N changes no bit.
#pragma once

#include "rotoscale/detail/simd.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Rows of a microkernel tile, which is two registers wide. The accumulators leave room for two registers of B and one
/// of A, out of 32 (AVX-512, NEON), 16 and 16.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int gemm_rows = 8;  // no second set of registers for a block's products
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr int gemm_rows = 6;
#else
inline constexpr int gemm_rows = 4;
#endif
inline constexpr int gemm_cols = 2 * lane_count;

/// Panels of B: gemm_cols columns each, k-major rows of gemm_cols floats. The last panel is zero-padded.
inline index_t panel_count(index_t n) { return (n + gemm_cols - 1) / gemm_cols; }

/// C += A · panel for Rows × 2 registers. Rows of A are `lda` apart, with k contiguous.
template <int Rows>
inline void multiply_tile(index_t k, const float* a, index_t lda, const float* panel, float* c, index_t ldc) {
  constexpr int w = lane_count;
  lanes_f32 acc[Rows][2];
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < 2; ++j) acc[i][j] = load_lanes<lanes_f32>(c + i * ldc + j * w);
  }
  for (index_t p = 0; p < k; ++p) {
    const auto b0 = load_lanes<lanes_f32>(panel + p * gemm_cols);
    const auto b1 = load_lanes<lanes_f32>(panel + p * gemm_cols + w);
    for (int i = 0; i < Rows; ++i) {
      const lanes_f32 x = broadcast(a[i * lda + p]);
      acc[i][0] = fma(x, b0, acc[i][0]);
      acc[i][1] = fma(x, b1, acc[i][1]);
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < 2; ++j) store_lanes(c + i * ldc + j * w, acc[i][j]);
  }
}

/// multiply_tile for the last rows of a matrix, fewer than gemm_rows.
template <int Rows>
inline void multiply_tail(int rows, index_t k, const float* a, index_t lda, const float* panel, float* c, index_t ldc) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return multiply_tile<Rows>(k, a, lda, panel, c, ldc);
    multiply_tail<Rows - 1>(rows, k, a, lda, panel, c, ldc);
  }
}

/// C[m × panels] += A[m × k] · B. C must hold whole panels (ldc >= panel_count(n) * gemm_cols). Panels are `panel_k`
/// deep; rows [0, k) are used. Steps along K keep a panel slice in L1.
inline void multiply_panels(index_t m, index_t n, index_t k, const float* a, index_t lda, const float* panels,
                            index_t panel_k, float* c, index_t ldc) {
  constexpr index_t k_step = 256;  // × gemm_cols floats = 32 KiB
  for (index_t k0 = 0; k0 < k; k0 += k_step) {
    const index_t depth = k - k0 < k_step ? k - k0 : k_step;
    for (index_t p = 0; p < panel_count(n); ++p) {
      const float* panel = panels + (p * panel_k + k0) * gemm_cols;
      index_t i = 0;
      for (; i + gemm_rows <= m; i += gemm_rows) {
        multiply_tile<gemm_rows>(depth, a + i * lda + k0, lda, panel, c + i * ldc + p * gemm_cols, ldc);
      }
      multiply_tail<gemm_rows - 1>(static_cast<int>(m - i), depth, a + i * lda + k0, lda, panel,
                                   c + i * ldc + p * gemm_cols, ldc);
    }
  }
}

/// Packs one panel from rows with contiguous k: column j of the panel is the row at rows + j * stride.
template <int Columns = gemm_cols>
inline void pack_panel_from_rows(const float* rows, index_t stride, index_t valid, index_t k, float* panel) {
  index_t p = 0;
  for (; p + lane_count <= k; p += lane_count) {
    for (int j0 = 0; j0 < Columns; j0 += lane_count) {
      lanes_u32 t[lane_count];
      const int width = Columns - j0 < lane_count ? Columns - j0 : lane_count;
      for (int j = 0; j < lane_count; ++j) {
        t[j] = lanes_u32{};
        if (j0 + j < valid) t[j] = load_lanes<lanes_u32>(rows + (j0 + j) * stride + p);
      }
      transpose_lanes(t);
      for (int i = 0; i < lane_count; ++i) {
        __builtin_memcpy(panel + (p + i) * Columns + j0, &t[i], static_cast<std::size_t>(width) * sizeof(float));
      }
    }
  }
  for (; p < k; ++p) {
    for (int j = 0; j < Columns; ++j) panel[p * Columns + j] = j < valid ? rows[j * stride + p] : 0.0f;
  }
}

/// Packs all panels of a k × n FP32 matrix with any strides.
inline void pack_panels(matrix<const float> b, float* panels) {
  const index_t k = b.extent(0);
  const index_t n = b.extent(1);
  for (index_t p = 0; p < panel_count(n); ++p) {
    const index_t first = p * gemm_cols;
    const index_t valid = n - first < gemm_cols ? n - first : gemm_cols;
    float* panel = panels + first * k;
    const float* from = b.data + first * b.stride(1);
    if (b.stride(0) == 1) {
      pack_panel_from_rows(from, b.stride(1), valid, k, panel);
      continue;
    }
    for (index_t i = 0; i < k; ++i) {
      for (index_t j = 0; j < gemm_cols; ++j) {
        panel[i * gemm_cols + j] = j < valid ? from[i * b.stride(0) + j * b.stride(1)] : 0.0f;
      }
    }
  }
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
