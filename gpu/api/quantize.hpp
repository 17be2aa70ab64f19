// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block quantizers on a device, equal to quantize_ref by bytes: rotation, scale, codes, packing and placement of one or
// both orientations in one launch.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu {

/// One orientation of a quantized matrix: as block_matrix of M × N (rows) or N × M (columns) elements, in an order that
/// a kernel wants. Codes in row_major or aiter_data_16x16, scales in any order but column_major and aiter_data_16x16.
struct quantized {
  std::uint8_t* codes = nullptr;  ///< device memory, aligned to 16 bytes; null: this orientation is not wanted
  std::uint8_t* scales = nullptr;
  block_options options;
  placement code_order = placement::row_major;
  placement scale_order = placement::row_major;
  index_t code_stride = 0;   ///< bytes, a multiple of 16; 0: dense; row_major only
  index_t scale_stride = 0;  ///< bytes; 0: dense; row_major only
  std::uint8_t scale_padding = unit_scale_byte;
};

namespace detail {

/// Checks one orientation, `vectors` × k, and fills the kernel's terms.
inline status prepare_output(block_format f, const quantized& q, index_t vectors, index_t k, bool is_row,
                             block_output& out) {
  const auto name = [is_row](const char* row, const char* column) { return is_row ? row : column; };
  const block_options& o = q.options;
  if (k % 32 != 0) {
    return {fault::bad_extent, "source",
            name("row-wise blocks need a number of columns that is a multiple of 32",
                 "column-wise blocks need a number of rows that is a multiple of 32")};
  }
  if (vectors % f.rows != 0) {
    return {fault::bad_extent, "source", "square blocks need extents that are multiples of 32"};
  }
  if (status s = check_pointer(q.codes, 16, name("rows.codes", "columns.codes")); !s.ok()) return s;
  if (status s = check_pointer(q.scales, 1, name("rows.scales", "columns.scales")); !s.ok()) return s;
  if (o.rotation.points != 0 && o.rotation.points != 16) {
    return {fault::bad_option, name("rows.options.rotation", "columns.options.rotation"), "must have 0 or 16 points"};
  }
  if (!options_are_defined(f, o)) {
    return {fault::bad_option, name("rows.options", "columns.options"), "random_count must be 1 to 32"};
  }
  if (status s = prepare_layout(
          f, q.code_order, q.scale_order, q.code_stride, q.scale_stride, vectors, k, 16,
          {name("rows.code_order", "columns.code_order"), name("rows.scale_order", "columns.scale_order"),
           name("rows.code_stride", "columns.code_stride"), name("rows.scale_stride", "columns.scale_stride")},
          out);
      !s.ok()) {
    return s;
  }
  out.codes = q.codes;
  out.scales = q.scales;
  out.padding = q.scale_padding;
  out.options = o;
  out.plain = make_plain_rule(f.element, o);
  return {};
}

/// Does the short way know this source? FP16 and BF16 as they are stored, FP32 so or rounded to BF16.
template <class T>
constexpr bool source_is_plain(const format& source) {
  if (source == formats::fp32) return true;
  return source == formats::bf16 && !std::is_same_v<T, fp16>;
}

template <class T, class Element>
status launch_quantize(quantize_args a, tile_way way, hipStream_t stream) {
  // Padded scales reach beyond the matrix, by less than 256 elements either way.
  const index_t pad = a.row.padded_rows != 0 || a.column.padded_rows != 0 ? 256 : 1;
  const auto tiles = [pad](unsigned extent, unsigned tile) {
    return static_cast<unsigned>((rotoscale::detail::round_up(extent, pad) + tile - 1) / tile);
  };
  a.tiles_across = tiles(a.columns, tile_columns);
  const std::uint64_t count = std::uint64_t{a.tiles_across} * tiles(a.rows, tile_rows<T>);
  if (count > 0x7FFFFFFFu) return {fault::bad_extent, "source", "has more than 2^31 tiles"};
  a.tiles = static_cast<std::uint32_t>(count);
  const unsigned resident = quantize_blocks_per_processor<Element::format> * device_processors();
  // Where less than half of the blocks have a tile in the last round, two share one.
  const std::uint32_t last = a.tiles % resident;
  const bool both = a.row.codes != nullptr && a.column.codes != nullptr;
  a.whole_tiles = both && 2 * last <= resident ? a.tiles - last : a.tiles;
  const std::uint32_t items = 2 * a.tiles - a.whole_tiles;
  const dim3 grid{items < resident ? items : resident, 1, 1};
  const auto kernel = way == tile_way::exact  ? quantize_kernel<T, Element, tile_way::exact>
                      : way == tile_way::full ? quantize_kernel<T, Element, tile_way::full>
                      : way == tile_way::h16  ? quantize_kernel<T, Element, tile_way::h16>
                                              : quantize_kernel<T, Element, tile_way::unrotated>;
  return launch(kernel, grid, dim3{tile_threads, 1, 1}, quantize_shared_bytes<T, Element>, stream, a);
}

}  // namespace detail

