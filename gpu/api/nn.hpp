// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers, loss and optimizer on a device: requirements of launches (launch.hpp), and layers that quantize their result.
//
// - Views have contiguous rows of FP32 or BF16. Access is 16 bytes wide if rows begin at multiples of 16 bytes, else
//   per element. Tables and their gradients are FP32. The storage of x, its gradient and its result is the same.
// - An id outside [0, vocabulary) counts as masked in embedding_forward (its row of y is zero) and cross_entropy. It is
//   recorded in the call's faults. Zero them before the first launch.
// - residual_norm: without the quantizer. With an empty y, only sum, mean and rstd are written.
// - bias_backward: dtable is contiguous. norm_backward: with a dtable no gradient and no mean is null.
// - sum_squares, adamw read the arena's segments_in_backend. `segments` only gives extents.
#pragma once

#include "launch.hpp"
#include "quantize.hpp"
#include "quantize_fp8.hpp"

namespace rotoscale::gpu {

/// Blocks as quantize(blocks, x, rows, columns) writes. One orientation may be null.
struct block_target {
  block_format blocks;       ///< of both orientations
  quantized_output rows;     ///< no codes: not written
  quantized_output columns;  ///< no codes: not written
};
/// Codes as cast_transpose_fp8(options, x, scale, out) writes. options.rounding must be nearest_even.
struct fp8_target {
  fp8_options options;           ///< of both orientations
  const float* scale = nullptr;  ///< as in cast_transpose_fp8
  fp8_output out;                ///< codes, amax
};

/// Launches an operation and quantizes its result from the same read of its inputs. An empty result is not written.
/// Op: residual_norm in two launches, activation_quantize and activation_backward_quantize in one. Target: block_target
/// or fp8_target. Blocks of a gradient are 1 × 32 in row-major order, and dh's columns are a multiple of 32.
template <class Op, class Target>
status launch_quantized(const device_call& call, const typename Op::in& i, const typename Op::out& o, const Target& to);

/// cross_entropy. With `narrow` (rows, vocabulary) the gradients go there as BF16, and the logits are kept.
status cross_entropy(const device_call& call, const op::cross_entropy::in& i, const op::cross_entropy::out& o,
                     bf16* narrow);

}  // namespace rotoscale::gpu
