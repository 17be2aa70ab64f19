// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Models of the matrix units whose arithmetic is known, each with its evidence. Sources: Xie et al., arXiv:2511.10909
// (tables 3 to 7); Khattak and Mikaitis, arXiv:2512.07004 (hardware vectors); Hopper: measured by this project on an
// H200.
#pragma once

#include "rotoscale/mma.hpp"

namespace rotoscale {

/// Source of a model's parameters, the strongest first.
enum class mma_evidence {
  definition,         ///< the model defines itself; no device is meant
  measured,           ///< measured by this project on the device, without a mismatch
  published_vectors,  ///< reproduces vectors that others published from the device
  literature,         ///< stated in a publication
  unverified          ///< no published measurements
};

/// A matrix unit: model, operand formats and evidence.
struct mma_unit {
  const char* name = "";  ///< architecture-instruction-operands-accumulator
  mma_model model;        ///< how it adds
  int instruction_k = 0;  ///< K of the instruction; extents are zero-padded to a multiple. 0: any
  unsigned operands = 0;  ///< operand_kind bits that A and B may have, independently
  int block = 0;          ///< elements per scale; 0: no scales
  format scale = {};      ///< format of the block scales
  mma_evidence evidence = mma_evidence::literature;  ///< source of the parameters
  const char* device = "";                           ///< measured, or the source of the published vectors
};

/// Operand formats of a unit: bits of mma_unit::operands.
enum operand_kind : unsigned {
  takes_fp32 = 1,
  takes_tf32 = 2,
  takes_bf16 = 4,
  takes_fp16 = 8,
  takes_fp8 = 16,  ///< E4M3 and E5M2
  takes_fp8_fnuz = 32,
  takes_fp6 = 64,
  takes_fp4 = 128,
  takes_fp64 = 256
};

namespace models {

/// NVIDIA's units ("T-FDPA"). A zero result is +0; a NaN result is all ones.
ROTOSCALE_HD constexpr mma_model nvidia(int group, int fraction_bits, mma_result result, int least_exponent) {
  mma_model m{group, mma_sum::aligned, result, fraction_bits, least_exponent};
  m.nan_bits = 0x7FFFFFFFu;
  return m;
}
ROTOSCALE_HD constexpr mma_model with_tf32(mma_model m) {
  m.operand = formats::tf32;
  return m;
}
/// FP8 mma.sync where the compiler expands it to FP16 instructions over pairs of k. C is added at the end.
ROTOSCALE_HD constexpr mma_model expanded_fp8(mma_model fp16, int instruction_k, int run) {
  fp16.operand = formats::fp16;
  fp16.group = instruction_k / 2;
  fp16.instruction_k = instruction_k;
  fp16.interleave = run;
  fp16.c_last = true;
  return fp16;
}
/// The structured-sparse form of a dense unit: twice the K, of which A keeps half.
ROTOSCALE_HD constexpr mma_model sparse(mma_model dense) {
  dense.group *= 2;
  dense.instruction_k *= 2;
  dense.interleave *= 2;
  dense.sparse = true;
  return dense;
}
/// Blackwell's block-scaled FP4: "GST-FDPA".
ROTOSCALE_HD constexpr mma_model scaled_fp4() {
  mma_model m{64, mma_sum::scaled_groups, mma_result::fp32_truncate, 35, -139, 16};
  m.nan_bits = 0x7FFFFFFFu;
  return m;
}
ROTOSCALE_HD constexpr mma_model cdna2(int tree) {
  return {tree, mma_sum::rounded_tree, mma_result::fp32_nearest, 0, 0, tree};
}
ROTOSCALE_HD constexpr mma_model cdna3(int group, mma_sum sum = mma_sum::late_c) {
  return {group, sum, mma_result::fp32_nearest, 24, 0, 0, 31};
}

/// Intel's BF16 units: FMA chains with FTZ and DAZ, and x86's NaN.
ROTOSCALE_HD constexpr mma_model intel(int group, mma_sum sum) {
  mma_model m{group, sum};
  m.nan_bits = 0xFFC00000u;
  m.keeps_nan = true;
  return m;
}

inline constexpr mma_result rz32 = mma_result::fp32_truncate, e8m13 = mma_result::e8m13,
                            rn16 = mma_result::fp16_nearest;
inline constexpr mma_model volta_f32 = nvidia(4, 23, rz32, -131), volta_f16 = nvidia(4, 23, rn16, -20);
inline constexpr mma_model ampere_f32 = nvidia(8, 24, rz32, -132), ampere_f16 = nvidia(8, 24, rn16, -21);
inline constexpr mma_model hopper_f32 = nvidia(16, 25, rz32, -133), hopper_f16 = nvidia(16, 25, rn16, -21);
inline constexpr mma_model hopper_k8_f32 = nvidia(8, 25, rz32, -133), hopper_k8_f16 = nvidia(8, 25, rn16, -21);
inline constexpr unsigned narrow = takes_fp8 | takes_fp6 | takes_fp4;
inline constexpr format e8m0 = formats::e8m0, ue4m3 = formats::ue4m3;
using enum mma_evidence;
inline constexpr const char* h200 = "NVIDIA H200, driver 580.159.04, CUDA 13.0";
inline constexpr const char* xeon = "Intel Xeon, family 6 model 207";

/// All units. Names consist of architecture, instruction, operands and accumulator.
inline constexpr mma_unit all[] = {
    {"exact", exact, 0, 0xFF, 0, {}, definition},
    {"fp32-fma-chain", fp32_fma_chain, 0, 0xFF, 0, {}, definition},
    {"fp64-fma-chain", fp64_fma_chain, 0, takes_fp64, 0, {}, definition},
    {"fp32-blockwise", fp32_blockwise, 0, takes_fp4, 32, e8m0, definition},
    {"volta-mma-fp16-f32", volta_f32, 4, takes_fp16, 0, {}, published_vectors, "V100"},
    {"volta-mma-fp16-f16", volta_f16, 4, takes_fp16, 0, {}, published_vectors, "V100"},
    {"turing-mma-fp16-f32", ampere_f32, 8, takes_fp16, 0, {}, literature},
    {"turing-mma-fp16-f16", ampere_f16, 8, takes_fp16, 0, {}, literature},
    {"ampere-mma-fp16-f32", ampere_f32, 8, takes_fp16 | takes_bf16, 0, {}, published_vectors, "A100"},
    {"ampere-mma-fp16-f16", ampere_f16, 8, takes_fp16, 0, {}, published_vectors, "A100"},
    {"ampere-mma-tf32-f32", with_tf32(nvidia(4, 24, rz32, -132)), 4, takes_tf32, 0, {}, published_vectors, "A100"},
    {"ampere-mma-fp64-f64", fp64_fma_chain, 4, takes_fp64, 0, {}, literature},
    {"ada-mma-fp16-f32", ampere_f32, 8, takes_fp16 | takes_bf16, 0, {}, published_vectors, "Ada, L40S"},
    {"ada-mma-fp16-f16", ampere_f16, 8, takes_fp16, 0, {}, published_vectors, "Ada, L40S"},
    {"ada-mma-tf32-f32", with_tf32(nvidia(4, 24, rz32, -132)), 4, takes_tf32, 0, {}, published_vectors, "Ada, L40S"},
    {"ada-mma-fp8-f32", nvidia(16, 13, e8m13, -132), 32, takes_fp8, 0, {}, published_vectors, "Ada, L40S"},
    {"ada-mma-fp8-f16", nvidia(16, 13, rn16, -21), 32, takes_fp8, 0, {}, published_vectors, "Ada, L40S"},
    {"hopper-mma-fp16-f32", hopper_f32, 16, takes_fp16 | takes_bf16, 0, {}, measured, h200},
    {"hopper-mma-fp16-f16", hopper_f16, 16, takes_fp16, 0, {}, measured, h200},
    {"hopper-mma-k8-fp16-f32", hopper_k8_f32, 8, takes_fp16 | takes_bf16, 0, {}, measured, h200},
    {"hopper-mma-k8-fp16-f16", hopper_k8_f16, 8, takes_fp16, 0, {}, measured, h200},
    {"hopper-mma-tf32-f32", with_tf32(hopper_k8_f32), 8, takes_tf32, 0, {}, measured, h200},
    {"hopper-mma-k4-tf32-f32", with_tf32(nvidia(4, 25, rz32, -133)), 4, takes_tf32, 0, {}, measured, h200},
    {"hopper-mma-fp8-f32", expanded_fp8(hopper_f32, 32, 2), 32, takes_fp8, 0, {}, measured, h200},
    {"hopper-mma-fp8-f16", expanded_fp8(hopper_f16, 32, 2), 32, takes_fp8, 0, {}, measured, h200},
    {"hopper-mma-k16-fp8-f32", expanded_fp8(hopper_f32, 16, 2), 16, takes_fp8, 0, {}, measured, h200},
    {"hopper-mma-k16-fp8-f16", expanded_fp8(hopper_f16, 16, 2), 16, takes_fp8, 0, {}, measured, h200},
    {"hopper-mma-fp64-f64", fp64_fma_chain, 4, takes_fp64, 0, {}, measured, h200},
    {"hopper-wgmma-fp16-f32", hopper_f32, 16, takes_fp16 | takes_bf16, 0, {}, measured, h200},
    {"hopper-wgmma-fp16-f16", hopper_f16, 16, takes_fp16, 0, {}, measured, h200},
    {"hopper-wgmma-tf32-f32", with_tf32(hopper_k8_f32), 8, takes_tf32, 0, {}, measured, h200},
    {"hopper-wgmma-fp8-f32", nvidia(32, 13, e8m13, -133), 32, takes_fp8, 0, {}, measured, h200},
    {"hopper-wgmma-fp8-f16", nvidia(32, 13, rn16, -21), 32, takes_fp8, 0, {}, measured, h200},
    {"hopper-sparse-fp16-f32", sparse(hopper_f32), 32, takes_fp16 | takes_bf16, 0, {}, measured, h200},
    {"hopper-sparse-fp16-f16", sparse(hopper_f16), 32, takes_fp16, 0, {}, measured, h200},
    {"hopper-sparse-k16-fp16-f32", sparse(hopper_k8_f32), 16, takes_fp16 | takes_bf16, 0, {}, measured, h200},
    {"hopper-sparse-k16-fp16-f16", sparse(hopper_k8_f16), 16, takes_fp16, 0, {}, measured, h200},
    {"hopper-sparse-tf32-f32", sparse(with_tf32(hopper_k8_f32)), 16, takes_tf32, 0, {}, measured, h200},
    {"hopper-sparse-k8-tf32-f32", sparse(with_tf32(nvidia(4, 25, rz32, -133))), 8, takes_tf32, 0, {}, measured, h200},
    {"hopper-sparse-mma-fp8-f32", sparse(expanded_fp8(hopper_f32, 32, 2)), 64, takes_fp8, 0, {}, measured, h200},
    {"hopper-sparse-wgmma-fp8-f32", sparse(nvidia(32, 13, e8m13, -133)), 64, takes_fp8, 0, {}, measured, h200},
    {"hopper-sparse-wgmma-fp8-f16", sparse(nvidia(32, 13, rn16, -21)), 64, takes_fp8, 0, {}, measured, h200},
    {"blackwell-fp16-f32", hopper_f32, 16, takes_fp16 | takes_bf16, 0, {}, published_vectors, "B200"},
    // Public TF32 vectors have K = 4. For FP16 accumulators an H200 refutes the literature's least exponents (-22,
    // -133), and no public vector of a B200 reaches them. These rows therefore use the H200's.
    {"blackwell-tf32-f32", with_tf32(hopper_k8_f32), 8, takes_tf32, 0, {}, literature},
    {"blackwell-mma-fp16-f16", hopper_f16, 16, takes_fp16, 0, {}, published_vectors, "B200"},
    {"blackwell-tcgen05-fp16-f16", hopper_f16, 16, takes_fp16, 0, {}, literature},
    {"blackwell-sm100-mma-fp8-f32", expanded_fp8(hopper_f32, 32, 2), 32, takes_fp8, 0, {}, published_vectors, "B200"},
    {"blackwell-sm100-mma-fp8-f16", expanded_fp8(hopper_f16, 32, 2), 32, takes_fp8, 0, {}, published_vectors, "B200"},
    {"blackwell-mma-fp64-f64", fp64_fma_chain, 4, takes_fp64, 0, {}, literature},
    {"blackwell-f8f6f4-f32", nvidia(32, 25, rz32, -133), 32, narrow, 0, {}, literature},
    {"blackwell-mma-f8f6f4-f16", nvidia(32, 25, rn16, -21), 32, narrow, 0, {}, literature},
    {"blackwell-tcgen05-f8f6f4-f16", nvidia(32, 25, rn16, -21), 32, narrow, 0, {}, literature},
    {"blackwell-mxf8f6f4-f32", nvidia(32, 25, rz32, -133), 32, narrow, 32, e8m0, literature},
    {"blackwell-mxf4-f32", scaled_fp4(), 64, takes_fp4, 32, e8m0, literature},
    {"blackwell-nvf4-f32", scaled_fp4(), 64, takes_fp4, 16, ue4m3, literature},
    {"cdna1-mfma-fp32-f32", fp32_fma_chain, 1, takes_fp32, 0, {}, literature},
    {"cdna1-mfma-bf16-f32", {2}, 2, takes_bf16, 0, {}, literature},
    {"cdna1-mfma-fp16-f32", {4}, 4, takes_fp16, 0, {}, literature},
    {"cdna2-mfma-fp32-f32", fp32_fma_chain, 1, takes_fp32, 0, {}, literature},
    {"cdna2-mfma-bf16-f32", cdna2(2), 2, takes_bf16, 0, {}, literature},
    {"cdna2-mfma-fp16-f32", cdna2(4), 4, takes_fp16 | takes_bf16, 0, {}, literature},
    {"cdna2-mfma-fp64-f64", fp64_fma_chain, 4, takes_fp64, 0, {}, literature},
    {"cdna3-mfma-fp32-f32", fp32_fma_chain, 1, takes_fp32, 0, {}, literature},
    {"cdna3-mfma-fp64-f64", fp64_fma_chain, 4, takes_fp64, 0, {}, literature},
    {"cdna3-mfma-fp16-f32", cdna3(8), 8, takes_fp16 | takes_bf16, 0, {}, literature},
    {"cdna3-mfma-xf32-f32", with_tf32(cdna3(4)), 4, takes_tf32, 0, {}, literature},
    {"cdna3-mfma-fp8-f32", cdna3(16, mma_sum::late_c_split), 16, takes_fp8_fnuz, 0, {}, literature},
    {"cdna4-mfma-fp16-f32", cdna3(8), 32, takes_fp16 | takes_bf16, 0, {}, unverified},
    {"cdna4-mfma-fp8-f32", cdna3(16, mma_sum::late_c_split), 16, takes_fp8, 0, {}, unverified},
    {"cdna4-mfma-f8f6f4-f32", cdna3(32), 128, narrow, 0, {}, unverified},
    {"cdna4-mfma-scale-f8f6f4-f32", cdna3(32), 128, narrow, 32, e8m0, unverified},
    {"intel-amx-bf16", intel(32, mma_sum::split_chains), 32, takes_bf16, 0, {}, measured, xeon},
    {"intel-avx512-bf16", intel(2, mma_sum::swapped_chain), 2, takes_bf16, 0, {}, measured, xeon},
};

}  // namespace models

}  // namespace rotoscale
