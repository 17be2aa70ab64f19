// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Memory layouts of GEMM operands: each placement maps (row, column) to an offset and back, in integers only. A shape
// cannot tell a permuted array from a plain one (pytorch/pytorch#190290), so the layout is a value that travels with
// the pointer. All of them are drawn in docs/reference/layouts.md, with their users.
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/view.hpp"

namespace rotoscale {

/// The order of a matrix of bytes: packed codes, or scales of one byte (rows × k / block length).
enum class placement {
  row_major,             ///< as the quantizers write; hipBLASLt's VEC32_UE8M0
  column_major,          ///< the transpose: columns of the matrix are contiguous
  aiter_data_16x16,      ///< AITER's shuffle_weight(layout=(16, 16)): tiles of 16 rows in runs of 16 bytes
  aiter_scale,           ///< AITER's shuffle_scale (e8m0_shuffle) for gfx950, padded to 256 rows × 8 columns
  hipblaslt_scale_32x8,  ///< the same order padded to 32 × 8: hipBLASLt's BLK32_UE8M0_32_8_EXT
  nvidia_scale_128x4     ///< cuBLAS "1D block scaling factors layout", torchao's to_blocked; padded to 128 × 4
};

/// A position in a matrix, which may be in the padding.
struct matrix_position {
  index_t row;     ///< from 0
  index_t column;  ///< from 0, in bytes of codes or in scales
  ROTOSCALE_ISA_TAG constexpr bool operator==(const matrix_position&) const = default;
};

/// Extents of a matrix or of a tile.
struct matrix_extents {
  index_t rows;     ///< number of rows
  index_t columns;  ///< number of columns
  ROTOSCALE_ISA_TAG constexpr bool operator==(const matrix_extents&) const = default;
};

namespace detail {
/// Offset of (r, c) in the tile at row 0, column 0; see layout::tile.
ROTOSCALE_HD constexpr index_t offset_in_tile(placement order, index_t r, index_t c) {
  switch (order) {
    case placement::row_major: return 0;
    case placement::column_major: return r;
    case placement::aiter_data_16x16: return r * 16 + c;
    case placement::aiter_scale:
    case placement::hipblaslt_scale_32x8: return c % 4 * 64 + r % 16 * 4 + c / 4 * 2 + r / 16;
    case placement::nvidia_scale_128x4: return r % 32 * 16 + r / 32 * 4 + c;
  }
  return 0;
}

/// Inverse of offset_in_tile.
ROTOSCALE_HD constexpr matrix_position position_in_tile(placement order, index_t offset) {
  switch (order) {
    case placement::row_major: return {0, 0};
    case placement::column_major: return {offset, 0};
    case placement::aiter_data_16x16: return {offset / 16, offset % 16};
    case placement::aiter_scale:
    case placement::hipblaslt_scale_32x8: return {offset % 2 * 16 + offset / 4 % 16, offset / 2 % 2 * 4 + offset / 64};
    case placement::nvidia_scale_128x4: return {offset / 4 % 4 * 32 + offset / 16, offset % 4};
  }
  return {0, 0};
}

ROTOSCALE_HD constexpr index_t round_up(index_t n, index_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
}  // namespace detail

/// A placement of a matrix of `rows` × `columns` bytes. Padded extents follow from it.
struct layout {
  placement order = placement::row_major;  ///< the order of bytes
  index_t rows = 0;                        ///< rows of the matrix, without padding
  index_t columns = 0;                     ///< columns of the matrix in bytes, without padding

  ROTOSCALE_ISA_TAG constexpr bool operator==(const layout&) const = default;

  /// Extents of a tile, which is contiguous in memory. Tiles are in row-major order.
  ROTOSCALE_HD constexpr matrix_extents tile() const {
    switch (order) {
      case placement::row_major: return {1, 1};
      case placement::column_major: return {rows, 1};
      case placement::aiter_data_16x16: return {16, 16};
      case placement::aiter_scale:
      case placement::hipblaslt_scale_32x8: return {32, 8};
      case placement::nvidia_scale_128x4: return {128, 4};
    }
    return {1, 1};
  }

