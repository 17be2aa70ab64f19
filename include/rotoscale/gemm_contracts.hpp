// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Named GEMM contracts: the gemm_options of known kernels. A contract says where accumulators start, when they are
// promoted and how parts of K are combined. The order of k within an instruction belongs to the mma_model.
#pragma once

#include <string_view>

#include "rotoscale/gemm_options.hpp"
#include "rotoscale/mma_models.hpp"

namespace rotoscale {

/// A GEMM contract by name: everything of gemm_options that decides the bits of a known kernel's result.
struct gemm_contract_entry {
  const char* name;         ///< as printed by --list-models and used in the documents
  const char* unit;         ///< name of its mma_unit; empty: any
  bool start_from_c;        ///< accumulators start from C instead of +0
  index_t promotion;        ///< accumulators are added to FP32 sums every so many k; 0: never
  index_t split_grain;      ///< parts of K are multiples of this
  mma_evidence evidence;    ///< source of these values
  const char* device = "";  ///< the measured device
};

/// All contracts.
/// - cublas-*, hopper-*: cuBLASLt 13.1 on an H200 for FP16, BF16 and FP8 (with and without fast accumulation), as
///   measured by this project (docs/reference/matrix-units.md). `split_grain` is the grain of its split-K.
/// - aiter-*: AITER's gemm_common.cu.
/// - mx*: this project's own kernels (docs/reference/contracts.md).
inline constexpr gemm_contract_entry gemm_contracts[] = {
    {"instruction", "", true, 0, 1, mma_evidence::definition},
    {"single-accumulator", "", false, 0, 1, mma_evidence::definition},
    {"cublas-fp16", "hopper-mma-fp16-f32", false, 0, 64, mma_evidence::measured, models::h200},
    {"hopper-fp8-fast-accumulate", "hopper-wgmma-fp8-f32", false, 0, 128, mma_evidence::measured, models::h200},
    {"hopper-fp8-promoted", "hopper-wgmma-fp8-f32", false, 128, 128, mma_evidence::measured, models::h200},
    {"aiter-a4w4", "cdna4-mfma-scale-f8f6f4-f32", false, 0, 256, mma_evidence::unverified},
    {"mxfp4-reference", "fp32-blockwise", false, 0, 32, mma_evidence::definition},
    {"mxfp8-reference", "fp32-fma-chain", false, 0, 1, mma_evidence::definition},
    {"mx-bf16-sm90", "hopper-mma-fp16-f32", false, 0, 128, mma_evidence::measured},
    {"mx-bf16-gfx942", "cdna3-mfma-fp16-f32", false, 0, 32, mma_evidence::literature},
    {"mxfp8-gfx950", "cdna4-mfma-scale-f8f6f4-f32", false, 0, 256, mma_evidence::unverified},
    {"mxfp4-accurate-sm90", "hopper-wgmma-fp8-f32", false, 32, 128, mma_evidence::measured},
    {"mxfp4-fast-sm90", "hopper-wgmma-fp8-f32", false, 128, 128, mma_evidence::measured},
};

/// The unit of that name, or null.
constexpr const mma_unit* find_unit(std::string_view name) {
  for (const mma_unit& u : models::all) {
    if (name == u.name) return &u;
  }
  return nullptr;
}
/// The contract of that name, or null.
constexpr const gemm_contract_entry* find_contract(std::string_view name) {
  for (const gemm_contract_entry& k : gemm_contracts) {
    if (name == k.name) return &k;
  }
  return nullptr;
}

/// GEMM options of contract `kernel` with `model`.
constexpr gemm_options contract_options(const gemm_contract_entry& kernel, const mma_model& model) {
  gemm_options o;
  o.model = model;
  o.start_from_c = kernel.start_from_c;
  o.promotion = kernel.promotion;
  o.split_grain = kernel.split_grain;
  return o;
}

/// Does `unit` take elements of `f`?
constexpr bool takes(const mma_unit& unit, const format& f) {
  constexpr struct {
    format element;
    unsigned kind;
  } kinds[] = {{formats::fp64, takes_fp64},         {formats::fp32, takes_fp32 | takes_tf32},
               {formats::tf32, takes_tf32},         {formats::bf16, takes_bf16},
               {formats::fp16, takes_fp16},         {formats::e4m3, takes_fp8},
               {formats::e5m2, takes_fp8},          {formats::e4m3fnuz, takes_fp8_fnuz},
               {formats::e5m2fnuz, takes_fp8_fnuz}, {formats::e2m3, takes_fp6},
               {formats::e3m2, takes_fp6},          {formats::e2m1, takes_fp4}};
  for (const auto& k : kinds) {
    if (k.element == f) return (unit.operands & k.kind) != 0;
  }
  return false;
}

/// The reason why `unit` cannot multiply elements of `f` under these scales, or null. `block`: elements per scale, or 0
/// without scales.
constexpr const char* refusal(const mma_unit& unit, const format& f, int block, const format& scale) {
  if (!takes(unit, f)) return "does not multiply these elements";
  if (unit.block != 0 && block == 0) return "needs block scales";
  if (unit.block == 0 && block != 0 && unit.evidence != mma_evidence::definition) return "takes no block scales";
  if (unit.block != 0 && (block != unit.block || scale != unit.scale)) return "takes other block scales";
  return nullptr;
}

}  // namespace rotoscale
