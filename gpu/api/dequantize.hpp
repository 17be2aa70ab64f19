// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block-scaled matrices back to numbers on a device, equal to dequantize_ref by bytes. A rotation stays in.
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/layout.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// A quantized matrix in device memory, rows × k, in the orders that the quantizers write.
struct quantized_source {
  const std::uint8_t* codes = nullptr;           ///< aligned to 4 bytes
  const std::uint8_t* scales = nullptr;          ///< E8M0, one a block
  index_t rows = 0;                              ///< vectors
  index_t k = 0;                                 ///< elements of a vector, along the blocks
  placement code_order = placement::row_major;   ///< order of the codes
  placement scale_order = placement::row_major;  ///< order of the scales
  index_t code_stride = 0;                       ///< bytes, a multiple of 4; 0: dense; row_major only
  index_t scale_stride = 0;                      ///< bytes; 0: dense; row_major only
};

/// dequantize_ref on a device: `target` is rows × k (block_axis::row) or k × rows (block_axis::column), any strides.
/// Formats as quantize. One launch on `s`, no allocation. Any status but ok: nothing was launched.
status dequantize(block_format f, const quantized_source& q, block_axis axis, matrix<float> target, stream s,
                  float decode_factor = 1.0f);
/// To FP16.
status dequantize(block_format f, const quantized_source& q, block_axis axis, matrix<fp16> target, stream s,
                  float decode_factor = 1.0f);
/// To BF16.
status dequantize(block_format f, const quantized_source& q, block_axis axis, matrix<bf16> target, stream s,
                  float decode_factor = 1.0f);

}  // namespace rotoscale::gpu
