// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs on a device: C [m, n] = alpha * A · Bᵀ (+ beta * C) (+ bias). One function for all operands and contracts; a
// table of kernels (gpu/gemm/table.cpp) says what a device has.
//
// The contract decides the bits: gemm_ref with its options gives the same. Exceptions are MXFP4 under mxfp4-*-sm90 and
// blocks under mx-bf16-*, whose operands are converted first, as gpu/gemm/contract_ref.hpp does. Tile, stages and
// raster order change no bit.
//
// Contract (docs/reference/contracts.md)   operands                                          devices
// mx-bf16-sm90, mx-bf16-gfx942             BF16 in either orientation, FP8, MX, NVFP4        sm_90; gfx942, gfx950
// hopper-fp8-promoted, *-fast-accumulate   E4M3, E5M2 with a factor each                     sm_90
// mxfp4-accurate-sm90, mxfp4-fast-sm90     MXFP4                                             sm_90
// aiter-a4w4, mxfp8-gfx950                 MXFP4; MXFP8                                      gfx950
// fp32_blockwise (mxfp4-reference)         MXFP4                                             all
// fp32_fma_chain (mxfp8-reference)         FP32, BF16, FP8, blocks                           all
//
// On sm_90 the MXFP4 contracts choose the operand width per 256 × 256 tile:
// - BF16 products, with that tensor core's accumulation, if a row's scales span more than 26 binades. E5M2 operands
//   cannot represent such a row.
// - int8 products for mxfp4-accurate-sm90. The scales of all rows must span at most 3 binades, and a row's squares must
//   sum to less than 2^24 (width_ref of contract_ref.hpp). No sum is rounded then, so the bits equal E5M2's, in little
//   more than half the time.
#pragma once

#include "device.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Maximum rows of an operand, and maximum k. FP32 chains and blockwise sums on CUDA cores take up to 2^24.
inline constexpr int max_gemm_extent = 1 << 20;

/// A kernel's tile, stages and raster order. They change no bit of a result. Without a tile, gemm() takes the schedule
/// from the table of measurements.
struct gemm_schedule {
  int tile_m = 0;                 ///< output rows per tile; a kernel has some shapes
  int tile_n = 0;                 ///< output columns per tile
  int stages = 0;                 ///< shared memory buffers of the copy pipeline; 0: the maximum
  int band = 0;                   ///< raster order: rows of tiles per band, 2^i up to 64; 0: 8
  bool bands_of_columns = false;  ///< bands are columns of tiles instead

  bool operator==(const gemm_schedule&) const = default;
};

/// Output and epilogue. `factor_a * factor_b * alpha * sum (+ beta * out) (+ bias)` is computed in FP32 as in
/// gemm_epilogue (rotoscale/gemm_epilogue.hpp), rounded to `output`, then stored.
struct gemm_result {
  void* out = nullptr;            ///< [m, n], row-major
  format stored = formats::bf16;  ///< or FP32
  index_t out_stride = 0;         ///< elements between rows; 0: n
  float alpha = 1.0f;             ///< multiplies the sum
  bool accumulate = false;        ///< adds beta * out
  float beta = 1.0f;              ///< multiplies the old value of out
  const float* bias = nullptr;    ///< [n] or null, added to every row
  format output = formats::fp32;  ///< or BF16, for results that are BF16 in FP32 memory
  /// [n] or null. Added to each row of a BF16 output, which is then rounded a second time, as op::bias_forward does.
  const float* output_bias = nullptr;
};

/// Rows of a grouped GEMM. Reserved: no kernel takes groups.
struct gemm_groups {
  int count = 0;                        ///< 0: not grouped
  const index_t* first_rows = nullptr;  ///< count + 1 rows of A and C in device memory, ascending
};

/// A GEMM. Operands are in device memory, without batch. Codes are aligned to 16 bytes, and rows in memory are
/// multiples of 16 bytes apart, except for FP32 chains and blockwise sums. Extents and orders:
/// - `m` and `n` are 1 to 2^20. `k` of blocks is a multiple of 32 (of 128 for MXFP4 on gfx942, of 256 on gfx950).
/// - Orders are row-major. gfx950's own contracts take scales in aiter_scale and codes with strides below 2^27 bytes.
///   Codes of b may also be in aiter_data_16x16, with rows a multiple of 16 and at most 64 GiB.
/// - fp32_blockwise and fp32_fma_chain also take blocks of 32 in any order.
struct gemm_call : gemm_result {
  gemm_operand a;            ///< [m, k]
  gemm_operand b;            ///< [n, k]
  gemm_options contract{};   ///< model, promotion, split-K and its grain; other members are not read
  gemm_schedule schedule{};  ///< without a tile: the fastest measured
  gemm_groups groups{};      ///< reserved
};

/// Checks whether a kernel of `device` takes the call. Returns the first wrong argument. Null pointers pass, so that a
/// plan can ask before it has memory.
status check_gemm(const gemm_call& call, const device_info& device);

/// Workspace of gemm() in bytes; 0 also if check_gemm refuses the call. It suffices for any smaller k.
std::size_t gemm_workspace_bytes(const gemm_call& call, const device_info& device);

/// Computes `call.out`. `workspace` is device memory, aligned to 256 bytes, with at least gemm_workspace_bytes. Other
/// work may use it after this call's work on the stream has completed. Checks all arguments first, allocates nothing,
/// and can be captured in a graph. On any status but ok, nothing was launched.
status gemm(const gemm_call& call, void* workspace, std::size_t workspace_bytes, stream s);

/// Contracts of block-scaled operands by what they promise.
/// - `reference`: fp32_blockwise for MXFP4, fp32_fma_chain for MXFP8.
/// - `accurate`: of MXFP4, the reference's bits, unless a sum leaves FP32's normal range (gfx950: scaled instruction).
/// - `fast`: on sm_90, sums of MXFP4 are added to FP32 accumulators every 128 k; elsewhere the same as `accurate`.
enum class gemm_mode { reference, accurate, fast };

/// The contract of a mode on a device, or null if it has none (every device has `reference`). `bf16`: of MXFP8, or of a
/// tile outside the E5M2 window.
const gemm_contract_entry* mode_contract(gemm_mode mode, const device_info& device, bool bf16 = false);

/// Options of gemm() and gemm_ref() for that contract, which must exist. `split_k` parts of K are multiples of
/// split_grain.
gemm_options contract_options(gemm_mode mode, const device_info& device, int split_k = 1, bool bf16 = false);

/// Kernel and schedule of a call.
struct gemm_selection {
  /// Origin of the schedule: the call, a measurement of the library's table, or the heuristic.
  enum class source { call, table, heuristic };

  const char* kernel = "";          ///< row of the table of kernels
  gemm_schedule schedule;           ///< of that kernel; empty: it has one
  source from = source::heuristic;  ///< origin of the schedule
  int table_m = 0;                  ///< M of the table's row: m, or m rounded up like in AITER's tables
  double microseconds = 0;          ///< measured time, conversion of both operands included

  /// Readable description: "mxfp4-accurate, 128x128 tiles, 6 stages, raster m8: ..." with the reason.
  std::string message() const;
};

/// Selects what gemm() launches for `call` on `device`. ROTOSCALE_GPU_TUNED names another table of measurements, which
/// is read once per process.
status select_gemm(const gemm_call& call, const device_info& device, gemm_selection& selected);

/// Parts of K of the fastest measured kernel for the call's shape, or parts that fill the device. It is advice: the
/// contract decides, since split-K changes bits.
int fastest_split_k(const gemm_call& call, const device_info& device);

}  // namespace rotoscale::gpu
