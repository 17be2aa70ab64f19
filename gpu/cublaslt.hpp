// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's handles as owners, and its words for formats. Its matrices are column-major: of a row-major D = A · Bᵀ one
// asks it for the transpose, B · Aᵀ, whose operands are then contiguous along K. For programs compiled where it was
// found.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>

#include "rotoscale/format.hpp"

namespace rotoscale::gpu::cublaslt {

template <auto Destroy>
struct destroyer {
  template <class T>
  void operator()(T* x) const {
    (void)Destroy(x);
  }
};
using handle = std::unique_ptr<cublasLtContext, destroyer<cublasLtDestroy>>;
using description = std::unique_ptr<cublasLtMatmulDescOpaque_t, destroyer<cublasLtMatmulDescDestroy>>;
using matrix_layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, destroyer<cublasLtMatrixLayoutDestroy>>;
using preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, destroyer<cublasLtMatmulPreferenceDestroy>>;

inline cudaDataType_t type_of(const format& f) {
  if (f == formats::fp64) return CUDA_R_64F;
  if (f == formats::fp32 || f == formats::tf32) return CUDA_R_32F;
  if (f == formats::fp16) return CUDA_R_16F;
  if (f == formats::bf16) return CUDA_R_16BF;
  return f == formats::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

/// `stride`: elements between columns; 0: rows.
inline matrix_layout layout_of(const format& f, std::int64_t rows, std::int64_t columns, std::int64_t stride = 0) {
  cublasLtMatrixLayout_t layout = nullptr;
  (void)cublasLtMatrixLayoutCreate(&layout, type_of(f), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), stride == 0 ? rows : stride);
  return matrix_layout(layout);
}

}  // namespace rotoscale::gpu::cublaslt
