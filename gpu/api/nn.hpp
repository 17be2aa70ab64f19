// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers, loss and optimizer on a device: what launches (launch.hpp) require, and layers that quantize their result.
//
// - Views have contiguous rows of FP32 or BF16. Access is 16 bytes wide if rows begin at multiples of 16 bytes, else
//   per element. Tables and their gradients are FP32. x, its gradient and its result have one storage.
// - embedding_forward, cross_entropy: an id outside [0, vocabulary) counts as masked (its row of y is zero) and is
//   recorded in the call's faults. Zero them before the first launch.
// - residual_norm: without the quantizer. With an empty y, only sum, mean and rstd are written.
// - bias_backward: dtable is contiguous.
// - sum_squares, adamw read the arena's segments_in_backend. `segments` only gives extents.
#pragma once

#include "launch.hpp"
#include "quantize.hpp"
#include "quantize_fp8.hpp"

namespace rotoscale::gpu {

/// residual_norm and quantize(f, y, rows, columns) in two launches. The second computes y from the sum and quantizes
/// both orientations from one read. An empty y is not written. One orientation may be null, as in quantize.
status residual_norm_quantize(const device_call& call, const op::residual_norm::in& i, const op::residual_norm::out& o,
                              block_format f, const quantized_output& rows, const quantized_output& columns);
/// The same with cast_transpose_fp8(cast, y, scale, out) instead of blocks. cast.rounding must be nearest_even.
status residual_norm_quantize(const device_call& call, const op::residual_norm::in& i, const op::residual_norm::out& o,
                              const fp8_options& cast, const float* scale, const fp8_output& out);

/// activation_forward and quantize(f, h, rows, columns) in one launch. An empty h is not written.
status activation_quantize(const device_call& call, const op::activation_quantize::in& i,
                           const op::activation_quantize::out& o, block_format f, const quantized_output& rows,
                           const quantized_output& columns);
/// activation_forward and cast_transpose_fp8(cast, h, scale, out) in one launch. An empty h is not written.
/// cast.rounding must be nearest_even.
status activation_quantize(const device_call& call, const op::activation_quantize::in& i,
                           const op::activation_quantize::out& o, const fp8_options& cast, const float* scale,
                           const fp8_output& out);
/// activation_backward and quantize(f, dx, rows, columns) in one launch that reads dh and x once. An empty dx is not
/// written. dh's columns are a multiple of 32, blocks 1 × 32 and all orders row-major.
status activation_backward_quantize(const device_call& call, const op::activation_backward_quantize::in& i,
                                    const op::activation_backward_quantize::out& o, block_format f,
                                    const quantized_output& rows, const quantized_output& columns);
/// activation_backward and cast_transpose_fp8(cast, dx, scale, out) in one launch that reads dh and x once. An empty dx
/// is not written. cast.rounding must be nearest_even.
status activation_backward_quantize(const device_call& call, const op::activation_backward_quantize::in& i,
                                    const op::activation_backward_quantize::out& o, const fp8_options& cast,
                                    const float* scale, const fp8_output& out);

/// cross_entropy. With `narrow` (rows, vocabulary) the gradients go there as BF16, and the logits are kept.
status cross_entropy(const device_call& call, const op::cross_entropy::in& i, const op::cross_entropy::out& o,
                     bf16* narrow);

}  // namespace rotoscale::gpu
