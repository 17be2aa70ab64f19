// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Dequantization of matrices on a device.
// dequantize equals dequantize_ref by bytes. A rotation is not undone (unrotate_operand does that).
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// True if dequantize takes these blocks: E2M1, E2M3, E3M2, E4M3 or E5M2 elements, 16 or 32 that share a scale, of one
/// row or square.
constexpr bool dequantizes(const block_format& f) {
  for (const format& element : {formats::e2m1, formats::e2m3, formats::e3m2, formats::e4m3, formats::e5m2}) {
    if (f.element == element) return (f.length == 16 || f.length == 32) && (f.rows == 1 || f.rows == f.length);
  }
  return false;
}

/// dequantize_ref on a device: `target` is rows × k (block_axis::row) or k × rows (block_axis::column), any strides.
/// `q` is a matrix in device memory in one of the orders of quantize. Its codes are aligned to 4 bytes and its rows are
/// multiples of 4 bytes apart, but for 6-bit codes. Its factor, also in device memory, multiplies every element. One
/// launch on `s`, no allocation. On any status but ok, nothing was launched.
status dequantize(const gemm_operand& q, block_axis axis, matrix<float> target, stream s);
/// To FP16.
status dequantize(const gemm_operand& q, block_axis axis, matrix<fp16> target, stream s);
/// To BF16.
status dequantize(const gemm_operand& q, block_axis axis, matrix<bf16> target, stream s);

/// Dequantizes two operands along rows, in one launch if their elements have one format.
status dequantize_pair(const gemm_operand& a, matrix<bf16> to_a, const gemm_operand& b, matrix<bf16> to_b, stream s);

/// Writes an operand's values, code * scale * factor, as FP32 or rounded to BF16. Rows are `stride` elements apart, at
/// least a row. The result is [rows, k], or [k, rows] if `transposed`.
/// Operands are as for fp32_fma_chain (gemm.hpp). The function makes one launch on `s`, without an allocation.
/// On any status but ok, nothing was launched.
status decode_operand(const gemm_operand& from, bool transposed, void* to, format stored, index_t stride, stream s);

/// Writes the values of an operand with blocks as BF16 [rows, k], rows `stride` elements apart, with its rotation
/// undone. The rotation has 0, 16, 32, 64 or 128 `points` and the signs of `draws` in the step of `state` (device
/// memory; null: draws.given_signs). Equal to dequantize, then unrotate_run, by bytes. One launch on `s`, no
/// allocation. On any status but ok, nothing was launched.
status unrotate_operand(const gemm_operand& from, int points, const nn::form_draws& draws, const nn::step_state* state,
                        bf16* to, index_t stride, stream s);

}  // namespace rotoscale::gpu
