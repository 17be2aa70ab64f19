// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Common to the launchers of block quantizers: checks of one or both orientations, kernel arguments, and the kernel's
// path.
#pragma once

#include "gpu/api/quantize.hpp"
#include "gpu/quantize/prepare.hpp"
#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu::detail {

/// Checks the pointers of values that the device computes: state of random words, amax, encode factor.
inline status check_made(block_format f, const quantized_output& q, bool is_row) {
  const auto name = [is_row](const char* row, const char* column) { return is_row ? row : column; };
  if (status s = check_optional(q.state, name("rows.state", "columns.state")); !s.ok()) return s;
  if (q.amax == nullptr) return {};
  if (f.has_e8m0_scale()) {
    return {error_code::bad_option, name("rows.amax", "columns.amax"), "is for floating-point scales"};
  }
  if (status s = check_pointer(q.amax, name("rows.amax", "columns.amax")); !s.ok()) return s;
  return check_pointer(q.factor, name("rows.factor", "columns.factor"));
}
inline void take_options(block_format f, const quantized_output& q, made_options& out) {
  out.options = q.options;
  out.draws = q.draws;
  out.state = q.state;
  out.amax = q.amax;
  out.factor = q.factor;
  out.fast = make_fast_rule(f.element, q.options);
}

/// Checks one orientation, `vectors` × k, and fills the kernel's arguments. Returns the first error.
inline status prepare_output(block_format f, const quantized_output& q, index_t vectors, index_t k, bool is_row,
                             block_output& out) {
  const auto name = [is_row](const char* row, const char* column) { return is_row ? row : column; };
  const block_options& o = q.options;
  if (k % 32 != 0) {
    return {error_code::bad_extent, "source",
            name("row-wise blocks need a number of columns that is a multiple of 32",
                 "column-wise blocks need a number of rows that is a multiple of 32")};
  }
  if (vectors % f.rows != 0) {
    return {error_code::bad_extent, "source", "square blocks need extents that are multiples of their size"};
  }
  if (status s = check_pointer(q.codes, 16, name("rows.codes", "columns.codes")); !s.ok()) return s;
  if (status s = check_pointer(q.scales, 1, name("rows.scales", "columns.scales")); !s.ok()) return s;
  if (status s = check_made(f, q, is_row); !s.ok()) return s;
  if (o.rotation.points != 0 && o.rotation.points != 16 && o.rotation.points != 32) {
    return {error_code::bad_option, name("rows.options.rotation", "columns.options.rotation"),
            "must have 0, 16 or 32 points"};
  }
  if (o.choice != scale_choice::amax && f.has_e8m0_scale()) {
    return {error_code::bad_option, name("rows.options.choice", "columns.options.choice"),
            "needs floating-point scales"};
  }
  if (!options_are_defined(f, o)) {
    return {error_code::bad_option, name("rows.options", "columns.options"), "random_count must be 1 to 32"};
  }
  if (status s = prepare_layout(
          f, q.code_order, q.scale_order, q.code_stride, q.scale_stride, vectors, k, f.element.bits() == 6 ? 8 : 16,
          {name("rows.code_order", "columns.code_order"), name("rows.scale_order", "columns.scale_order"),
           name("rows.code_stride", "columns.code_stride"), name("rows.scale_stride", "columns.scale_stride")},
          out);
      !s.ok()) {
    return s;
  }
  out.codes = q.codes;
  out.scales = q.scales;
  out.has_scale_words =
      out.scale_block == 1 && out.scale_stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(q.scales) % 4 == 0;
  out.padding = q.scale_padding;
  take_options(f, q, out);
  out.random_step = static_cast<std::uint64_t>(k);
  return {};
}

/// True if the fast path supports this source: FP16 and BF16 as stored, FP32 as stored or rounded to BF16.
template <class T>
constexpr bool source_has_fast_path(const format& source) {
  if (source == formats::fp32) return true;
  return source == formats::bf16 && !std::is_same_v<T, fp16>;
}

/// Requirements of both orientations on the kernel.
struct path_choice {
  bool general = false, any_rotated = false, any_unrotated = false;

  quantize_path path() const {
    return general || (any_rotated && any_unrotated) ? quantize_path::general
           : any_rotated                             ? quantize_path::fast_h16
                                                     : quantize_path::fast_unrotated;
  }
};