  /// Padded extents are multiples of this: whole tiles, or more where a layout's users require it. AITER's data has no
  /// padding; there the extents themselves must be multiples (is_defined).
  ROTOSCALE_HD constexpr matrix_extents granularity() const {
    switch (order) {
      case placement::row_major:
      case placement::column_major: return {1, 1};
      case placement::aiter_data_16x16: return {16, 32};
      case placement::aiter_scale: return {256, 8};
      case placement::hipblaslt_scale_32x8: return {32, 8};
      case placement::nvidia_scale_128x4: return {128, 4};
    }
    return {1, 1};
  }

  /// Rows in memory.
  ROTOSCALE_HD constexpr index_t padded_rows() const { return detail::round_up(rows, granularity().rows); }
  /// Columns in memory.
  ROTOSCALE_HD constexpr index_t padded_columns() const { return detail::round_up(columns, granularity().columns); }

  /// Bytes of an array in this layout, padding included.
  ROTOSCALE_HD constexpr index_t size_bytes() const { return padded_rows() * padded_columns(); }

  /// Do these extents exist in this placement? Scales are padded, but AITER's data is not. Its kernels take rows % 16
  /// == 0 and packed columns % 32 == 0 (along K 64 FP4 elements, or 32 of 8 bits). The functions below assert it.
  ROTOSCALE_HD constexpr bool is_defined() const {
    if (rows < 0 || columns < 0) return false;
    return order != placement::aiter_data_16x16 || (padded_rows() == rows && padded_columns() == columns);
  }

  /// Offset of byte (r, c), for r < padded_rows() and c < padded_columns().
  ROTOSCALE_HD constexpr index_t offset(index_t r, index_t c) const {
    ROTOSCALE_ASSERT(is_defined() && r >= 0 && r < padded_rows() && c >= 0 && c < padded_columns());
    const matrix_extents t = tile();
    const index_t tiles_across = padded_columns() / t.columns;  // padded, not `columns`: ROCm/aiter#2900
    return (r / t.rows * tiles_across + c / t.columns) * (t.rows * t.columns) +
           detail::offset_in_tile(order, r % t.rows, c % t.columns);
  }

  /// Inverse of offset, for offset < size_bytes().
  ROTOSCALE_HD constexpr matrix_position position(index_t offset) const {
    ROTOSCALE_ASSERT(is_defined() && offset >= 0 && offset < size_bytes());
    const matrix_extents t = tile();
    const index_t tiles_across = padded_columns() / t.columns;
    const index_t index = offset / (t.rows * t.columns);
    const matrix_position in_tile = detail::position_in_tile(order, offset % (t.rows * t.columns));
    return {index / tiles_across * t.rows + in_tile.row, index % tiles_across * t.columns + in_tile.column};
  }

