// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The FP4 GEMM of the GPU backend: C [m, n] = alpha * A · Bᵀ (+ beta * C) (+ bias) from MXFP4 operands whose k is
// contiguous. Three contracts, each reproduced bit for bit by gemm_model.hpp on the CPU:
//
//   reference  exact sums of 32 products, scaled and added in FP32 in ascending k (fp32_blockwise); any device, slow
//   accurate   sm_90: E5M2 products, exact sums of 32 emptied into FP32: the reference's bits wherever no sum leaves
//              FP32's normal range. gfx950: its scaled matrix instruction. gfx942: the bits of the reference
//   fast       sm_90: E5M2 products, sums emptied into FP32 every 128 k. Elsewhere the same as `accurate`
//
// On sm_90, tiles of 256 × 256 with a row whose scales span more than 26 binades have no E5M2 operands; they are
// computed from BF16 products, under the accumulation of that matrix unit. Where the scales of all rows of a tile span
// at most 3 binades and a row's squares sum up to less than 2^24 (level_ref of gemm_model.hpp), `accurate` takes int8
// products: no sum is rounded then, so these are the same bits, in little more than half the time.
//
// MXFP8 (gemm_mxfp8): `reference` is one fused multiply-add a product (fp32_fma_chain); `accurate` and `fast` are the
// same: on sm_90 and gfx942 BF16 products, each under its unit, on gfx950 the scaled matrix instruction. E4M3 fills its
// range, so scales cannot be folded into FP8, and scaling sums of 32 in FP32 costs as much as BF16 products do.
//
// A launcher checks everything first, takes a stream, allocates nothing and can be captured in a graph.
#pragma once

#include <cstddef>
#include <string>

#include "gpu/api/status.hpp"
#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/operand.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu {

enum class gemm_contract { reference, accurate, fast };

/// Which kernel multiplies, and into how many parts K is cut (their FP32 sums are added in ascending order).
struct gemm_choice {
  gemm_contract contract = gemm_contract::accurate;
  int split_k = 1;
};

/// Where a GEMM's sums go, and the last step on their way: alpha * sum (+ beta * out) (+ bias), rounded once.
struct gemm_result {
  void* out = nullptr;            ///< [m, n], row-major
  format output = formats::bf16;  ///< or FP32
  index_t out_stride = 0;         ///< elements between rows; 0: n
  float alpha = 1.0f;
  bool accumulate = false;  ///< adds beta * out
  float beta = 1.0f;
  const float* bias = nullptr;  ///< [n] or null, added to every row
};
inline index_t out_stride_of(const gemm_result& r, index_t n) { return r.out_stride == 0 ? n : r.out_stride; }

struct gemm_problem : gemm_result {
  gemm_operand_view a, b;  ///< [m, k], [n, k]
};

/// What kernels exist for the current device (in host mode: for the host). Empty name: only `reference`.
struct gemm_device {
  const char* arch = "";  ///< "sm_90", "gfx942", "gfx950", "host" or ""
  int units = 0;          ///< multiprocessors, compute units
};
status current_device(gemm_device& device);

/// Is everything about `problem` in order for `choice` on `device`? The launcher asks this first.
status check_gemm(const gemm_problem& problem, const gemm_choice& choice, const gemm_device& device);

/// Bytes of workspace that the launcher needs; 0 if the problem is not in order.
std::size_t gemm_workspace_bytes(const gemm_problem& problem, const gemm_choice& choice, const gemm_device& device);

/// Computes `problem.out`. `workspace` (device memory, aligned to 256 bytes, of at least gemm_workspace_bytes) may be
/// used by other work again once the stream has come past this call.
status gemm_mxfp4(const gemm_problem& problem, const gemm_choice& choice, void* workspace, std::size_t workspace_bytes,
                  hipStream_t stream);

/// The same for operands of E4M3 or E5M2 in blocks of 32 (either of each).
status gemm_mxfp8(const gemm_problem& problem, const gemm_choice& choice, void* workspace, std::size_t workspace_bytes,
                  hipStream_t stream);

/// What a contract computes: options for gemm() and gemm_ref() on operands expanded as gemm_model.hpp does.
/// `split_k` parts of K are multiples of split_grain. `wide`: of MXFP8, or of a tile outside the FP8 window.
inline gemm_options options_of(gemm_contract contract, const gemm_device& device, int split_k = 1, bool wide = false) {
  const bool sm90 = std::string(device.arch) == "sm_90" || std::string(device.arch) == "host";
  const bool gfx942 = std::string(device.arch) == "gfx942";
  const char* name = contract == gemm_contract::reference ? (wide ? "mxfp8-reference" : "mxfp4-reference")
                     : gfx942                             ? (wide ? "mx-bf16-gfx942" : "mxfp4-reference")
                     : !sm90                              ? (wide ? "mxfp8-gfx950" : "aiter-a4w4")
                     : wide                               ? "mx-bf16-sm90"
                     : contract == gemm_contract::fast    ? "mxfp4-fast-sm90"
                                                          : "mxfp4-accurate-sm90";
  const gemm_contract_entry* kernel = find_contract(name);
  gemm_options o = rotoscale::options_of(*kernel, find_unit(kernel->unit)->model);
  o.split_k = split_k;
  return o;
}

}  // namespace rotoscale::gpu
