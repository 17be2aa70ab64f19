// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// cuBLASLt and hipBLASLt under hipBLASLt's names: RAII handles, formats, and the differences between the two. For
// programs compiled with one of them.
//
// Matrices of both libraries are column-major. For a row-major D = A · Bᵀ ask for Dᵀ = B · Aᵀ; both operands are then
// contiguous along K.
#pragma once

#if defined(__HIP__)
#include <hipblaslt/hipblaslt.h>
#else
#include <cublasLt.h>
#define HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER CUBLASLT_MATMUL_DESC_A_SCALE_POINTER
#define HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER CUBLASLT_MATMUL_DESC_B_SCALE_POINTER
#define HIPBLASLT_MATMUL_DESC_TRANSA CUBLASLT_MATMUL_DESC_TRANSA
#define HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
#define HIPBLAS_COMPUTE_32F CUBLAS_COMPUTE_32F
#define HIPBLAS_OP_T CUBLAS_OP_T
#define HIPBLAS_STATUS_ALLOC_FAILED CUBLAS_STATUS_ALLOC_FAILED
#define HIPBLAS_STATUS_SUCCESS CUBLAS_STATUS_SUCCESS
#define HIP_R_16BF CUDA_R_16BF
#define HIP_R_16F CUDA_R_16F
#define HIP_R_32F CUDA_R_32F
#define HIP_R_64F CUDA_R_64F
#define HIP_R_8F_E4M3 CUDA_R_8F_E4M3
#define HIP_R_8F_E5M2 CUDA_R_8F_E5M2
#define hipDataType cudaDataType_t
#define hipblasLtCreate cublasLtCreate
#define hipblasLtDestroy cublasLtDestroy
#define hipblasLtHandle_t cublasLtHandle_t
#define hipblasLtMatmul cublasLtMatmul
#define hipblasLtMatmulAlgoGetHeuristic cublasLtMatmulAlgoGetHeuristic
#define hipblasLtMatmulAlgo_t cublasLtMatmulAlgo_t
#define hipblasLtMatmulDescAttributes_t cublasLtMatmulDescAttributes_t
#define hipblasLtMatmulDescCreate cublasLtMatmulDescCreate
#define hipblasLtMatmulDescDestroy cublasLtMatmulDescDestroy
#define hipblasLtMatmulDescSetAttribute cublasLtMatmulDescSetAttribute
#define hipblasLtMatmulDesc_t cublasLtMatmulDesc_t
#define hipblasLtMatmulHeuristicResult_t cublasLtMatmulHeuristicResult_t
#define hipblasLtMatmulPreferenceAttributes_t cublasLtMatmulPreferenceAttributes_t
#define hipblasLtMatmulPreferenceCreate cublasLtMatmulPreferenceCreate
#define hipblasLtMatmulPreferenceDestroy cublasLtMatmulPreferenceDestroy
#define hipblasLtMatmulPreferenceSetAttribute cublasLtMatmulPreferenceSetAttribute
#define hipblasLtMatmulPreference_t cublasLtMatmulPreference_t
#define hipblasLtMatrixLayoutCreate cublasLtMatrixLayoutCreate
#define hipblasLtMatrixLayoutDestroy cublasLtMatrixLayoutDestroy
#define hipblasLtMatrixLayout_t cublasLtMatrixLayout_t
#define hipblasOperation_t cublasOperation_t
#define hipblasStatus_t cublasStatus_t
#endif

#include <cstdint>
#include <memory>
#include <type_traits>

#include "rotoscale/bits.hpp"
#include "rotoscale/format.hpp"

