// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fast block quantizer, equal to quantize_ref by bytes. MXFP4 with nearest-even rounding, with or without H16, from
// FP32 and BF16 is vectorised (detail/mxfp4_lanes.hpp); the rest is the definition, threaded.
#pragma once

#include "rotoscale/detail/mxfp4_columns.hpp"
#include "rotoscale/detail/mxfp4_rows.hpp"

namespace rotoscale {

/// quantize_ref, threaded.
template <class T>
void quantize(block_format f, const block_options& o, matrix<T> source, block_axis axis, block_matrix<std::uint8_t> out,
              thread_pool& pool) {
  ROTOSCALE_ASSERT(quantize_is_defined(f, o, source, axis, out));
  if constexpr (std::is_same_v<std::remove_const_t<T>, float> || std::is_same_v<std::remove_const_t<T>, bf16>) {
    if (detail::mxfp4_lanes_apply(f, o, source)) {
      if (axis == block_axis::row) return detail::quantize_mxfp4_rows(o, source, out, pool);
      return detail::for_each_piece(pool, out.k, out.rows, [&](index_t r, index_t rows, index_t c0, index_t c1) {
        detail::quantize_column_band(o, source, out, r, rows, c0, c1);
      });
    }
  }
  pool.for_each(out.rows / f.rows, [&](index_t tile) { quantize_tile_ref(f, o, source, axis, out, tile); });
}

/// Both orientations of a source in one pass over it, each from the source itself (quantizing and transposing do not
/// commute): `rows` as block_axis::row would give it under row_options, `columns` as block_axis::column.
template <class T>
void quantize_both(block_format f, const block_options& row_options, block_matrix<std::uint8_t> rows,
                   const block_options& column_options, block_matrix<std::uint8_t> columns, matrix<T> source,
                   thread_pool& pool) {
  ROTOSCALE_ASSERT(quantize_is_defined(f, row_options, source, block_axis::row, rows));
  ROTOSCALE_ASSERT(quantize_is_defined(f, column_options, source, block_axis::column, columns));
  if constexpr (std::is_same_v<std::remove_const_t<T>, float> || std::is_same_v<std::remove_const_t<T>, bf16>) {
    if (detail::mxfp4_lanes_apply(f, row_options, source) && detail::mxfp4_lanes_apply(f, column_options, source)) {
      return detail::for_each_piece(
          pool, source.extent(0), source.extent(1), [&](index_t r, index_t n, index_t c0, index_t c1) {
            for (index_t i = r; i < r + n; ++i) {
              detail::quantize_run<false>(row_options, source, rows, i, c0 / 32, (c1 - c0) / 32);
            }
            detail::quantize_column_band(column_options, source, columns, r, n, c0, c1);
          });
    }
  }
  quantize(f, row_options, source, block_axis::row, rows, pool);
  quantize(f, column_options, source, block_axis::column, columns, pool);
}

}  // namespace rotoscale
