// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The block-scaled GEMMs of the devices: C [m, n] = alpha * A · Bᵀ (+ beta * C) (+ bias) from operands whose k is
// contiguous. Three contracts, each reproduced bit for bit by gpu/gemm/contract_ref.hpp on the CPU:
//
//   reference  exact sums of 32 products, scaled and added in FP32 in ascending k (fp32_blockwise); any device, slow
//   accurate   sm_90: E5M2 products, exact sums of 32 emptied into FP32: the reference's bits wherever no sum leaves
//              FP32's normal range. gfx950: its scaled matrix instruction. gfx942: the bits of the reference
//   fast       sm_90: E5M2 products, sums emptied into FP32 every 128 k. Elsewhere the same as `accurate`
//
// On sm_90, tiles of 256 × 256 with a row whose scales span more than 26 binades have no E5M2 operands; they are
// computed from BF16 products, under the accumulation of that matrix unit. Where the scales of all rows of a tile span
// at most 3 binades and a row's squares sum up to less than 2^24 (width_ref of contract_ref.hpp), `accurate` takes int8
// products: no sum is rounded then, so these are the same bits, in little more than half the time.
//
// MXFP8 (gemm_mxfp8): `reference` is one fused multiply-add a product (fp32_fma_chain); `accurate` and `fast` are the
// same: on sm_90 and gfx942 BF16 products, each under its unit, on gfx950 the scaled matrix instruction. E4M3 fills its
// range, so scales cannot be folded into FP8, and scaling sums of 32 in FP32 costs as much as BF16 products do.
//
// A launcher checks everything first, takes a stream, allocates nothing and can be captured in a graph.
#pragma once

#include "device.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Which sums a GEMM forms; docs/reference/contracts.md says which bits that gives on which device.
enum class gemm_contract { reference, accurate, fast };

/// Rows of an operand, and k, at most.
inline constexpr int max_gemm_extent = 1 << 20;

/// A kernel's tile, stages and raster order; no bit of a result depends on them. Zeros: the device's first tile
/// (`tiles` of gpu/dialect/arch.hpp), as many stages as it may have, bands of 8.
struct gemm_schedule {
  int tile_m = 0;  ///< rows of outputs that are computed together; the device has kernels for some shapes
  int tile_n = 0;  ///< and columns
  int stages = 0;  ///< of the copies to shared memory, in flight or being multiplied
  int band = 0;    ///< raster order: so many rows of tiles are walked through before the next; 2^i up to 64
  bool bands_of_columns = false;  ///< so many columns instead

  bool operator==(const gemm_schedule&) const = default;
};

/// Which kernel multiplies, into how many parts K is cut (their FP32 sums are added in ascending order), and how.
struct gemm_choice {
  gemm_contract contract = gemm_contract::accurate;  ///< which sums
  int split_k = 1;                                   ///< parts of K, multiples of 128 k (256 on gfx950; gfx942: 1 only)
  gemm_schedule schedule{};                          ///< tile, stages and raster order; `reference` has none
};

/// Output and epilogue: alpha * sum (+ beta * out) (+ bias) in FP32 as gemm_epilogue computes it
/// (rotoscale/gemm_epilogue.hpp), then rounded to `output`.
struct gemm_result {
  void* out = nullptr;            ///< [m, n], row-major
  format output = formats::bf16;  ///< or FP32
  index_t out_stride = 0;         ///< elements between rows; 0: n
  float alpha = 1.0f;             ///< multiplies the sum
  bool accumulate = false;        ///< adds beta * out
  float beta = 1.0f;              ///< multiplies the old value of out
  const float* bias = nullptr;    ///< [n] or null, added to every row
};

/// Operands in device memory, MX blocks of 32 with E8M0 scales along k, which is contiguous; no tensor factor, no
/// batch. m and n are 1 to 2^20, k a multiple of 32 up to 2^20 (of 128 for MXFP4 on gfx942, of 256 on gfx950).
/// Rows of row-major codes are `code_stride` bytes apart, a multiple of 16. `accurate` and `fast` take row-major codes
/// and scales; on gfx950 scales in aiter_scale, and codes in row_major, less than 2^27 bytes apart, or in
/// aiter_data_16x16, of b multiples of 16 rows and 64 GiB at most. `reference` takes any order.
struct gemm_problem : gemm_result {
  gemm_operand a;  ///< [m, k]
  gemm_operand b;  ///< [n, k]
};

/// Validates `problem` and `choice` for `device`; launchers call it before anything else. Not ok: the first argument
/// that is wrong.
status check_gemm(const gemm_problem& problem, const gemm_choice& choice, const device_info& device);

/// Bytes of workspace that the launcher needs; 0 also where check_gemm refuses the problem.
std::size_t gemm_workspace_bytes(const gemm_problem& problem, const gemm_choice& choice, const device_info& device);

/// Computes `problem.out`. `workspace` (device memory, aligned to 256 bytes, of at least gemm_workspace_bytes) may be
/// used by other work once this call's work on the stream has completed.
status gemm_mxfp4(const gemm_problem& problem, const gemm_choice& choice, void* workspace, std::size_t workspace_bytes,
                  stream s);

/// The same for operands of E4M3 or E5M2 in blocks of 32 (either of each).
status gemm_mxfp8(const gemm_problem& problem, const gemm_choice& choice, void* workspace, std::size_t workspace_bytes,
                  stream s);

/// How a kernel was chosen for a problem.
struct gemm_selection {
  /// What decided: ROTOSCALE_GPU_KERNEL, a measurement of the library's table, or neither.
  enum class source { forced, table, heuristic };

  gemm_choice choice;               ///< what gemm() launches
  source from = source::heuristic;  ///< what decided on it
  int table_m = 0;                  ///< M of the table's row: m, or m rounded up as AITER's tables round it
  double microseconds = 0;          ///< what the row's kernel took, expansion of both operands included

  /// "accurate, 128x128 tiles, 6 stages, split-K 2, raster m8: ..." and why, for people.
  std::string message() const;
};

/// What gemm() does with `problem` under `contract` on `device`, and why. The environment may name another table
/// (ROTOSCALE_GPU_TUNED, read once a process) or force a kernel (ROTOSCALE_GPU_KERNEL: "fast", "accurate/4",
/// "accurate/4/64x256/5/n8": four parts of K, tiles of 64 x 256, five stages, bands of eight columns of tiles).
status select_gemm(const gemm_problem& problem, gemm_contract contract, const device_info& device,
                   gemm_selection& selected);

/// Bytes of workspace that gemm() needs; 0 also where select_gemm refuses the problem.
std::size_t gemm_workspace_bytes(const gemm_problem& problem, gemm_contract contract, const device_info& device);

/// gemm_mxfp4 or gemm_mxfp8, by the operands' formats, with the choice of select_gemm: the fastest that was measured
/// for this shape on this device. Bits are those of that choice: split-K changes them and nothing else of it does, so
/// equal bits on several devices need a split-K of one's own.
status gemm(const gemm_problem& problem, gemm_contract contract, void* workspace, std::size_t workspace_bytes,
            stream s);

/// What a contract computes: options for gemm() and gemm_ref() on operands expanded as contract_ref.hpp does. `split_k`
/// parts of K are multiples of split_grain. `bf16`: of MXFP8, or of a tile outside the E5M2 window. `device` has
/// kernels for the contract (any has for `reference`).
gemm_options contract_options(gemm_contract contract, const device_info& device, int split_k = 1, bool bf16 = false);

}  // namespace rotoscale::gpu
