// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/quantize.hpp.
#include "gpu/api/quantize.hpp"

#include "gpu/quantize/amax_tile.hpp"
#include "gpu/quantize/definition_kernel.hpp"
#include "gpu/quantize/prepare_blocks.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Launches the tile kernel with as many blocks as are resident.
template <class T, class Element>
status launch_quantize(quantize_kernel_args a, quantize_path path, const device_info& device, stream s) {
  if (status counted = count_tiles<T>(Element::format, a); !counted.ok()) return counted;
  const unsigned resident = quantize_blocks_per_processor<Element::format> * static_cast<unsigned>(device.processors);
  // If fewer than half of the resident blocks have a tile in the last wave, two blocks share each of these tiles.
  const std::uint32_t last = a.tiles % resident;
  const bool both = a.row.codes != nullptr && a.column.codes != nullptr;
  a.whole_tiles = both && 2 * last <= resident ? a.tiles - last : a.tiles;
  const std::uint32_t items = 2 * a.tiles - a.whole_tiles;
  const dim3 grid{items < resident ? items : resident, 1, 1};
  auto kernel = quantize_kernel<T, Element, quantize_path::general>;
  if constexpr (Element::format.bits() != 6) {
    if (path == quantize_path::fast_h16) kernel = quantize_kernel<T, Element, quantize_path::fast_h16>;
    if (path == quantize_path::fast_unrotated) kernel = quantize_kernel<T, Element, quantize_path::fast_unrotated>;
  }
  if constexpr (std::is_same_v<Element, e2m1> && !std::is_same_v<T, fp16>) {
    switch (known_path(path, a)) {
      case quantize_path::nvfp4_nearest: kernel = quantize_kernel<T, Element, quantize_path::nvfp4_nearest>; break;
      case quantize_path::nvfp4_stochastic:
        kernel = quantize_kernel<T, Element, quantize_path::nvfp4_stochastic>;
        break;
      case quantize_path::nvfp4_square: kernel = quantize_kernel<T, Element, quantize_path::nvfp4_square>; break;
      case quantize_path::nvfp4_eden: kernel = quantize_kernel<T, Element, quantize_path::nvfp4_eden>; break;
      case quantize_path::nvfp4_chosen: kernel = quantize_kernel<T, Element, quantize_path::nvfp4_chosen>; break;
      case quantize_path::nvfp4_chosen_square:
        kernel = quantize_kernel<T, Element, quantize_path::nvfp4_chosen_square>;
        break;
      default: break;
    }
  }
  return launch(kernel, grid, dim3{tile_threads, 1, 1}, quantize_shared_bytes<T, Element>, s, a);
}

/// True for blocks that definition_blocks_kernel supports.
bool is_defined_block(block_format f) {
  const int bits = f.element.bits();
  return formats_are_defined(f) && (bits == 4 || bits == 6 || bits == 8) &&
         (f.length == 16 || f.length == 32 || (f.length == 128 && f.has_e8m0_scale())) &&
         (f.rows == 1 || f.rows == f.length);
}

/// Checks the source of one orientation, whose blocks are along its columns.
template <class T>
status prepare_defined(block_format f, const quantized_output& q, matrix<const T> source, bool is_row,
                       definition_blocks_args& a) {
  const block_options& o = q.options;
  if (!is_defined_block(f)) {
    return {error_code::bad_option, "f",
            "must have 4, 6 or 8 bits in blocks of 16 or 32 (under E8M0 128), of one row or square"};
  }
  const int points = o.rotation.points;
  if (points != 0 && ((points != 16 && points != 32 && points != 64 && points != 128) || f.length == 128)) {
    return {error_code::bad_option, is_row ? "rows.options.rotation" : "columns.options.rotation",
            "must have 0, 16, 32, 64 or 128 points, in blocks of 128 none"};
  }
  if (!runs_are_defined(f, o.rotation) || !options_are_defined(f, o)) {
    return {error_code::bad_option, is_row ? "rows.options" : "columns.options", "are no options of these blocks"};
  }
  if (status s = prepare_source(source, a); !s.ok()) return s;
  if (a.columns % static_cast<unsigned>(run_length(f, o.rotation)) != 0 ||
      a.rows % static_cast<unsigned>(f.rows) != 0) {
    return {error_code::bad_extent, "source", "must be whole blocks and whole rotations"};
  }
  a.format = f;
  take_options(f, q, a);
  return check_made(f, q, is_row);
}
dim3 definition_grid(const definition_blocks_args& a, unsigned height) {
  const std::uint64_t items = std::uint64_t{a.rows / height} * ((a.columns + subgroup_lanes - 1) / subgroup_lanes);
  const std::uint64_t blocks = (items + definition_subgroups - 1) / definition_subgroups;
  return {static_cast<unsigned>(blocks < 65535 ? blocks : 65535), 1, 1};
}

