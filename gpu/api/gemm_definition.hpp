// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs on CUDA cores or VALUs, under the contracts that need no matrix unit, on any device: C [m, n] = A · Bᵀ (+ C).
// fp32_fma_chain adds one product at a time in FP32. fp32_blockwise scales exact sums of 32 MXFP4 products and adds
// them in FP32. Also here: decoding an operand, with or without its rotation.
#pragma once

#include "device.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Accumulation: the matrix models of the same names.
enum class definition_sum { fma_chain, blockwise };

/// Output of a GEMM. An element is factor_a * factor_b * sum (+ out), rounded to `output` and stored as `stored`.
struct sum_output {
  void* out = nullptr;            ///< [m, n] in device memory
  format stored = formats::fp32;  ///< or BF16
  format output = formats::fp32;  ///< or BF16; a BF16 output is always rounded to BF16
  index_t out_stride = 0;         ///< elements between rows; 0: n
  bool accumulate = false;        ///< adds the old value of out
};

/// Workspace in bytes with which gemm_by_definition forms blockwise sums of [m, k] and [n, k] on the matrix unit. 0 in
/// three cases: the device's unit cannot give these bits, needs no workspace (AMD), or is slower than the CUDA cores.
std::size_t blockwise_workspace_bytes(index_t m, index_t n, index_t k, const device_info& device);

/// Computes r.out, equal to gemm_ref by bytes. No allocation. On any status but ok, nothing was launched.
///
/// `fma_chain` takes two kinds of operands:
/// - FP32, BF16, E4M3 and E5M2 in any strides, transposed or not, with or without a factor in device memory
/// - blocks of 16 or 32, of one row or square, of E2M1, E2M3, E3M2, E4M3 or E5M2 with row-major E8M0 or UE4M3 scales
/// `blockwise` takes blocks of 32 of E2M1 with E8M0 scales, codes and rows aligned to 4 bytes.
///
/// `workspace` is device memory aligned to 256 bytes, reusable by later work on the stream. It changes no bit. If it is
/// large enough and rows of codes are aligned to 16 bytes, the matrix unit forms blockwise sums, whatever their size.
/// AMD's matrix cores need no workspace, but k in multiples of 128 and rows of scales aligned to 4 bytes.
status gemm_by_definition(definition_sum sum, const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                          stream s, void* workspace = nullptr, std::size_t workspace_bytes = 0);

/// Writes an operand's values, code * scale * factor, as FP32 or rounded to BF16. Rows are `stride` elements apart, at
/// least a row. The result is [rows, k], or [k, rows] if `transposed`. Operands are those of gemm_by_definition. One
/// launch on `s`, no allocation. On any status but ok, nothing was launched.
status decode_operand(const gemm_operand& from, bool transposed, void* to, format stored, index_t stride, stream s);

/// Writes the values of an operand with blocks as BF16 [rows, k], rows `stride` elements apart, with its rotation
/// undone. The rotation has 0, 16 or 32 `points` and the signs of `*drawn` (device memory; null: no signs). Equal to
/// dequantize, then unrotate_run, by bytes. One launch on `s`, no allocation. On any status but ok, nothing was
/// launched.
status unrotate_operand(const gemm_operand& from, int points, const block_options* drawn, bf16* to, index_t stride,
                        stream s);

}  // namespace rotoscale::gpu
