// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arrays of rotoscale-quantize: reading with padding, the loss of a result, and decoding of stored codes.
#pragma once

#include <string>
#include <utility>

#include "examples/validate/quantizer/dump.hpp"

namespace rotoscale::quantize_program {

using namespace rotoscale::validate;

/// Reads the tensor to be quantized from an .npy file, or from a safetensors file: the tensor `name`, or the only one.
/// The last extent becomes the columns. Throws io::error.
quantizer_dump read_array(const std::string& path, const std::string& name);

/// Rows and columns that the blocks and rotations of these sides need a multiple of.
std::pair<index_t, index_t> whole_extents(const quantizer& q, bool by_row, bool by_column);

/// Grows the source to these extents, with zeros.
void pad_with_zeros(quantizer_dump& dump, index_t rows, index_t cols);

/// The values of codes, rotated back, in the source's orientation.
std::vector<float> decode_side(const quantizer& q, const dump_side& side, const dense_side& stored, thread_pool& pool);

/// Losses of one orientation.
struct side_loss {
  double sqnr = 0;                     ///< dB, over the elements without padding
  index_t elements = 0, nonzero = 0;   ///< as the blocks see them: rounded to the source format and rotated
  index_t saturated = 0, flushed = 0;  ///< beyond the largest number under the scale; not 0, but stored as 0
};
side_loss loss_of(const quantizer& q, const quantizer_dump& dump, const dump_side& side, const dense_side& result,
                  index_t rows, index_t cols, thread_pool& pool);

}  // namespace rotoscale::quantize_program