/// The definition kernel: specialized for common formats, else generic.
template <class T>
auto definition_kernel_for(block_format f, const rotation& r) {
  if (run_length(f, r) > 32) return definition_blocks_kernel<T, any_blocks, 4>;
  f.rows = 1;
  if (f == nvfp4) return definition_blocks_kernel<T, known_blocks<e2m1, ue4m3, 16>, 1>;
  if (f == mxfp4) return definition_blocks_kernel<T, known_blocks<e2m1, e8m0, 32>, 1>;
  return definition_blocks_kernel<T, any_blocks, 1>;
}

/// Quantizes one orientation with the definition kernel.
template <class T>
status quantize_by_definition(block_format f, matrix<const T> source, const quantized_output& q, bool is_row,
                              bool only_checks, stream s) {
  if (q.codes == nullptr) return {};
  definition_blocks_args a;
  if (status c = prepare_defined(f, q, is_row ? source : transposed(source), is_row, a); !c.ok()) return c;
  if (a.rows == 0 || a.columns == 0) return {};
  const auto name = [is_row](const char* row, const char* column) { return is_row ? row : column; };
  if (q.code_order != placement::row_major) {
    return {error_code::bad_option, name("rows.code_order", "columns.code_order"), "must be row_major"};
  }
  if (q.scale_order != placement::row_major) {
    return {error_code::bad_option, name("rows.scale_order", "columns.scale_order"), "must be row_major"};
  }
  if (status c = check_pointer(q.codes, name("rows.codes", "columns.codes")); !c.ok()) return c;
  if (status c = check_pointer(q.scales, name("rows.scales", "columns.scales")); !c.ok()) return c;
  const index_t code_bytes = packed_bytes(f.element, a.columns), scale_bytes = index_t{a.columns} / f.length;
  a.code_stride = q.code_stride != 0 ? q.code_stride : code_bytes;
  a.scale_stride = q.scale_stride != 0 ? q.scale_stride : scale_bytes;
  if (a.code_stride < code_bytes) {
    return {error_code::bad_extent, name("rows.code_stride", "columns.code_stride"), "must not be less than a row"};
  }
  if (a.scale_stride < scale_bytes) {
    return {error_code::bad_extent, name("rows.scale_stride", "columns.scale_stride"), "must not be less than a row"};
  }
  if (only_checks) return {};
  a.codes = q.codes;
  a.scales = q.scales;
  a.random_step = a.columns;
  return launch(definition_kernel_for<T>(f, q.options.rotation), definition_grid(a, static_cast<unsigned>(f.rows)),
                dim3{definition_block_threads, 1, 1}, 0, s, a);
}

/// True if the tile kernel takes an orientation of `vectors` × k.
bool takes_tiles(block_format f, const quantized_output& q, index_t vectors, index_t k) {
  // A run of 32 elements may be two blocks, and 32 vectors two squares.
  const bool whole = f.length == 32 || (k % 32 == 0 && (f.rows == 1 || vectors % 32 == 0));
  return q.codes == nullptr || (has_tile_kernel(f, q.options.rotation.points) && whole);
}
/// True if the tile kernel makes the choices of scales: 4/6 or EDEN for NVFP4's blocks, the same in all orientations.
template <class T>
bool takes_choices(block_format f, const quantized_output& rows, const quantized_output& columns) {
  const bool is_nvfp4 =
      f.element == formats::e2m1 && f.scale == formats::ue4m3 && f.length == 16 && !std::is_same_v<T, fp16>;
  bool any = false, all = is_nvfp4;
  const scale_choice choice = (rows.codes != nullptr ? rows : columns).options.choice;
  for (const quantized_output* const q : {&rows, &columns}) {
    if (q->codes == nullptr) continue;
    const bool by_error = q->options.choice == scale_choice::four_over_six || q->options.choice == scale_choice::eden;
    const bool draws = q->options.choice != scale_choice::eden || q->options.random_count == 32;
    any = any || by_error;
    all = all && by_error && draws && q->options.choice == choice && source_has_fast_path<T>(q->options.source);
  }
  return all || !any;
}

