// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs under the contracts that need no matrix unit, on any device: C [m, n] = A · Bᵀ (+ C). One product after the
// other in FP32 (fp32_fma_chain), or exact sums of 32 MXFP4 products scaled and added in FP32 (fp32_blockwise).
#pragma once

#include "device.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Which sums: the matrix models of the same names.
enum class definition_sum { fma_chain, blockwise };

/// Where sums go. An element is factor_a * factor_b * sum (+ out), rounded to `output`, stored as `stored`.
struct sum_output {
  void* out = nullptr;            ///< [m, n] in device memory
  format stored = formats::fp32;  ///< or BF16
  format output = formats::fp32;  ///< or BF16; what is stored as BF16 is rounded to it in any case
  index_t out_stride = 0;         ///< elements between rows; 0: n
  bool accumulate = false;        ///< adds what stands there
};

/// Bytes of workspace with which gemm_by_definition forms blockwise sums of [m, k] and [n, k] on the device's matrix
/// unit; 0 where it has none that gives their bits, needs none (AMD's), or where the ordinary cores are done sooner.
std::size_t blockwise_workspace_bytes(index_t m, index_t n, index_t k, const device_info& device);

/// Computes r.out, equal to gemm_ref by bytes. fma_chain takes FP32, BF16, E4M3 and E5M2 in any strides, transposed or
/// not, with or without a factor in device memory, and blocks of 16 or 32, of one row or square, of E2M1, E2M3, E3M2,
/// E4M3 or E5M2 with E8M0 or UE4M3 scales in row-major order; blockwise takes blocks of 32 of E2M1 with E8M0 scales,
/// codes and rows aligned to 4 bytes. No allocation. Any status but ok: nothing was launched.
///
/// `workspace` (device memory aligned to 256 bytes; free again behind this call on the stream) changes no bit: with
/// enough of it and rows of codes aligned to 16 bytes, blockwise sums are formed on the matrix unit, even of few
/// products. AMD's units need none, but k in multiples of 128 and rows of scales aligned to 4 bytes.
status gemm_by_definition(definition_sum sum, const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                          stream s, void* workspace = nullptr, std::size_t workspace_bytes = 0);

/// An operand's values, code * scale * factor, as FP32 or rounded to BF16, rows `stride` elements apart (not less than
/// a row): [rows, k], or `transposed` [k, rows]. Operands are those of gemm_by_definition. One launch on `s`, no
/// allocation. Any status but ok: nothing was launched.
status decode_operand(const gemm_operand& from, bool transposed, void* to, format stored, index_t stride, stream s);

/// The values of an operand with blocks as BF16, [rows, k] in rows `stride` elements apart, its rotation of 0, 16 or 32
/// `points` undone with the signs of `*drawn` (device memory; null: none): dequantize, then unrotate_run, by bytes. One
/// launch on `s`, no allocation. Any status but ok: nothing was launched.
status unrotate_operand(const gemm_operand& from, int points, const block_options* drawn, bf16* to, index_t stride,
                        stream s);

}  // namespace rotoscale::gpu
