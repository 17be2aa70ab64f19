// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Strides that address the codes and scales of a quantized matrix in kernels, in every supported order.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/quantize/made_options.hpp"
#include "rotoscale/layout.hpp"

namespace rotoscale::gpu {

/// One orientation of a quantized matrix.
struct block_output : made_options {
  std::uint8_t* codes = nullptr;  ///< null: not computed
  std::uint8_t* scales = nullptr;
  placement scale_order = placement::row_major;
  index_t code_stride = 0;   ///< bytes of a row of codes
  index_t scale_stride = 0;  ///< scales per row; padded columns for placements
  // Offsets within a tile, in bytes, as 32-bit numbers.
  std::uint32_t code_row = 0;     ///< to the next row within a group of 16
  std::uint32_t code_row16 = 0;   ///< to the next group of 16 rows
  std::uint32_t code_vec = 0;     ///< to the next 16 bytes of a row
  std::uint32_t scale_row = 0;    ///< to the next row's scale, within 16 rows
  std::uint32_t scale_row16 = 0;  ///< to the scale 16 rows below, within 32 rows
  std::uint32_t scale_row32 = 0;  ///< to the scale 32 rows below
  std::uint32_t scale_block = 0;  ///< to the next block's scale
  // Offsets between tiles.
  std::uint32_t scale_block4 = 0;  ///< from block 8 i to block 8 i + 4
  std::uint32_t scale_block8 = 0;  ///< from block 8 i to block 8 i + 8
  bool has_scale_words = false;    ///< the scales of blocks 4 i to 4 i + 3 of a row are one aligned word
  unsigned padded_rows = 0;        ///< padded extents of placed scales; 0: no padding
  unsigned padded_columns = 0;
  std::uint8_t padding = 0;
  /// Random words: element i of vector v uses word random_first + v * random_step + i.
  std::uint64_t random_first = 0, random_step = 0;
  bool exact = false;        ///< all runs are off the fast path
  bool bf16_source = false;  ///< FP32 sources are rounded to BF16 first
};

/// Offset of the 16 bytes `vec` of row `r` of the codes, in either order.
__device__ inline index_t code_offset(const block_output& out, unsigned r, unsigned vec) {
  return r / 16 * (16 * out.code_stride) + r % 16 * index_t{out.code_row} + vec * index_t{out.code_vec};
}
/// Offset of 16 bytes `vec` of row `v` from the tile's first 16 bytes.
__device__ inline std::uint32_t code_in_tile(const block_output& out, unsigned v, unsigned vec) {
  return v / 16 * out.code_row16 + v % 16 * out.code_row + vec * out.code_vec;
}

/// code_offset for `r` a multiple of 16.
__device__ inline index_t tile_code_offset(const block_output& out, unsigned r, unsigned vec) {
  return static_cast<index_t>(std::uint64_t{r} * static_cast<std::uint32_t>(out.code_stride) + vec * out.code_vec);
}

/// layout::offset for scales. Row and column are within the padded extents.
__device__ inline index_t scale_offset(const block_output& out, unsigned r, unsigned c) {
  if (out.scale_order == placement::row_major) return r * out.scale_stride + c;
  if (out.scale_order == placement::nvidia_scale_128x4) {
    return r / 128 * (out.scale_stride * 128) + c / 4 * index_t{512} +
           rotoscale::detail::offset_in_tile(placement::nvidia_scale_128x4, r % 128, c % 4);
  }
  return r / 32 * (out.scale_stride * 32) + c / 8 * index_t{256} +
         rotoscale::detail::offset_in_tile(placement::aiter_scale, r % 32, c % 8);
}

/// scale_offset of the first scale of a tile of `Rows` × 128. `r` is a multiple of the tile's vectors and `c` of its
/// blocks.
template <unsigned Rows>
__device__ inline index_t tile_scale_offset(const block_output& out, unsigned r, unsigned c) {
  if constexpr (Rows % 128 != 0) return scale_offset(out, r, c);
  return static_cast<index_t>(std::uint64_t{r} * static_cast<std::uint32_t>(out.scale_stride) +
                              c / 8 * out.scale_block8 + c / 4 % 2 * out.scale_block4);
}

/// Offset of scale (v, b) from its tile's first scale. It is the same for all tiles: they begin at multiples of 32
/// vectors and cross no tile of the layout.
__device__ inline std::uint32_t scale_in_tile(const block_output& out, unsigned v, unsigned b) {
  return v % 16 * out.scale_row + v / 16 % 2 * out.scale_row16 + v / 32 * out.scale_row32 + b * out.scale_block;
}

}  // namespace rotoscale::gpu