/// Checks both orientations before the first launch, so that a refusal launches nothing.
template <class T>
status quantize_source(block_format f, matrix<const T> source, const quantized_output& rows,
                       const quantized_output& columns, stream stream) {
  const index_t m = source.extent(0), n = source.extent(1);
  if (!takes_tiles(f, rows, m, n) || !takes_tiles(f, columns, n, m) || !takes_choices<T>(f, rows, columns)) {
    if (rows.codes == nullptr && columns.codes == nullptr) {
      return {error_code::bad_pointer, "rows.codes", "must not be null where columns.codes is null"};
    }
    for (const bool only_checks : {true, false}) {
      if (status s = quantize_by_definition(f, source, rows, true, only_checks, stream); !s.ok()) return s;
      if (status s = quantize_by_definition(f, source, columns, false, only_checks, stream); !s.ok()) return s;
      if (!only_checks) break;
      if (status s = check_ready(stream); !s.ok()) return s;
    }
    return {};
  }
  quantize_kernel_args a;
  // Rows of a transpose are columns of the matrix in memory: the same blocks, in the same order.
  const bool reads_transpose = is_transposed(source);
  if (status s = prepare_source(reads_transpose ? transposed(source) : source, a); !s.ok()) return s;
  path_choice choice;
  if (status s = prepare_orientations<T>(f, m, n, rows, columns, reads_transpose, a, choice); !s.ok()) return s;
  if (m == 0 || n == 0) return {};
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  const quantize_path path = choice.path();
  if (f.element == formats::e2m1) return launch_quantize<T, e2m1>(a, path, device, stream);
  if (f.element == formats::e2m3) return launch_quantize<T, e2m3>(a, path, device, stream);
  if (f.element == formats::e3m2) return launch_quantize<T, e3m2>(a, path, device, stream);
  if (f.element == formats::e4m3) return launch_quantize<T, e4m3>(a, path, device, stream);
  return launch_quantize<T, e5m2>(a, path, device, stream);
}

/// Measures one orientation with the definition kernel.
template <class T>
status measure_by_definition(block_format f, matrix<const T> source, const quantized_output& q, bool is_row,
                             bool only_checks, stream s) {
  if (q.amax == nullptr) return {};
  definition_blocks_args a;
  if (status c = prepare_defined(f, q, is_row ? source : transposed(source), is_row, a); !c.ok()) return c;
  if (only_checks) return {};
  if (a.rows == 0 || a.columns == 0) return fill(q.amax, 0, amax_words * sizeof *q.amax, s);
  dim3 grid = definition_grid(a, 1);
  grid.x = grid.x < unsigned{amax_words} ? grid.x : unsigned{amax_words};
  const bool is_long = run_length(f, q.options.rotation) > 32;
  return launch(is_long ? tensor_amax_kernel<T, 4> : tensor_amax_kernel<T, 1>, grid,
                dim3{definition_block_threads, 1, 1}, 0, s, a);
}

template <class T>
status measure_source(block_format f, matrix<const T> source, const quantized_output& rows,
                      const quantized_output& columns, stream stream) {
  if (rows.amax == nullptr && columns.amax == nullptr) {
    return {error_code::bad_pointer, "rows.amax", "must not be null where columns.amax is null"};
  }
  // A thread reads 32 elements of a row and of a column at once. Both orientations use the same elements.
  bool tiles = source.extent(0) > 0 && source.extent(1) > 0 && source.extent(0) % 32 == 0 &&
               source.extent(1) % 32 == 0 &&
               (rows.amax == nullptr || columns.amax == nullptr || rows.options.source == columns.options.source);
  for (const bool is_row : {true, false}) {
    const quantized_output& q = is_row ? rows : columns;
    if (status s = measure_by_definition(f, source, q, is_row, true, stream); !s.ok()) return s;
    tiles = tiles && (q.amax == nullptr ||
                      (has_tile_kernel(f, q.options.rotation.points) && source_has_fast_path<T>(q.options.source)));
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (!tiles) {
    const status s = measure_by_definition(f, source, rows, true, false, stream);
    return s.ok() ? measure_by_definition(f, source, columns, false, false, stream) : s;
  }
  quantize_kernel_args a;
  const bool reads_transpose = is_transposed(source);
  if (status s = prepare_source(reads_transpose ? transposed(source) : source, a); !s.ok()) return s;
  a.format = f;
  path_choice choice;
  for (const bool is_row : {true, false}) {
    const quantized_output& q = is_row ? rows : columns;
    block_output& out = is_row != reads_transpose ? a.row : a.column;
    take_options(f, q, out);
    choose_path<T>(f, out, choice);
  }
  a.row.bf16_source = a.column.bf16_source = (rows.amax != nullptr ? rows : columns).options.source.mantissa_bits == 7;
  count_small_tiles(a);
  const std::uint32_t resident = amax_blocks_per_processor * static_cast<unsigned>(device.processors);
  const std::uint32_t most = resident < unsigned{amax_words} ? resident : unsigned{amax_words};
  return launch(amax_kernel<T>, dim3{a.tiles < most ? a.tiles : most, 1, 1}, dim3{tile_threads, 1, 1},
                small_tile_bytes<T>, stream, a);
}

}  // namespace

status measure_amax(block_format f, matrix<const float> source, const quantized_output& rows,
                    const quantized_output& columns, stream s) {
  return measure_source(f, source, rows, columns, s);
}
status measure_amax(block_format f, matrix<const bf16> source, const quantized_output& rows,
                    const quantized_output& columns, stream s) {
  return measure_source(f, source, rows, columns, s);
}

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
