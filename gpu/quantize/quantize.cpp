// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/quantize.hpp.
#include "gpu/api/quantize.hpp"

#include "gpu/api/device.hpp"
#include "gpu/quantize/prepare.hpp"
#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Checks one orientation, `vectors` × k, and fills the kernel's terms.
status prepare_output(block_format f, const quantized_output& q, index_t vectors, index_t k, bool is_row,
                      block_output& out) {
  const auto name = [is_row](const char* row, const char* column) { return is_row ? row : column; };
  const block_options& o = q.options;
  if (k % 32 != 0) {
    return {error_code::bad_extent, "source",
            name("row-wise blocks need a number of columns that is a multiple of 32",
                 "column-wise blocks need a number of rows that is a multiple of 32")};
  }
  if (vectors % f.rows != 0) {
    return {error_code::bad_extent, "source", "square blocks need extents that are multiples of 32"};
  }
  if (status s = check_pointer(q.codes, 16, name("rows.codes", "columns.codes")); !s.ok()) return s;
  if (status s = check_pointer(q.scales, 1, name("rows.scales", "columns.scales")); !s.ok()) return s;
  if (o.rotation.points != 0 && o.rotation.points != 16) {
    return {error_code::bad_option, name("rows.options.rotation", "columns.options.rotation"),
            "must have 0 or 16 points"};
  }
  if (!options_are_defined(f, o)) {
    return {error_code::bad_option, name("rows.options", "columns.options"), "random_count must be 1 to 32"};
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
  out.drawn = q.drawn;
  out.fast = make_fast_rule(f.element, o);
  return {};
}

/// Does the fast path know this source? FP16 and BF16 as they are stored, FP32 so or rounded to BF16.
template <class T>
constexpr bool source_has_fast_path(const format& source) {
  if (source == formats::fp32) return true;
  return source == formats::bf16 && !std::is_same_v<T, fp16>;
}

template <class T, class Element>
status launch_quantize(quantize_kernel_args a, quantize_path path, const device_info& device, stream s) {
  // Padded scales reach beyond the matrix, by less than 256 elements either way.
  const index_t pad = a.row.padded_rows != 0 || a.column.padded_rows != 0 ? 256 : 1;
  const auto tiles = [pad](unsigned extent, unsigned tile) {
    return static_cast<unsigned>((rotoscale::detail::round_up(extent, pad) + tile - 1) / tile);
  };
  a.tiles_across = tiles(a.columns, tile_columns);
  const std::uint64_t count = std::uint64_t{a.tiles_across} * tiles(a.rows, tile_rows<T>);
  if (count > 0x7FFFFFFFu) return {error_code::bad_extent, "source", "has more than 2^31 tiles"};
  a.tiles = static_cast<std::uint32_t>(count);
  const unsigned resident = quantize_blocks_per_processor<Element::format> * static_cast<unsigned>(device.processors);
  // Where less than half of the blocks have a tile in the last round, two share one.
  const std::uint32_t last = a.tiles % resident;
  const bool both = a.row.codes != nullptr && a.column.codes != nullptr;
  a.whole_tiles = both && 2 * last <= resident ? a.tiles - last : a.tiles;
  const std::uint32_t items = 2 * a.tiles - a.whole_tiles;
  const dim3 grid{items < resident ? items : resident, 1, 1};
  const auto kernel = path == quantize_path::exact      ? quantize_kernel<T, Element, quantize_path::exact>
                      : path == quantize_path::fast     ? quantize_kernel<T, Element, quantize_path::fast>
                      : path == quantize_path::fast_h16 ? quantize_kernel<T, Element, quantize_path::fast_h16>
                                                        : quantize_kernel<T, Element, quantize_path::fast_unrotated>;
  return launch(kernel, grid, dim3{tile_threads, 1, 1}, quantize_shared_bytes<T, Element>, s, a);
}

template <class T>
status quantize_source(block_format f, matrix<const T> source, const quantized_output& rows,
                       const quantized_output& columns, stream stream) {
  if (!is_known_format(f)) {
    return {error_code::bad_option, "f", "must be mxfp4, mxfp8_e4m3 or mxfp8_e5m2, or square_blocks of one"};
  }
  quantize_kernel_args a;
  // Rows of a transpose are columns of what is in memory: the same blocks, in the same order.
  const bool flipped = is_transposed(source);
  if (status s = prepare_source(flipped ? transposed(source) : source, a); !s.ok()) return s;
  const index_t m = source.extent(0), n = source.extent(1);
  if (m == 0 || n == 0) return {};
  if (rows.codes == nullptr && columns.codes == nullptr) {
    return {error_code::bad_pointer, "rows.codes", "must not be null where columns.codes is null"};
  }
  a.square = f.rows != 1;
  bool exact = a.square, general = false, any_rotated = false, any_unrotated = false;
  for (const bool is_row : {true, false}) {
    const quantized_output& q = is_row ? rows : columns;
    if (q.codes == nullptr) continue;
    block_output& out = is_row != flipped ? a.row : a.column;
    const status s = prepare_output(f, q, is_row ? m : n, is_row ? n : m, is_row, out);
    if (!s.ok()) return s;
    general = general || out.fast.signs != 0 || q.options.rule == scale_rule::floor;
    any_rotated = any_rotated || out.fast.rotates;
    any_unrotated = any_unrotated || !out.fast.rotates;
    exact = exact || q.drawn != nullptr || !out.fast.applies || !source_has_fast_path<T>(q.options.source);
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  const quantize_path path = exact                                       ? quantize_path::exact
                             : general || (any_rotated && any_unrotated) ? quantize_path::fast
                             : any_rotated                               ? quantize_path::fast_h16
                                                                         : quantize_path::fast_unrotated;
  if (f.element == formats::e2m1) return launch_quantize<T, e2m1>(a, path, device, stream);
  if (f.element == formats::e4m3) return launch_quantize<T, e4m3>(a, path, device, stream);
  return launch_quantize<T, e5m2>(a, path, device, stream);
}

}  // namespace

status quantize(block_format f, matrix<const float> source, const quantized_output& rows,
                const quantized_output& columns, stream s) {
  return quantize_source(f, source, rows, columns, s);
}
status quantize(block_format f, matrix<const fp16> source, const quantized_output& rows,
                const quantized_output& columns, stream s) {
  return quantize_source(f, source, rows, columns, s);
}
status quantize(block_format f, matrix<const bf16> source, const quantized_output& rows,
                const quantized_output& columns, stream s) {
  return quantize_source(f, source, rows, columns, s);
}

}  // namespace rotoscale::gpu
