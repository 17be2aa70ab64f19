// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of cuBLASLt, where it was found (ROTOSCALE_BLASLT). Its matrices are column-major, so the call computes Dᵀ = B
// · Aᵀ.
#include "examples/probe/device.hpp"

#if defined(ROTOSCALE_BLASLT)

#include <cuda_runtime.h>

#include <cstring>
#include <tuple>

#include "gpu/dialect/blaslt.hpp"

namespace rotoscale::probe {

namespace {

/// Device memory, filled on request.
struct buffer {
  explicit buffer(std::size_t size) {
    if (cudaMalloc(&data, size) != cudaSuccess) data = nullptr;
  }
  explicit buffer(const std::vector<std::uint8_t>& from) : buffer(from.size()) {
    if (data != nullptr) (void)cudaMemcpy(data, from.data(), from.size(), cudaMemcpyHostToDevice);
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { (void)cudaFree(data); }
  void* data = nullptr;
};

using namespace gpu::blaslt;

/// The library's description of an algorithm.
std::string to_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  const auto add = [&](const char* name, cublasLtMatmulAlgoConfigAttributes_t attribute, std::size_t size) {
    std::uint32_t value = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, size, nullptr) != CUBLAS_STATUS_SUCCESS)
      return;
    text += (text.empty() ? "" : " ") + std::string(name) + " " + std::to_string(value);
  };
  add("algorithm", CUBLASLT_ALGO_CONFIG_ID, 4);
  add("tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4);
  add("stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4);
  add("split-k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4);
  add("reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4);
  add("custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4);
  add("inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2);
  add("cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2);
  return text;
}

/// The transpose of a row-major matrix.
std::vector<std::uint8_t> transpose(const std::vector<std::uint8_t>& codes, std::int64_t rows, int bytes) {
  std::vector<std::uint8_t> out(codes.size());
  const std::int64_t columns = static_cast<std::int64_t>(codes.size()) / bytes / rows;
  constexpr std::int64_t tile = 32;
  for (std::int64_t c0 = 0; c0 < columns; c0 += tile) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = c0; c < columns && c < c0 + tile; ++c) {
        std::memcpy(out.data() + (c * rows + r) * bytes, codes.data() + (r * columns + c) * bytes,
                    static_cast<std::size_t>(bytes));
      }
    }
  }
  return out;
}

}  // namespace

std::string library_description() { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }

std::vector<library_gemm> library_gemms() {
  const format fp16 = formats::fp16, bf16 = formats::bf16, fp32 = formats::fp32, e4m3 = formats::e4m3,
               e5m2 = formats::e5m2, fp64 = formats::fp64, tf32 = formats::tf32;
  std::vector<library_gemm> all{{"FP16 to FP32", fp16, fp16, fp32},
                                {"FP16 to FP16", fp16, fp16, fp16},
                                {"FP16 to FP16, FP16 accumulators", fp16, fp16, fp16, false, fp16},
                                {"BF16 to FP32", bf16, bf16, fp32},
                                {"BF16 to BF16", bf16, bf16, bf16},
                                {"TF32 to FP32", tf32, tf32, fp32},
                                {"FP64", fp64, fp64, fp64, false, fp64},
                                {"E4M3 to FP32, fast accumulation", e4m3, e4m3, fp32, true},
                                {"E4M3 to FP32", e4m3, e4m3, fp32},
                                {"E4M3 to BF16, fast accumulation", e4m3, e4m3, bf16, true},
                                {"E4M3 to BF16", e4m3, e4m3, bf16},
                                {"E4M3 and E5M2 to FP32, fast accumulation", e4m3, e5m2, fp32, true},
                                {"E4M3 and E5M2 to FP32", e4m3, e5m2, fp32}};
  // The entries above are NT: both operands are contiguous along K. FP8 supports no other layout.
  for (const auto& [nn, tn, tt, f, d] :
       {std::tuple{"FP16 to FP32, NN", "FP16 to FP32, TN", "FP16 to FP32, TT", fp16, fp32},
        std::tuple{"BF16 to FP32, NN", "BF16 to FP32, TN", "BF16 to FP32, TT", bf16, fp32},
        std::tuple{"BF16 to BF16, NN", "BF16 to BF16, TN", "BF16 to BF16, TT", bf16, bf16},
        std::tuple{"TF32 to FP32, NN", "TF32 to FP32, TN", "TF32 to FP32, TT", tf32, fp32}}) {
    all.push_back({nn, f, f, d, false, fp32, false, true});
    all.push_back({tn, f, f, d, false, fp32, true, true});
    all.push_back({tt, f, f, d, false, fp32, true, false});
  }
  return all;
}

std::string run_library(const library_gemm& what, probed_gemm& p, int algorithms,
                        const std::function<void(const std::string&)>& answer) {
  constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  const bool fp64 = what.accumulator == formats::fp64, fp16 = what.accumulator == formats::fp16;
  const cublasComputeType_t compute = fp64                      ? CUBLAS_COMPUTE_64F
                                      : fp16                    ? CUBLAS_COMPUTE_16F
                                      : what.a == formats::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                : CUBLAS_COMPUTE_32F;
  cublasLtHandle_t raw_handle = nullptr;
  if (cublasLtCreate(&raw_handle) != CUBLAS_STATUS_SUCCESS) return "cublasLtCreate failed";
  const handle library(raw_handle);
  cublasLtMatmulDesc_t raw_operation = nullptr;
  (void)cublasLtMatmulDescCreate(&raw_operation, compute, fp64 ? CUDA_R_64F : fp16 ? CUDA_R_16F : CUDA_R_32F);
  const description operation(raw_operation);
  // The first operand is B, the second A. A row-major matrix is the transpose of a column-major one.
  const cublasOperation_t first = what.transposed_b ? CUBLAS_OP_N : CUBLAS_OP_T,
                          second = what.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  (void)cublasLtMatmulDescSetAttribute(raw_operation, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
  (void)cublasLtMatmulDescSetAttribute(raw_operation, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
  if (what.a.bits() == 8) {
    const std::int8_t fast = what.fast_accumulate;
    (void)cublasLtMatmulDescSetAttribute(raw_operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
  }
  const matrix_layout b = what.transposed_b ? layout_of(what.b, p.n, p.k) : layout_of(what.b, p.k, p.n),
                      a = what.transposed_a ? layout_of(what.a, p.m, p.k) : layout_of(what.a, p.k, p.m),
                      d = layout_of(what.d, p.n, p.m);
  cublasLtMatmulPreference_t raw_preference = nullptr;
  (void)cublasLtMatmulPreferenceCreate(&raw_preference);
  const preference preferred(raw_preference);
  (void)cublasLtMatmulPreferenceSetAttribute(raw_preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                             sizeof workspace_bytes);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(algorithms));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      raw_handle, raw_operation, b.get(), a.get(), d.get(), d.get(), raw_preference, algorithms, found.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0)
    return "the library has no algorithm, status " + std::to_string(status);
  const buffer device_a(what.transposed_a ? transpose(p.codes_a, p.m, element_bytes(what.a)) : p.codes_a),
      device_b(what.transposed_b ? transpose(p.codes_b, p.n, element_bytes(what.b)) : p.codes_b),
      device_d(p.codes_d.size()), workspace(workspace_bytes);
  // 1 and 0 in the type of the scale. 0x3C00 is 1 in FP16.
  const double one64 = 1, zero64 = 0;
  const float one32 = 1, zero32 = 0;
  const std::uint16_t one16 = 0x3C00, zero16 = 0;
  const void* one = fp64 ? static_cast<const void*>(&one64) : fp16 ? static_cast<const void*>(&one16) : &one32;
  const void* zero = fp64 ? static_cast<const void*>(&zero64) : fp16 ? static_cast<const void*>(&zero16) : &zero32;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& choice = found[static_cast<std::size_t>(i)];
    (void)cudaMemset(device_d.data, 0xA5, p.codes_d.size());
    const cublasStatus_t done = cublasLtMatmul(raw_handle, raw_operation, one, device_b.data, b.get(), device_a.data,
                                               a.get(), zero, device_d.data, d.get(), device_d.data, d.get(),
                                               &choice.algo, workspace.data, workspace_bytes, nullptr);
    if (done != CUBLAS_STATUS_SUCCESS) continue;
    const cudaError_t copied = cudaMemcpy(p.codes_d.data(), device_d.data, p.codes_d.size(), cudaMemcpyDeviceToHost);
    if (copied != cudaSuccess) return cudaGetErrorString(copied);
    answer(to_text(choice.algo));
  }
  return {};
}

}  // namespace rotoscale::probe

#else

namespace rotoscale::probe {

std::string library_description() { return {}; }
std::vector<library_gemm> library_gemms() { return {}; }
std::string run_library(const library_gemm&, probed_gemm&, int, const std::function<void(const std::string&)>&) {
  return "no library";
}

}  // namespace rotoscale::probe

#endif
