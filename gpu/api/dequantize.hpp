// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Dequantization of block-scaled matrices on a device.
// Results equal dequantize_ref by bytes. A rotation is not undone (unrotate_operand in gemm_definition.hpp does that).
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// dequantize_ref on a device: `target` is rows × k (block_axis::row) or k × rows (block_axis::column), any strides.
/// `q` is a matrix in device memory in one of the formats and orders of quantize. Its codes are aligned to 4 bytes and
/// its rows are multiples of 4 bytes apart. Its factor, also in device memory, multiplies every element. One launch on
/// `s`, no allocation. On any status but ok, nothing was launched.
status dequantize(const gemm_operand& q, block_axis axis, matrix<float> target, stream s);
/// To FP16.
status dequantize(const gemm_operand& q, block_axis axis, matrix<fp16> target, stream s);
/// To BF16.
status dequantize(const gemm_operand& q, block_axis axis, matrix<bf16> target, stream s);

}  // namespace rotoscale::gpu
