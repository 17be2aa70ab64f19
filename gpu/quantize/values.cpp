// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher of quantize_values (gpu/api/quantize.hpp).
#include "gpu/quantize/prepare_blocks.hpp"
#include "gpu/quantize/values_tile.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Checks one orientation, `vectors` × k, and fills the kernel's arguments.
template <class T>
status prepare_values(block_format f, const quantized_output& q, index_t vectors, index_t k, index_t columns,
                      bool is_row, block_output& out) {
  const auto name = [is_row](const char* row, const char* column) { return is_row ? row : column; };
  if (status s = check_pointer(q.values, 16, name("rows.values", "columns.values")); !s.ok()) return s;
  if (!has_values_kernel(f, q.options.rotation.points, q.options.choice) || !options_are_defined(f, q.options)) {
    return {error_code::bad_option, name("rows.options", "columns.options"), "must be those of has_values_kernel"};
  }
  if (k % 32 != 0 || (f.rows != 1 && vectors % 32 != 0)) {
    return {error_code::bad_extent, "source", "must be whole runs of 32 elements, in both directions of squares"};
  }
  if (status s = check_made(f, q, is_row); !s.ok()) return s;
  out.codes = reinterpret_cast<std::uint8_t*>(q.values);
  out.code_stride = 2 * columns;
  take_options(f, q, out);
  out.random_step = static_cast<std::uint64_t>(k);
  path_choice unused;
  choose_path<T>(f, out, unused);
  const bool by_error = q.options.choice == scale_choice::four_over_six || q.options.choice == scale_choice::eden;
  if (by_error && out.exact) {
    return {error_code::bad_option, name("rows.options", "columns.options"), "must round to nearest from BF16"};
  }
  return {};
}

/// The path of an orientation.
inline quantize_path values_path(quantize_kernel_args a, bool row) {
  (row ? a.column : a.row).codes = nullptr;
  const block_output& out = row ? a.row : a.column;
  const bool mx = a.format.has_e8m0_scale() && a.format.length == 32 && a.format.rows == 1 && !out.exact;
  if (!mx) return known_path(quantize_path::general, a);
  return out.options.rounding == rounding::stochastic ? quantize_path::mx_stochastic : quantize_path::mx_nearest;
}

/// Launches a path's kernel. `behind`: after a kernel of this launcher.
template <class T, class Element, quantize_path Path = quantize_path::general>
status launch_path(const quantize_kernel_args& a, const device_info& device, bool behind, stream s) {
  const unsigned resident = values_blocks_per_processor<Path> * static_cast<unsigned>(device.processors);
  const dim3 grid{a.tiles < resident ? a.tiles : resident, 1, 1}, block{tile_threads, 1, 1};
  const auto kernel = values_kernel<T, Element, Path>;
  return behind ? launch_behind(kernel, grid, block, values_shared_bytes<T>, s, a)
                : launch(kernel, grid, block, values_shared_bytes<T>, s, a);
}
template <class T>
status launch_fp4(const quantize_kernel_args& a, quantize_path path, const device_info& device, bool behind, stream s) {
  using enum quantize_path;
  switch (path) {
    case nvfp4_nearest: return launch_path<T, e2m1, nvfp4_nearest>(a, device, behind, s);
    case nvfp4_stochastic: return launch_path<T, e2m1, nvfp4_stochastic>(a, device, behind, s);
    case nvfp4_square: return launch_path<T, e2m1, nvfp4_square>(a, device, behind, s);
    case nvfp4_chosen: return launch_path<T, e2m1, nvfp4_chosen>(a, device, behind, s);
    case nvfp4_chosen_square: return launch_path<T, e2m1, nvfp4_chosen_square>(a, device, behind, s);
    case nvfp4_eden: return launch_path<T, e2m1, nvfp4_eden>(a, device, behind, s);
    case mx_nearest: return launch_path<T, e2m1, mx_nearest>(a, device, behind, s);
    case mx_stochastic: return launch_path<T, e2m1, mx_stochastic>(a, device, behind, s);
    default: return launch_path<T, e2m1>(a, device, behind, s);
  }
}
template <class T>
status launch_values(const quantize_kernel_args& a, quantize_path path, const device_info& device, bool behind,
                     stream s) {
  const format& element = a.format.element;
  if (element == formats::e2m1) return launch_fp4<T>(a, path, device, behind, s);
  const auto launch_mx = [&](auto zero) {
    using Element = decltype(zero);
    return path == quantize_path::mx_nearest ? launch_path<T, Element, quantize_path::mx_nearest>(a, device, behind, s)
                                             : launch_path<T, Element>(a, device, behind, s);
  };
  if (element == formats::e2m3) return launch_mx(e2m3{});
  if (element == formats::e3m2) return launch_mx(e3m2{});
  if (element == formats::e4m3) return launch_mx(e4m3{});
  return launch_mx(e5m2{});
}

template <class T>
status quantize_to_values(block_format f, matrix<const T> source, const quantized_output& rows,
                          const quantized_output& columns, stream stream) {
  const index_t m = source.extent(0), n = source.extent(1);
  quantize_kernel_args a;
  if (status s = prepare_source(source, a); !s.ok()) return s;
  if (rows.values == nullptr && columns.values == nullptr) {
    return {error_code::bad_pointer, "rows.values", "must not be null where columns.values is null"};
  }
  a.format = f;
  if (rows.values != nullptr) {
    if (status s = prepare_values<T>(f, rows, m, n, n, true, a.row); !s.ok()) return s;
  }
  if (columns.values != nullptr) {
    if (status s = prepare_values<T>(f, columns, n, m, n, false, a.column); !s.ok()) return s;
  }
  if (m == 0 || n == 0) return {};
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  count_small_tiles(a);
  const bool measures = rows.amax != nullptr || columns.amax != nullptr;
  if (measures) {
    if (status s = measure_amax(f, source, rows, columns, stream); !s.ok()) return s;
  }
  const quantize_path row_path = values_path(a, true), column_path = values_path(a, false);
  if (rows.values == nullptr || columns.values == nullptr || row_path == column_path) {
    return launch_values<T>(a, rows.values != nullptr ? row_path : column_path, device, measures, stream);
  }
  quantize_kernel_args first = a;
  first.column.codes = nullptr;
  a.row.codes = nullptr;
  const status s = launch_values<T>(first, row_path, device, measures, stream);
  return s.ok() ? launch_values<T>(a, column_path, device, true, stream) : s;
}

}  // namespace

status quantize_values(block_format f, matrix<const float> source, const quantized_output& rows,
                       const quantized_output& columns, stream s) {
  return quantize_to_values(f, source, rows, columns, s);
}
status quantize_values(block_format f, matrix<const bf16> source, const quantized_output& rows,
                       const quantized_output& columns, stream s) {
  return quantize_to_values(f, source, rows, columns, s);
}

}  // namespace rotoscale::gpu
