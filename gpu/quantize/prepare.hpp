// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Common to the quantizers' launchers: checks of arguments, and their conversion to kernel arguments.
#pragma once

#include "gpu/api/device.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/quantize/layout.hpp"
#include "gpu/quantize/source_tile.hpp"

namespace rotoscale::gpu::detail {

inline constexpr index_t max_extent = index_t{1} << 24;  // kernels count bytes of a tile in 32 bits

/// Checks a launcher's argument `source` and fills `to`. Returns the first error.
template <class T>
status prepare_source(matrix<const T> source, tile_source& to) {
  const index_t m = source.extent(0), n = source.extent(1);
  if (m < 0 || n < 0 || m > max_extent || n > max_extent) {
    return {error_code::bad_extent, "source", "extents must be 0 to 2^24"};
  }
  to.rows = static_cast<unsigned>(m);
  to.columns = static_cast<unsigned>(n);
  if (m == 0 || n == 0) return {};
  to.data = source.data;
  to.stride = source.stride(0);
  to.column_stride = source.stride(1);
  to.vectors = to.column_stride == 1 && reinterpret_cast<std::uintptr_t>(to.data) % 16 == 0 &&
               to.stride * static_cast<index_t>(sizeof(T)) % 16 == 0;
  return check_pointer(to.data, sizeof(T), "source");
}

/// True if `source` is the transpose of a matrix with contiguous rows. Launchers then read that matrix.
template <class T>
bool is_transposed(matrix<const T> source) {
  return source.stride(0) == 1 && source.stride(1) != 1;
}

/// Names of a launcher's arguments for error messages.
struct layout_names {
  const char *code_order, *scale_order, *code_stride, *scale_stride;
};

/// Checks orders and strides for `rows` × k elements of `f`, k a multiple of 32, and fills the strides of `out`. Codes
/// are in row_major or aiter_data_16x16, scales in any order but column_major and aiter_data_16x16. A stride of 0 means
/// dense. Rows of codes are multiples of `alignment` bytes.
inline status prepare_layout(block_format f, placement code_order, placement scale_order, index_t code_stride,
                             index_t scale_stride, index_t rows, index_t k, index_t alignment,
                             const layout_names& names, block_output& out) {
  const layout codes = code_layout(code_order, f, rows, k), scales = scale_layout(scale_order, f, rows, k);
  const bool grouped = code_order == placement::aiter_data_16x16, placed = scale_order != placement::row_major;
  if (grouped && f.element.bits() == 6) return {error_code::bad_option, names.code_order, "6-bit codes are row_major"};
  if (placed && f.length != 32) return {error_code::bad_option, names.scale_order, "blocks of 16 are row_major"};
  if ((code_order != placement::row_major && !grouped) || !codes.is_defined()) {
    return {error_code::bad_extent, names.code_order,
            "must be row_major, or aiter_data_16x16 where rows % 16 == 0 and bytes of a row % 32 == 0"};
  }
  // The orders that scale_offset (layout.hpp) supports.
  if (placed && scale_order != placement::nvidia_scale_128x4 && scale_order != placement::aiter_scale &&
      scale_order != placement::hipblaslt_scale_32x8) {
    return {error_code::bad_option, names.scale_order, "is not an order of scales"};
  }
  constexpr index_t longest = index_t{1} << 24;  // 128 rows of a tile lie within 2^31 bytes
  const index_t dense = packed_bytes(f.element, k);
  out.code_stride = code_stride == 0 ? dense : code_stride;
  if (out.code_stride < dense || out.code_stride > longest || out.code_stride % alignment != 0 ||
      (grouped && out.code_stride != dense)) {
    return {error_code::bad_extent, names.code_stride,
            "must be a multiple of the alignment, not less than a row, at most 2^24, and dense in a placement"};
  }
  out.scale_stride = placed ? scales.padded_columns() : scale_stride == 0 ? k / f.length : scale_stride;
  if (out.scale_stride < k / f.length || out.scale_stride > longest || (placed && scale_stride != 0)) {
    return {error_code::bad_extent, names.scale_stride,
            "must not be less than a row, at most 2^24, and 0 in a placement"};
  }
  const bool of_128 = scale_order == placement::nvidia_scale_128x4;
  out.scale_order = scale_order;
  const auto codes_of_row = static_cast<std::uint32_t>(out.code_stride);
  const auto scales_of_row = static_cast<std::uint32_t>(out.scale_stride);
  out.code_row = grouped ? 16 : codes_of_row;
  out.code_row16 = 16 * codes_of_row;
  out.code_vec = grouped ? 256 : f.element.bits() == 6 ? 8 : 16;
  out.scale_row = !placed ? scales_of_row : of_128 ? 16 : 4;
  out.scale_row16 = !placed ? 16 * scales_of_row : of_128 ? 256 : 1;
  out.scale_row32 = of_128 ? 4 : 32 * scales_of_row;
  out.scale_block = !placed || of_128 ? 1 : 64;
  out.scale_block4 = !placed ? 4 : of_128 ? 512 : 2;
  out.scale_block8 = !placed ? 8 : of_128 ? 1024 : 256;
  out.padded_rows = placed ? static_cast<unsigned>(scales.padded_rows()) : 0;
  out.padded_columns = placed ? static_cast<unsigned>(scales.padded_columns()) : 0;
  return {};
}

}  // namespace rotoscale::gpu::detail
