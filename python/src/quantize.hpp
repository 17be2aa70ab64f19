// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments that several functions of the module take.
#pragma once

#include <string_view>

#include "arrays.hpp"
#include "rotoscale/block.hpp"

namespace rotoscale::python {

/// The block format of that name, with a scale per row or per square.
block_format blocks_named(const std::string& name, bool square);

/// Bit i % 8 of signs[i / 8] negates element i of a run.
rotation make_rotation(int points, std::string_view signs);

/// The arguments of quantize without its source. Python keeps one per set of arguments.
struct quantize_request {
  block_format f;
  block_options o;
  bool two_levels = false;  ///< takes encode_factor from the tensor's amax
  int axis = -1;            ///< as the caller counts axes
};
quantize_request make_request(const std::string& preset, const std::string& format_name, const text& source,
                              const text& scale_rule_name, const text& rounding_name,
                              const std::optional<rotation>& turned, const text& policy, std::uint64_t seed,
                              std::uint64_t stream, int random_count, std::optional<float> encode_factor,
                              bool two_levels, bool square, int axis, const text& scale_choice_name);

/// The source as `rows` vectors of k elements along the blocks, and the shapes of the result. The result keeps the
/// source's leading axes. Along axis 0 it is transposed.
struct result_shape {
  block_axis axis = block_axis::row;
  index_t rows = 0, k = 0;
  extents codes, scales;
};
/// Throws ValueError naming what does not fit a source of shape `x`.
result_shape shape_of(const quantize_request& r, const extents& x);

/// Writes codes and scales of those shapes and returns 1 / encode_factor. Needs no GIL.
/// Throws TypeError for another format than FP32, FP64, BF16 and FP16, ValueError for strides and options.
float quantize_view(const quantize_request& r, const array_view& x, const result_shape& shape, std::uint8_t* codes,
                    std::uint8_t* scales);

/// The shape of the numbers of dense codes and scales. Throws ValueError if those do not belong together.
extents values_shape(block_format f, const array_view& codes, const array_view& scales);

/// Writes those numbers, times the factor and with the rotation undone. Needs no GIL.
void dequantize_view(block_format f, const rotation& turned, const array_view& codes, const array_view& scales,
                     float decode_factor, float* out);

}  // namespace rotoscale::python