namespace rotoscale::gpu::blaslt {

template <auto Destroy>
struct destroyer {
  template <class T>
  void operator()(T* x) const {
    (void)Destroy(x);
  }
};
template <class Handle, auto Destroy>
using owner = std::unique_ptr<std::remove_pointer_t<Handle>, destroyer<Destroy>>;
using handle = owner<hipblasLtHandle_t, hipblasLtDestroy>;
using description = owner<hipblasLtMatmulDesc_t, hipblasLtMatmulDescDestroy>;
using matrix_layout = owner<hipblasLtMatrixLayout_t, hipblasLtMatrixLayoutDestroy>;
using preference = owner<hipblasLtMatmulPreference_t, hipblasLtMatmulPreferenceDestroy>;

/// Data type of FP16, BF16, TF32, FP32, FP64 or FP8.
inline hipDataType to_data_type(const format& f) {
  if (f == formats::fp64) return HIP_R_64F;
  if (f == formats::fp32 || f == formats::tf32) return HIP_R_32F;
  if (f == formats::fp16) return HIP_R_16F;
  if (f == formats::bf16) return HIP_R_16BF;
#if defined(__HIP__)
  if (f == formats::e4m3fnuz) return HIP_R_8F_E4M3_FNUZ;
  if (f == formats::e5m2fnuz) return HIP_R_8F_E5M2_FNUZ;
#endif
  ROTOSCALE_ASSERT(f == formats::e4m3 || f == formats::e5m2);
  return f == formats::e4m3 ? HIP_R_8F_E4M3 : HIP_R_8F_E5M2;
}

/// Layout of a column-major matrix. `stride`: elements between columns; 0 means `rows`.
inline matrix_layout layout_of(const format& f, std::int64_t rows, std::int64_t columns, std::int64_t stride = 0) {
  hipblasLtMatrixLayout_t layout = nullptr;
  (void)hipblasLtMatrixLayoutCreate(&layout, to_data_type(f), static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(columns), stride == 0 ? rows : stride);
  return matrix_layout(layout);
}

/// Sets an attribute. Returns false if the library refuses it.
template <class T>
bool set(const description& d, hipblasLtMatmulDescAttributes_t attribute, const T& value) {
  return hipblasLtMatmulDescSetAttribute(d.get(), attribute, &value, sizeof value) == HIPBLAS_STATUS_SUCCESS;
}
template <class T>
bool set(const preference& p, hipblasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  return hipblasLtMatmulPreferenceSetAttribute(p.get(), attribute, &value, sizeof value) == HIPBLAS_STATUS_SUCCESS;
}

/// A matmul as both libraries describe it.
struct product {
  const description& operation;
  const matrix_layout &first, &second, &result;
};

#if defined(__HIP__)

// hipBLASLt does not report split-K. Without workspace, partial sums have no storage, but atomic adds remain possible.
inline constexpr std::size_t max_workspace = 0;
inline constexpr bool has_fast_accumulate = false;
inline bool set_fast_accumulate(const description&, bool) { return true; }
inline bool forbid_split_k(const preference&) { return true; }
inline bool uses_split_k(const hipblasLtMatmulAlgo_t&) { return false; }
inline bool is_supported(const handle&, const product&, const hipblasLtMatmulAlgo_t&) { return true; }
inline const char* to_text(hipblasStatus_t) { return "the library did not take the problem"; }

#else

inline constexpr std::size_t max_workspace = std::size_t{32} << 20;
inline constexpr bool has_fast_accumulate = true;
inline bool set_fast_accumulate(const description& d, bool fast) {
  return set(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{fast});
}
inline bool forbid_split_k(const preference& p) {
  return set(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
}
/// Returns true if K is split or the library does not tell. Callers promise that K is not split.
inline bool uses_split_k(const cublasLtMatmulAlgo_t& algorithm) {
  std::int32_t parts = 0;
  std::uint32_t reduction = 0;
  const auto is_known = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    return cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof value, nullptr) ==
           CUBLAS_STATUS_SUCCESS;
  };
  if (!is_known(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, parts) ||
      !is_known(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction)) {
    return true;
  }
  return parts < 0 || parts > 1 || reduction != CUBLASLT_REDUCTION_SCHEME_NONE;
}
inline bool is_supported(const handle& library, const product& p, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t checked;
  return cublasLtMatmulAlgoCheck(library.get(), p.operation.get(), p.first.get(), p.second.get(), p.result.get(),
                                 p.result.get(), &algorithm, &checked) == CUBLAS_STATUS_SUCCESS;
}
inline const char* to_text(cublasStatus_t status) { return cublasLtGetStatusString(status); }

#endif

}  // namespace rotoscale::gpu::blaslt