  /// Is the position outside the matrix?
  ROTOSCALE_HD constexpr bool is_padding(matrix_position p) const { return p.row >= rows || p.column >= columns; }
};

/// Can place read `source`, and gather write it? Each of its rows fills `repeat` rows of the layout.
ROTOSCALE_HD constexpr bool place_is_defined(matrix<const std::uint8_t> source, layout l, index_t repeat = 1) {
  return l.is_defined() && repeat >= 1 && source.extent(0) * repeat == l.rows && source.extent(1) == l.columns;
}

/// Writes all l.size_bytes() bytes of `target`, which must not overlap `source`: each row of the matrix `repeat` times,
/// and `padding` everywhere else.
ROTOSCALE_HD constexpr void place(matrix<const std::uint8_t> source, layout l, std::uint8_t* target,
                                  std::uint8_t padding, index_t repeat = 1) {
  ROTOSCALE_ASSERT(place_is_defined(source, l, repeat));
  for (index_t i = 0; i < l.size_bytes(); ++i) {
    const matrix_position p = l.position(i);
    target[i] = l.is_padding(p) ? padding : source(p.row / repeat, p.column);
  }
}

/// Inverse of place: fills `target` from an array in layout `l`. Padding is not read. Of `repeat` equal rows the first
/// is used.
ROTOSCALE_HD constexpr void gather(const std::uint8_t* source, layout l, matrix<std::uint8_t> target,
                                   index_t repeat = 1) {
  ROTOSCALE_ASSERT(place_is_defined(target, l, repeat));
  for (index_t r = 0; r < target.extent(0); ++r) {
    for (index_t c = 0; c < l.columns; ++c) target(r, c) = source[l.offset(r * repeat, c)];
  }
}

/// The scale 1 as a byte: neutral padding of scales. In E8M0, byte 0 would be 2^-127 and 0xFF is NaN.
ROTOSCALE_HD constexpr std::uint8_t unit_scale(format scale) { return static_cast<std::uint8_t>(encode(scale, 1.0f)); }

/// The code bytes of a quantized matrix: [rows, packed k].
template <class Byte>
ROTOSCALE_HD constexpr matrix<Byte> code_bytes(block_format f, block_matrix<Byte> m) {
  return row_major(m.codes, m.rows, packed_bytes(f.element, m.k), m.code_stride);
}
/// The scale bytes of a quantized matrix: [rows / f.rows, k / f.length].
template <class Byte>
ROTOSCALE_HD constexpr matrix<Byte> scale_bytes(block_format f, block_matrix<Byte> m) {
  return row_major(m.scales, m.rows / f.rows, m.k / f.length, m.scale_stride);
}

/// Layout of the codes of a rows × k matrix.
ROTOSCALE_HD constexpr layout code_layout(placement order, block_format f, index_t rows, index_t k) {
  return {order, rows, packed_bytes(f.element, k)};
}
/// Layout of the scales of a rows × k matrix. GEMM kernels take a scale per row, so a scale that f.rows rows share is
/// repeated.
ROTOSCALE_HD constexpr layout scale_layout(placement order, block_format f, index_t rows, index_t k) {
  return {order, rows, k / f.length};
}

/// Places the codes of a quantized matrix: code_layout(order, f, from.rows, from.k).size_bytes() bytes. Padding is code
/// 0.
ROTOSCALE_HD constexpr void place_codes(block_format f, block_matrix<const std::uint8_t> from, placement order,
                                        std::uint8_t* target) {
  place(code_bytes(f, from), code_layout(order, f, from.rows, from.k), target, 0);
}

/// Places the scales of a quantized matrix: scale_layout(order, f, from.rows, from.k).size_bytes() bytes, padded with
/// `padding`. Pass 0 if bytes are compared with arrays of cuBLAS, which documents zeros.
ROTOSCALE_HD constexpr void place_scales(block_format f, block_matrix<const std::uint8_t> from, placement order,
                                         std::uint8_t* target, std::uint8_t padding) {
  place(scale_bytes(f, from), scale_layout(order, f, from.rows, from.k), target, padding, f.rows);
}
/// place_scales, padded with the scale 1.
ROTOSCALE_HD constexpr void place_scales(block_format f, block_matrix<const std::uint8_t> from, placement order,
                                         std::uint8_t* target) {
  place_scales(f, from, order, target, unit_scale(f.scale));
}

/// Inverse of place_codes. The source may also come from a kernel.
ROTOSCALE_HD constexpr void gather_codes(block_format f, const std::uint8_t* source, placement order,
                                         block_matrix<std::uint8_t> to) {
  gather(source, code_layout(order, f, to.rows, to.k), code_bytes(f, to));
}
/// Inverse of place_scales. The source may also come from a kernel.
ROTOSCALE_HD constexpr void gather_scales(block_format f, const std::uint8_t* source, placement order,
                                          block_matrix<std::uint8_t> to) {
  gather(source, scale_layout(order, f, to.rows, to.k), scale_bytes(f, to), f.rows);
}

static_assert(unit_scale(formats::e8m0) == unit_scale_byte && unit_scale(formats::ue4m3) == 0x38);
static_assert(layout{placement::aiter_scale, 1, 1}.size_bytes() == 2048);

}  // namespace rotoscale
