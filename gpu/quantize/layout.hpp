// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A quantized matrix's codes and scales in kernels' terms: strides that say where each is, and the launchers' checks.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/quantize/block.hpp"
#include "gpu/api/status.hpp"
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
  std::uint32_t code_row = 0;    ///< from one row to the next of a group of 16
  std::uint32_t code_row16 = 0;  ///< to the next group
  std::uint32_t code_piece = 0;  ///< from 16 bytes of a row to the next 16
  std::uint32_t scale_row =
      0;  ///< from one scale to that of the next row of 16, of the next 16 rows of 32, of the next
  std::uint32_t scale_row16 = 0;  ///< 32 rows of a tile, and of the next block of a tile
  std::uint32_t scale_row32 = 0;
  std::uint32_t scale_block = 0;
  unsigned padded_rows = 0;  ///< extents of placed scales; 0: nothing is padded
  unsigned padded_columns = 0;
  std::uint8_t padding = 0;
  plain_rule plain;
  block_options options;
};

/// Where the 16 bytes at `piece` of row `r` of the codes are, in either order.
__device__ inline index_t code_offset(const block_output& out, unsigned r, unsigned piece) {
  return r / 16 * (16 * out.code_stride) + r % 16 * index_t{out.code_row} + piece * index_t{out.code_piece};
}
/// From the first 16 bytes of a tile to those of its vector `v` and piece `piece`.
__device__ inline std::uint32_t code_in_tile(const block_output& out, unsigned v, unsigned piece) {
  return v / 16 * out.code_row16 + v % 16 * out.code_row + piece * out.code_piece;
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

/// From the offset of a tile's first scale to that of its vector `v` and block `b`: the same for all tiles, since they
/// begin at multiples of 32 vectors, and no tile crosses what the orders keep together of blocks.
__device__ inline std::uint32_t scale_in_tile(const block_output& out, unsigned v, unsigned b) {
  return v % 16 * out.scale_row + v / 16 % 2 * out.scale_row16 + v / 32 * out.scale_row32 + b * out.scale_block;
}

/// Names of a launcher's arguments, for its errors.
struct layout_names {
  const char *code_order, *scale_order, *code_stride, *scale_stride;
};

/// Fills the strides for `rows` × k elements of `f`, k a multiple of 32. Codes in row_major or aiter_data_16x16, scales
/// in any order but column_major and aiter_data_16x16; strides of 0: dense; rows of codes are multiples of `alignment`.
inline status prepare_layout(block_format f, placement code_order, placement scale_order, index_t code_stride,
                             index_t scale_stride, index_t rows, index_t k, index_t alignment,
                             const layout_names& names, block_output& out) {
  const layout codes = code_layout(code_order, f, rows, k), scales = scale_layout(scale_order, f, rows, k);
  const bool grouped = code_order == placement::aiter_data_16x16, placed = scale_order != placement::row_major;
  if ((code_order != placement::row_major && !grouped) || !codes.is_defined()) {
    return {fault::bad_extent, names.code_order,
            "must be row_major, or aiter_data_16x16 where rows % 16 == 0 and bytes of a row % 32 == 0"};
  }
  if (scale_order == placement::column_major || scale_order == placement::aiter_data_16x16) {
    return {fault::bad_option, names.scale_order, "is not an order of scales"};
  }
  constexpr index_t longest = index_t{1} << 24;  // 128 rows of a tile lie within 2^31 bytes
  const index_t dense = packed_bytes(f.element, k);
  out.code_stride = code_stride == 0 ? dense : code_stride;
  if (out.code_stride < dense || out.code_stride > longest || out.code_stride % alignment != 0 ||
      (grouped && out.code_stride != dense)) {
    return {fault::bad_extent, names.code_stride,
            "must be a multiple of the alignment, not less than a row, at most 2^24, and dense in a placement"};
  }
  out.scale_stride = placed ? scales.padded_columns() : scale_stride == 0 ? k / 32 : scale_stride;
  if (out.scale_stride < k / 32 || out.scale_stride > longest || (placed && scale_stride != 0)) {
    return {fault::bad_extent, names.scale_stride, "must not be less than a row, at most 2^24, and 0 in a placement"};
  }
  const bool of_128 = scale_order == placement::nvidia_scale_128x4;
  out.scale_order = scale_order;
  const auto codes_of_row = static_cast<std::uint32_t>(out.code_stride);
  const auto scales_of_row = static_cast<std::uint32_t>(out.scale_stride);
  out.code_row = grouped ? 16 : codes_of_row;
  out.code_row16 = 16 * codes_of_row;
  out.code_piece = grouped ? 256 : 16;
  out.scale_row = !placed ? scales_of_row : of_128 ? 16 : 4;
  out.scale_row16 = !placed ? 16 * scales_of_row : of_128 ? 256 : 1;
  out.scale_row32 = of_128 ? 4 : 32 * scales_of_row;
  out.scale_block = !placed || of_128 ? 1 : 64;
  out.padded_rows = placed ? static_cast<unsigned>(scales.padded_rows()) : 0;
  out.padded_columns = placed ? static_cast<unsigned>(scales.padded_columns()) : 0;
  return {};
}

/// 32 elements of E2M1, E4M3 or E5M2 with E8M0 scales, one-dimensional or square.
constexpr bool is_known_format(block_format f) {
  const block_format row{f.element, f.length, f.scale};
  return (row == mxfp4 || row == mxfp8_e4m3 || row == mxfp8_e5m2) && (f.rows == 1 || f.rows == f.length);
}

}  // namespace rotoscale::gpu
