// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block-scaled GEMMs on a device: C [m, n] = alpha * A · Bᵀ (+ beta * C) (+ bias), k contiguous in both operands.
// Each contract is reproduced bit for bit by gpu/gemm/contract_ref.hpp on the CPU.
//
// MXFP4 (gemm_mxfp4):
//   reference  exact sums of 32 products, scaled and added in FP32 in ascending k (fp32_blockwise); any device, slow
//   accurate   sm_90: E5M2 products; exact sums of 32 are added to FP32 accumulators. The reference's bits, unless a
//              sum leaves FP32's normal range.
//              gfx950: scaled matrix instruction. gfx942: the bits of the reference.
//   fast       sm_90: E5M2 products; sums are added to FP32 accumulators every 128 k. Elsewhere the same as `accurate`.
//
// On sm_90 the operand width is chosen per 256 × 256 tile:
// - BF16 products, with that tensor core's accumulation, if a row's scales span more than 26 binades. E5M2 operands
//   cannot represent such a row.
// - int8 products for `accurate`, if the scales of all rows span at most 3 binades and a row's squares sum to less than
//   2^24 (width_ref of contract_ref.hpp). No sum is rounded then, so the bits are those of E5M2, in little more than
//   half the time.
//
// MXFP8 (gemm_mxfp8):
//   reference       one fused multiply-add per product (fp32_fma_chain)
//   accurate, fast  the same contract: BF16 products on sm_90 and gfx942, the scaled matrix instruction on gfx950.
//                   E4M3 uses its whole range, so scales cannot be folded into FP8 codes. Scaling sums of 32 in FP32
//                   would cost as much as BF16 products.
//
// A launcher checks all arguments first, takes a stream, allocates nothing and can be captured in a graph.
#pragma once

#include "device.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Accumulation contract of a GEMM. docs/reference/contracts.md lists the bits per device.
enum class gemm_contract { reference, accurate, fast };

/// Maximum rows of an operand, and maximum k.
inline constexpr int max_gemm_extent = 1 << 20;

/// A kernel's tile, stages and raster order. They change no bit of a result. Zeros select the device's first tile
/// (`tiles` of gpu/dialect/arch.hpp), the maximum number of stages, and bands of 8.
struct gemm_schedule {
  int tile_m = 0;                 ///< output rows per tile; the device has kernels for some shapes
  int tile_n = 0;                 ///< output columns per tile
  int stages = 0;                 ///< shared memory buffers of the copy pipeline
  int band = 0;                   ///< raster order: rows of tiles per band, 2^i up to 64
  bool bands_of_columns = false;  ///< bands are columns of tiles instead

  bool operator==(const gemm_schedule&) const = default;
};

/// Kernel, split-K and schedule of a GEMM. FP32 sums of the parts of K are added in ascending order.
struct gemm_choice {
  gemm_contract contract = gemm_contract::accurate;  ///< accumulation contract
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

/// Operands in device memory: MX blocks of 32 with E8M0 scales along contiguous k, without tensor factor or batch.
/// - m and n are 1 to 2^20. k is a multiple of 32 up to 2^20 (of 128 for MXFP4 on gfx942, of 256 on gfx950).
/// - Rows of row-major codes are `code_stride` bytes apart, a multiple of 16.
/// - `reference` takes any order. `accurate` and `fast` take row-major codes and scales, except on gfx950.
/// - gfx950 takes scales in aiter_scale. Codes are row_major with strides below 2^27 bytes. Those of b may also be
///   aiter_data_16x16, with rows a multiple of 16 and at most 64 GiB.
struct gemm_problem : gemm_result {
  gemm_operand a;  ///< [m, k]
  gemm_operand b;  ///< [n, k]
};

/// Validates `problem` and `choice` for `device`. Launchers call it first. Returns the first wrong argument.
status check_gemm(const gemm_problem& problem, const gemm_choice& choice, const device_info& device);

/// Workspace of the launcher in bytes; 0 also if check_gemm refuses the problem.
std::size_t gemm_workspace_bytes(const gemm_problem& problem, const gemm_choice& choice, const device_info& device);

/// Computes `problem.out` for MXFP4 operands. `workspace` is device memory, aligned to 256 bytes, with at least
/// gemm_workspace_bytes. Other work may use it after this call's work on the stream has completed.
status gemm_mxfp4(const gemm_problem& problem, const gemm_choice& choice, void* workspace, std::size_t workspace_bytes,
                  stream s);

/// The same for MXFP8 operands: each is E4M3 or E5M2 in blocks of 32.
status gemm_mxfp8(const gemm_problem& problem, const gemm_choice& choice, void* workspace, std::size_t workspace_bytes,
                  stream s);

/// Result of kernel selection for a problem.
struct gemm_selection {
  /// Origin of the choice: ROTOSCALE_GPU_KERNEL, a measurement of the library's table, or the heuristic.
  enum class source { forced, table, heuristic };

  gemm_choice choice;               ///< kernel that gemm() launches
  source from = source::heuristic;  ///< origin of the choice
  int table_m = 0;                  ///< M of the table's row: m, or m rounded up like in AITER's tables
  double microseconds = 0;          ///< measured time, expansion of both operands included

  /// Readable description: "accurate, 128x128 tiles, 6 stages, split-K 2, raster m8: ..." with the reason.
  std::string message() const;
};

/// Selects the kernel that gemm() uses for `problem` under `contract` on `device`. The environment can override it:
/// - ROTOSCALE_GPU_TUNED names another table. It is read once per process.
/// - ROTOSCALE_GPU_KERNEL forces a kernel: "fast", "accurate/4", "accurate/4/64x256/5/n8" (four parts of K, tiles of 64
///   × 256, five stages, bands of eight columns of tiles).
status select_gemm(const gemm_problem& problem, gemm_contract contract, const device_info& device,
                   gemm_selection& selected);

/// Workspace of gemm() in bytes; 0 also if select_gemm refuses the problem.
std::size_t gemm_workspace_bytes(const gemm_problem& problem, gemm_contract contract, const device_info& device);

/// gemm_mxfp4 or gemm_mxfp8, by the operands' formats, with the choice of select_gemm: the fastest measured kernel for
/// this shape on this device. Of that choice only split-K changes bits. For equal bits on several devices, call
/// gemm_mxfp4 or gemm_mxfp8 with a fixed split-K.
status gemm(const gemm_problem& problem, gemm_contract contract, void* workspace, std::size_t workspace_bytes,
            stream s);

/// Options of gemm() and gemm_ref() that reproduce a contract, on operands expanded as in contract_ref.hpp. `split_k`
/// parts of K are multiples of split_grain. `bf16`: MXFP8, or a tile outside the E5M2 window. `device` must support the
/// contract (every device supports `reference`).
gemm_options contract_options(gemm_contract contract, const device_info& device, int split_k = 1, bool bf16 = false);

}  // namespace rotoscale::gpu
