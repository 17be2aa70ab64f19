// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers, loss and optimizer on a device, launched as launch.hpp states. Each follows its contract of
// docs/reference/layers.md, so its bytes are the CPU's (except which NaN a result is).
//
// Views have contiguous rows of FP32 or BF16. Access is 16 bytes wide if rows begin at multiples of 16 bytes, else per
// element. Tables and their gradients are FP32. x, its gradient and its result have one storage.
#pragma once

#include "launch.hpp"
#include "quantize.hpp"
#include "quantize_fp8.hpp"

namespace rotoscale::gpu {

// Step state.
ROTOSCALE_LAUNCHER(begin_step);
ROTOSCALE_LAUNCHER(set_gradient_scale);
ROTOSCALE_LAUNCHER(next_micro_batch);

// An id outside [0, vocabulary) counts as masked (its row of y is zero) and is recorded in the call's faults. Zero them
// before the first launch.
ROTOSCALE_LAUNCHER(embedding_forward);
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(embedding_backward);

ROTOSCALE_LAUNCHER(rmsnorm_forward);
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(rmsnorm_backward);
ROTOSCALE_LAUNCHER(layernorm_forward);
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(layernorm_backward);
/// Without the quantizer. With an empty y, only sum, mean and rstd are written.
ROTOSCALE_LAUNCHER(residual_norm);
/// residual_norm and quantize(f, y, rows, columns) in two launches. The second computes y from the sum and quantizes
/// both orientations from one read. An empty y is not written. One orientation may be null, as in quantize.
status residual_norm_quantize(const device_call& call, const op::residual_norm::in& i, const op::residual_norm::out& o,
                              block_format f, const quantized_output& rows, const quantized_output& columns);
/// The same with cast_transpose_fp8(cast, y, scale, out) instead of blocks. cast.rounding must be nearest_even.
status residual_norm_quantize(const device_call& call, const op::residual_norm::in& i, const op::residual_norm::out& o,
                              const fp8_options& cast, const float* scale, const fp8_output& out);

ROTOSCALE_LAUNCHER(bias_forward);
/// dtable is contiguous.
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(bias_backward);

ROTOSCALE_LAUNCHER(rope);

ROTOSCALE_LAUNCHER(activation_forward);
ROTOSCALE_LAUNCHER(activation_backward);
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
ROTOSCALE_LAUNCHER(add);
ROTOSCALE_LAUNCHER(dropout);

ROTOSCALE_LAUNCHER_WITH_WORKSPACE(cross_entropy);
/// With `narrow` (rows, vocabulary) the gradients go there as BF16, and the logits are kept.
status cross_entropy(const device_call& call, const op::cross_entropy::in& i, const op::cross_entropy::out& o,
                     bf16* narrow);
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(sum_losses);

// The optimizer reads the arena's segments_in_backend. `segments` only gives extents.
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(sum_squares);
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(gradient_norm);
ROTOSCALE_LAUNCHER(adamw);
ROTOSCALE_LAUNCHER(update_scales);

}  // namespace rotoscale::gpu
