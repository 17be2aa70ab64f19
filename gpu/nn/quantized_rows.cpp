// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/nn.hpp for layers whose result is quantized to blocks in the same kernel.
#include "gpu/nn/quantized_rows.hpp"

#include "gpu/nn/prepare_producers.hpp"
#include "gpu/quantize/prepare_blocks.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Returns the kernel for a path. Blocks of 32 that training rounds to nearest have specialized kernels: rotated FP4,
/// unrotated FP8.
template <class Producer, class Element>
auto kernel_of(quantize_path path) {
  constexpr quantize_path special =
      std::is_same_v<Element, e2m1> ? quantize_path::fast_h16 : quantize_path::fast_unrotated;
  return path == special ? quantized_rows_kernel<Producer, Element, special>
                         : quantized_rows_kernel<Producer, Element, quantize_path::general>;
}

template <class Producer, class Element>
status launch_quantized_rows(const quantized_rows_args<Producer>& a, quantize_path path, stream s) {
  device_info device;
  if (status found = current_device(device); !found.ok()) return found;
  const unsigned resident = rows_blocks_per_processor<Producer, Element> * static_cast<unsigned>(device.processors);
  const std::uint32_t tiles = a.quantized[0].tiles;
  return launch_rows(kernel_of<Producer, Element>(path), tiles < resident ? tiles : resident, tile_threads, s, a,
                     rows_shared_bytes<Producer, Element>);
}

/// Columns [first, first + n) of an output with `whole` columns.
struct column_range {
  index_t first, n, whole;
};

/// Restricts both orientations to a range of the source's columns.
void take_columns(const block_format& f, const column_range& c, index_t m, quantized_output& rows,
                  quantized_output& columns) {
  if (rows.code_stride == 0) rows.code_stride = packed_bytes(f.element, c.whole);
  if (rows.scale_stride == 0) rows.scale_stride = c.whole / f.length;
  if (columns.code_stride == 0) columns.code_stride = packed_bytes(f.element, m);
  if (columns.scale_stride == 0) columns.scale_stride = m / f.length;
  if (rows.codes != nullptr) rows.codes += packed_bytes(f.element, c.first);
  if (rows.scales != nullptr) rows.scales += c.first / f.length;
  if (columns.codes != nullptr) columns.codes += c.first * columns.code_stride;
  if (columns.scales != nullptr) columns.scales += c.first * columns.scale_stride;
}

/// Checks the target of n columns of a gradient.
status check_target_of_gradient(const block_target& to, index_t n) {
  if (n % 32 != 0) return {error_code::bad_extent, "dh", "must have a multiple of 32 columns"};
  if (to.blocks.rows != 1) return {error_code::bad_option, "blocks", "must be blocks of one row"};
  for (const bool is_row : {true, false}) {
    const quantized_output& q = is_row ? to.rows : to.columns;
    if (q.code_order != placement::row_major) {
      return {error_code::bad_option, is_row ? "rows.code_order" : "columns.code_order", "must be row_major"};
    }
    if (q.scale_order != placement::row_major) {
      return {error_code::bad_option, is_row ? "rows.scale_order" : "columns.scale_order", "must be row_major"};
    }
  }
  return {};
}
template <class Producer>
constexpr bool is_gradient = false;
template <class A, class T>
constexpr bool is_gradient<activation_gradient_producer<A, T>> = true;

}  // namespace

/// Quantizes m × n results of each output; blocks of the outputs are adjacent in a row. Launches `before` first, after
/// all checks.
template <class Producer, class Before>
status quantize_produced(const produced_rows<Producer>& produced, const block_target& to, index_t m, index_t n,
                         stream s, const Before& before) {
  using T = typename Producer::storage;
  constexpr index_t outputs = Producer::outputs;
  const block_format& f = to.blocks;
  if constexpr (is_gradient<Producer>) {
    if (status c = check_target_of_gradient(to, n); !c.ok()) return c;
  }
  quantized_rows_args<Producer> a{produced, {}};
  if (!f.has_e8m0_scale() || f.element.bits() == 6 || (f.length == 16 && (m % 32 != 0 || n % 32 != 0))) {
    return {error_code::bad_option, "blocks", "must have E8M0 scales and 4- or 8-bit codes, in whole runs of 32"};
  }
  if (m > max_extent || outputs * n > max_extent) return {error_code::bad_extent, "x", "extents must be 0 to 2^24"};
  path_choice choice;
  for (index_t o = 0; o < outputs; ++o) {
    quantize_kernel_args& q = a.quantized[o];
    q.rows = static_cast<unsigned>(m);
    q.columns = static_cast<unsigned>(n);
    quantized_output own_rows = to.rows, own_columns = to.columns;
    if constexpr (outputs > 1) take_columns(f, {o * n, n, outputs * n}, m, own_rows, own_columns);
    if (status c = prepare_orientations<T>(f, m, n, own_rows, own_columns, false, q, choice); !c.ok()) return c;
    // Random words are numbered in the whole matrix.
    q.row.random_step = static_cast<std::uint64_t>(outputs * n);
    q.row.random_first = static_cast<std::uint64_t>(o * n);
    q.column.random_first = static_cast<std::uint64_t>(o * n * m);
    if (status c = count_tiles<T>(f.element, q); !c.ok()) return c;
  }
  if (status c = before(); !c.ok()) return c;
  const quantize_path path = choice.path();
  if (f.element == formats::e2m1) return launch_quantized_rows<Producer, e2m1>(a, path, s);
  if (f.element == formats::e4m3) return launch_quantized_rows<Producer, e4m3>(a, path, s);
  return launch_quantized_rows<Producer, e5m2>(a, path, s);
}

ROTOSCALE_INSTANTIATE_QUANTIZED(block_target)

}  // namespace rotoscale::gpu
