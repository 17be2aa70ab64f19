// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A quantized matrix's codes and scales in kernels' terms: strides that say where each is.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/quantize/block.hpp"
#include "rotoscale/layout.hpp"

namespace rotoscale::gpu {

/// One orientation of a quantized matrix.
struct block_output {
  std::uint8_t* codes = nullptr;  ///< null: not wanted
  std::uint8_t* scales = nullptr;
  placement scale_order = placement::row_major;
  index_t code_stride = 0;   ///< bytes of a row of codes
  index_t scale_stride = 0;  ///< scales of a row; padded columns for placements
  // Within a tile, in 32 bits.
  std::uint32_t code_row = 0;     ///< from one row to the next of a group of 16
  std::uint32_t code_row16 = 0;   ///< to the next group
  std::uint32_t code_vec = 0;     ///< from 16 bytes of a row to the next 16
  std::uint32_t scale_row = 0;    ///< from one scale to the next row's, within 16 rows
  std::uint32_t scale_row16 = 0;  ///< to that 16 rows below, within 32
  std::uint32_t scale_row32 = 0;  ///< to that 32 rows below
  std::uint32_t scale_block = 0;  ///< to the next block's
  // From tile to tile.
  std::uint32_t scale_block4 = 0;  ///< from that of block 8 i to that of block 8 i + 4
  std::uint32_t scale_block8 = 0;  ///< to that of block 8 i + 8
  bool has_scale_words = false;    ///< scales of blocks 4 i to 4 i + 3 of a row are one aligned word
  unsigned padded_rows = 0;        ///< extents of placed scales; 0: nothing is padded
  unsigned padded_columns = 0;
  std::uint8_t padding = 0;
  /// Random words: element i of vector v takes word random_first + v * random_step + i.
  std::uint64_t random_first = 0, random_step = 0;
  fast_rule fast;
  block_options options;
  const block_options* drawn = nullptr;  ///< device memory, not null: instead of `options`
};

/// Where the 16 bytes at `vec` of row `r` of the codes are, in either order.
__device__ inline index_t code_offset(const block_output& out, unsigned r, unsigned vec) {
  return r / 16 * (16 * out.code_stride) + r % 16 * index_t{out.code_row} + vec * index_t{out.code_vec};
}
/// From the first 16 bytes of a tile to those of its vector `v` and vector `vec`.
__device__ inline std::uint32_t code_in_tile(const block_output& out, unsigned v, unsigned vec) {
  return v / 16 * out.code_row16 + v % 16 * out.code_row + vec * out.code_vec;
}

/// The same as code_offset where `r` is a multiple of 16.
__device__ inline index_t tile_code_offset(const block_output& out, unsigned r, unsigned vec) {
  return static_cast<index_t>(std::uint64_t{r} * static_cast<std::uint32_t>(out.code_stride) + vec * out.code_vec);
}

/// layout::offset for scales, row and column within the padded extents.
__device__ inline index_t scale_offset(const block_output& out, unsigned r, unsigned c) {
  if (out.scale_order == placement::row_major) return r * out.scale_stride + c;
  if (out.scale_order == placement::nvidia_scale_128x4) {
    return r / 128 * (out.scale_stride * 128) + c / 4 * index_t{512} +
           rotoscale::detail::offset_in_tile(placement::nvidia_scale_128x4, r % 128, c % 4);
  }
  return r / 32 * (out.scale_stride * 32) + c / 8 * index_t{256} +
         rotoscale::detail::offset_in_tile(placement::aiter_scale, r % 32, c % 8);
}

/// The same for a tile's first, `r` a multiple of its vectors and `c` of their blocks; tiles of `Rows` × 128.
template <unsigned Rows>
__device__ inline index_t tile_scale_offset(const block_output& out, unsigned r, unsigned c) {
  if constexpr (Rows % 128 != 0) return scale_offset(out, r, c);
  return static_cast<index_t>(std::uint64_t{r} * static_cast<std::uint32_t>(out.scale_stride) +
                              c / 8 * out.scale_block8 + c / 4 % 2 * out.scale_block4);
}

/// Offset of scale (v, b) from its tile's first; equal for all tiles, which begin at multiples of 32 vectors and cross
/// no tile of the layout.
__device__ inline std::uint32_t scale_in_tile(const block_output& out, unsigned v, unsigned b) {
  return v % 16 * out.scale_row + v / 16 % 2 * out.scale_row16 + v / 32 * out.scale_row32 + b * out.scale_block;
}

}  // namespace rotoscale::gpu
