// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/nn.hpp whose results are quantized where they are made.
#include "gpu/nn/quantized_rows.hpp"

#include "gpu/nn/check.hpp"
#include "gpu/quantize/prepare_blocks.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// The kernel for a path. FP4's rotated blocks, training's, have one of their own; of the others the general fast path.
template <class Producer, class Element>
auto kernel_of(quantize_path path) {
  using enum quantize_path;
  if (path == exact) return quantized_rows_kernel<Producer, Element, exact>;
  if constexpr (std::is_same_v<Element, e2m1>) {
    if (path == fast_h16) return quantized_rows_kernel<Producer, Element, fast_h16>;
  }
  return quantized_rows_kernel<Producer, Element, fast>;
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

/// What one output's blocks are written to: all of it, or columns [first, first + n) of `whole` columns.
struct column_range {
  index_t first, n, whole;
};

/// The part of both orientations that is a range of the source's columns.
void take_columns(const format& element, const column_range& c, index_t m, quantized_output& rows,
                  quantized_output& columns) {
  if (rows.code_stride == 0) rows.code_stride = packed_bytes(element, c.whole);
  if (rows.scale_stride == 0) rows.scale_stride = c.whole / 32;
  if (columns.code_stride == 0) columns.code_stride = packed_bytes(element, m);
  if (columns.scale_stride == 0) columns.scale_stride = m / 32;
  if (rows.codes != nullptr) rows.codes += packed_bytes(element, c.first);
  if (rows.scales != nullptr) rows.scales += c.first / 32;
  if (columns.codes != nullptr) columns.codes += c.first * columns.code_stride;
  if (columns.scales != nullptr) columns.scales += c.first * columns.scale_stride;
}

/// m × n results of each output, whose blocks lie beside each other; `before` is launched first, once all is checked.
template <class Producer, class Before>
status quantize_rows(quantized_rows_args<Producer> a, block_format f, index_t m, index_t n,
                     const quantized_output& rows, const quantized_output& columns, stream s, const Before& before) {
  using T = typename Producer::storage;
  constexpr index_t outputs = Producer::outputs;
  if (m > max_extent || outputs * n > max_extent) return {error_code::bad_extent, "x", "extents must be 0 to 2^24"};
  path_choice choice;
  for (index_t o = 0; o < outputs; ++o) {
    quantize_kernel_args& q = a.quantized[o];
    q.rows = static_cast<unsigned>(m);
    q.columns = static_cast<unsigned>(n);
    quantized_output own_rows = rows, own_columns = columns;
    if constexpr (outputs > 1) take_columns(f.element, {o * n, n, outputs * n}, m, own_rows, own_columns);
    if (status c = prepare_orientations<T>(f, m, n, own_rows, own_columns, false, q, choice); !c.ok()) return c;
    // Random words are those of the whole matrix.
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

status nothing() { return {}; }
bool has_vectors_or_nothing(const nn::const_tensor_view& x) { return x.data == nullptr || has_vectors(x); }

}  // namespace

status swiglu_quantize(nn::const_tensor_view gate_up, nn::tensor_view h, block_format f, const quantized_output& rows,
                       const quantized_output& columns, stream s) {
  if (status c = check_rows(gate_up, 2, "gate_up"); !c.ok()) return c;
  if (gate_up.extent(1) % 2 != 0) return {error_code::bad_extent, "gate_up", "must have a gate and an up"};
  const auto gate = half_of(gate_up, 0), up = half_of(gate_up, 1);
  if (h.data != nullptr) {
    if (status c = check_like(h, gate, "h"); !c.ok()) return c;
  }
  const index_t m = gate.extent(0), n = gate.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(gate_up.type, [&](auto t) {
    using T = decltype(t);
    quantized_rows_args<swiglu_producer<T>> a;
    a.producer = {{span_of<T>(gate), span_of<T>(up)}};
    if (h.data != nullptr) a.written[0] = span_of<T>(h);
    a.vectors = n % vec8_elements == 0 && has_vectors(gate) && has_vectors(up) && has_vectors_or_nothing(h);
    return quantize_rows(a, f, m, n, rows, columns, s, nothing);
  });
}

status swiglu_backward_quantize(nn::const_tensor_view dh, nn::const_tensor_view gate_up, nn::tensor_view d_gate_up,
                                block_format f, const quantized_output& rows, const quantized_output& columns,
                                stream s) {
  if (status c = check_rows(dh, 2, "dh"); !c.ok()) return c;
  if (status c = check_gate_up(gate_up, dh, "gate_up"); !c.ok()) return c;
  if (d_gate_up.data != nullptr) {
    if (status c = check_gate_up(d_gate_up, dh, "d_gate_up"); !c.ok()) return c;
  }
  const index_t m = dh.extent(0), n = dh.extent(1);
  if (m == 0 || n == 0) return {};
  if (n % 32 != 0) return {error_code::bad_extent, "dh", "must have a multiple of 32 columns"};
  if (f.rows != 1) return {error_code::bad_option, "f", "must be blocks of one row"};
  for (const bool is_row : {true, false}) {
    const quantized_output& q = is_row ? rows : columns;
    if (q.code_order != placement::row_major) {
      return {error_code::bad_option, is_row ? "rows.code_order" : "columns.code_order", "must be row_major"};
    }
    if (q.scale_order != placement::row_major) {
      return {error_code::bad_option, is_row ? "rows.scale_order" : "columns.scale_order", "must be row_major"};
    }
  }
  return with_storage(dh.type, [&](auto t) {
    using T = decltype(t);
    const auto gate = half_of(gate_up, 0), up = half_of(gate_up, 1);
    quantized_rows_args<swiglu_gradient_producer<T>> a;
    a.producer = {{span_of<T>(gate), span_of<T>(up), span_of<T>(dh)}};
    a.vectors = has_vectors(dh) && has_vectors(gate) && has_vectors(up);
    for (index_t half = 0; half < 2 && d_gate_up.data != nullptr; ++half) {
      const auto to = half_of(d_gate_up, half);
      a.written[half] = span_of<T>(to);
      a.vectors = a.vectors && has_vectors(to);
    }
    return quantize_rows(a, f, m, n, rows, columns, s, nothing);
  });
}

status residual_norm_quantize(const nn::residual_norm_args& args, block_format f, const quantized_output& rows,
                              const quantized_output& columns, stream s) {
  nn::residual_norm_args sums = args;
  sums.y = {};
  if (args.y.data != nullptr) {
    if (status c = check_like(args.y, args.x, "y"); !c.ok()) return c;
  }
  const nn::const_tensor_view x = args.branch.empty() ? args.x : nn::const_tensor_view(args.sum);
  if (status c = check_rows(x, 2, args.branch.empty() ? "x" : "sum"); !c.ok()) return c;
  const index_t m = x.extent(0), n = x.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(x.type, [&](auto t) {
    using T = decltype(t);
    quantized_rows_args<norm_producer<T>> a;
    a.producer = {{span_of<T>(x)}, args.gain, args.rstd};
    if (args.y.data != nullptr) a.written[0] = span_of<T>(args.y);
    a.vectors = n % vec8_elements == 0 && is_aligned(args.gain) && has_vectors(x) && has_vectors_or_nothing(args.y);
    return quantize_rows(a, f, m, n, rows, columns, s, [&] { return residual_norm(sums, s); });
  });
}

}  // namespace rotoscale::gpu
