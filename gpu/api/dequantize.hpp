// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block-scaled matrices back to numbers on a device, equal to dequantize_ref by bytes. A rotation stays in.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// dequantize_ref on a device: `target` is rows × k (block_axis::row) or k × rows (block_axis::column), any strides.
/// `q` is a matrix in device memory in one of the formats and orders of quantize, its codes aligned to 4 bytes and its
/// rows multiples of 4 bytes apart; its factor, in device memory as well, multiplies every element. One launch on `s`,
/// no allocation. Any status but ok: nothing was launched.
status dequantize(const gemm_operand& q, block_axis axis, matrix<float> target, stream s);
/// To FP16.
status dequantize(const gemm_operand& q, block_axis axis, matrix<fp16> target, stream s);
/// To BF16.
status dequantize(const gemm_operand& q, block_axis axis, matrix<bf16> target, stream s);

}  // namespace rotoscale::gpu