/// Decides how the kernel reads the source and which blocks it takes by the definition.
template <class T>
void choose_path(block_format f, block_output& out, path_choice& choice) {
  const block_options& o = out.options;
  const bool random = o.rounding == rounding::stochastic && o.random_count == 32;
  out.bf16_source = o.source.mantissa_bits == 7;
  out.exact = (o.rounding != rounding::nearest_even && !random) || !source_has_fast_path<T>(o.source) ||
              (f.has_e8m0_scale() && (o.policy.least_byte > 1 || o.policy.zero_byte == nan_scale_byte)) ||
              (o.choice == scale_choice::eden && o.random_count != 32);
  const bool rotates = o.rotation.points != 0;
  choice.general = choice.general || out.exact || random || out.state != nullptr || f.length != 32 || f.rows != 1 ||
                   !f.has_e8m0_scale() || f.element.bits() == 6 || (rotates && o.rotation.signs[0] != 0) ||
                   o.rotation.points == 32 || o.rule == scale_rule::floor;
  choice.any_rotated = choice.any_rotated || rotates;
  choice.any_unrotated = choice.any_unrotated || !rotates;
}

/// The path of NVFP4's blocks in place of the general one, if all wanted orientations have it.
inline quantize_path known_path(quantize_path path, const quantize_kernel_args& a) {
  if (path != quantize_path::general || a.format.length != 16 || a.format.scale != formats::ue4m3) return path;
  bool stochastic = false, nearest = false;
  scale_choice choice = scale_choice::amax;  // by errors: one for both orientations
  for (const block_output* const out : {&a.row, &a.column}) {
    if (out->codes == nullptr) continue;
    if (out->exact) return path;
    (out->options.rounding == rounding::stochastic ? stochastic : nearest) = true;
    choice = out->options.choice;
  }
  const bool square = a.format.rows != 1;
  if (stochastic && (nearest || square)) return path;
  if (stochastic) return quantize_path::nvfp4_stochastic;
  if (choice == scale_choice::eden) return quantize_path::nvfp4_eden;
  if (choice == scale_choice::four_over_six) {
    return square ? quantize_path::nvfp4_chosen_square : quantize_path::nvfp4_chosen;
  }
  return square ? quantize_path::nvfp4_square : quantize_path::nvfp4_nearest;
}

/// Checks both orientations of an m × n source of T. `reads_transpose`: the kernel reads the transpose.
template <class T>
status prepare_orientations(block_format f, index_t m, index_t n, const quantized_output& rows,
                            const quantized_output& columns, bool reads_transpose, quantize_kernel_args& a,
                            path_choice& choice) {
  if (!has_tile_kernel(f, 0)) {
    return {error_code::bad_option, "f", "must be blocks of has_tile_kernel"};
  }
  if (m == 0 || n == 0) return {};
  if (rows.codes == nullptr && columns.codes == nullptr) {
    return {error_code::bad_pointer, "rows.codes", "must not be null where columns.codes is null"};
  }
  a.format = f;
  for (const bool is_row : {true, false}) {
    const quantized_output& q = is_row ? rows : columns;
    if (q.codes == nullptr) continue;
    block_output& out = is_row != reads_transpose ? a.row : a.column;
    const status s = prepare_output(f, q, is_row ? m : n, is_row ? n : m, is_row, out);
    if (!s.ok()) return s;
    choose_path<T>(f, out, choice);
  }
  return {};
}

/// Counts the tiles of a kernel from T to elements of `f`.
template <class T>
status count_tiles(const format& f, quantize_kernel_args& a) {
  // Padding of scales extends the matrix by less than 256 elements in each direction.
  const index_t pad = a.row.padded_rows != 0 || a.column.padded_rows != 0 ? 256 : 1;
  const auto tiles = [pad](unsigned extent, unsigned tile) {
    return static_cast<unsigned>((rotoscale::detail::round_up(extent, pad) + tile - 1) / tile);
  };
  const unsigned tiles_across = tiles(a.columns, tile_columns);
  a.tiles_across = known_divisor(tiles_across);
  const unsigned tiles_down = tiles(a.rows, tile_rows<T>);
  const bool part_of_line = tile_rows<T> * static_cast<unsigned>(storage_bits(f)) < 128 * 8;  // codes of a column
  a.paired_rows = a.column.codes != nullptr && part_of_line ? tiles_down / 2 * 2 : 0;
  const std::uint64_t count = std::uint64_t{tiles_across} * tiles_down;
  if (count > 0x7FFFFFFFu) return {error_code::bad_extent, "source", "has more than 2^31 tiles"};
  a.tiles = static_cast<std::uint32_t>(count);
  return {};
}

}  // namespace rotoscale::gpu::detail