/// Quantizes M × N `source` (float, fp16 or bf16; any strides) into `rows` (M × N, blocks along N) and/or `columns`
/// (N × M, blocks along M, from the source itself). Formats: 32 elements of E2M1, E4M3 or E5M2 with E8M0 scales,
/// one-dimensional or square_blocks. The rotation has 0 or 16 points. Padding of scales is written. Reads 16 bytes at a
/// time where rows, or of a transpose columns, are contiguous and begin at multiples of 16 bytes, else one by one.
/// One launch on `stream`, no allocation. Any status but ok: nothing was launched.
template <class T>
status quantize(block_format f, matrix<const T> source, const quantized& rows, const quantized& columns,
                hipStream_t stream) {
  if (!is_known_format(f)) {
    return {fault::bad_option, "f", "must be mxfp4, mxfp8_e4m3 or mxfp8_e5m2, or square_blocks of one"};
  }
  quantize_args a;
  // Rows of a transpose are columns of what is in memory: the same blocks, in the same order.
  const bool flipped = is_transposed(source);
  if (status s = prepare_source(flipped ? transposed(source) : source, a); !s.ok()) return s;
  const index_t m = source.extent(0), n = source.extent(1);
  if (m == 0 || n == 0) return {};
  if (rows.codes == nullptr && columns.codes == nullptr) {
    return {fault::bad_pointer, "rows.codes", "must not be null where columns.codes is null"};
  }
  a.square = f.rows != 1;
  bool exactly = a.square, full = false, rotated = false, unrotated = false;
  for (const bool is_row : {true, false}) {
    const quantized& q = is_row ? rows : columns;
    if (q.codes == nullptr) continue;
    block_output& out = is_row != flipped ? a.row : a.column;
    const status s = detail::prepare_output(f, q, is_row ? m : n, is_row ? n : m, is_row, out);
    if (!s.ok()) return s;
    full = full || out.plain.signs != 0 || q.options.rule == scale_rule::floor;
    (out.plain.rotates ? rotated : unrotated) = true;
    exactly = exactly || !out.plain.applies || !detail::source_is_plain<T>(q.options.source);
  }
  if (status s = check_device(); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  const tile_way way = exactly                        ? tile_way::exact
                       : full || rotated == unrotated ? tile_way::full
                       : rotated                      ? tile_way::h16
                                                      : tile_way::unrotated;
  if (f.element == formats::e2m1) return detail::launch_quantize<T, e2m1>(a, way, stream);
  if (f.element == formats::e4m3) return detail::launch_quantize<T, e4m3>(a, way, stream);
  return detail::launch_quantize<T, e5m2>(a, way, stream);
}

/// AMD's fused kernel: MXFP4 with the options of each orientation (H16 in options.rotation).
template <class T>
status hadamard_quantize_mxfp4(matrix<const T> source, const quantized& rows, const quantized& columns,
                               hipStream_t stream) {
  return quantize(mxfp4, source, rows, columns, stream);
}

}  // namespace rotoscale::gpu
