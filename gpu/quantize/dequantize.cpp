// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/dequantize.hpp.
#include "gpu/api/dequantize.hpp"

#include "gpu/api/quantize.hpp"
#include "gpu/quantize/dequantize_kernel.hpp"
#include "gpu/quantize/prepare.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

template <class T, class Element>
status launch_dequantize(const dequantize_kernel_args& a, bool is_transposed, stream s) {
  const unsigned words = a.k / word_count<Element::format>;
  const unsigned inner = is_transposed ? a.rows : words, outer = is_transposed ? words : a.rows;
  const unsigned fours = (outer + 3) / 4;
  const dim3 grid{(inner + 255) / 256, fours < 65535 ? fours : 65535, 1};
  const auto kernel = is_transposed ? dequantize_kernel<T, Element, true> : dequantize_kernel<T, Element, false>;
  return launch(kernel, grid, dim3{256, 1, 1}, 0, s, a);
}

/// Launches a kernel by the format of elements: body(element).
template <class Body>
status with_element(const format& f, const Body& body) {
  if (f == formats::e2m1) return body(e2m1{});
  if (f == formats::e2m3) return body(e2m3{});
  if (f == formats::e3m2) return body(e3m2{});
  if (f == formats::e4m3) return body(e4m3{});
  return body(e5m2{});
}

/// Checks the arguments and fills the kernel's. No rows: there is nothing to do.
template <class T>
status prepare_dequantize(const gemm_operand& q, block_axis axis, matrix<T> target, dequantize_kernel_args& a) {
  const block_format f = q.blocks();
  if (!dequantizes(f)) return {error_code::bad_option, "q.element", "must be in blocks that dequantizes() names"};
  const bool is_transposed = axis == block_axis::column;
  if (target.extent(0) != (is_transposed ? q.k : q.rows) || target.extent(1) != (is_transposed ? q.rows : q.k)) {
    return {error_code::bad_extent, "target", "must have the extents of the quantized matrix in its orientation"};
  }
  if (q.rows < 0 || q.k < 0 || q.rows > max_extent || q.k > max_extent || q.k % f.length != 0 || q.rows % f.rows != 0) {
    return {error_code::bad_extent, "q", "extents must be 0 to 2^24, in whole blocks"};
  }
  if (q.transposed || q.batch_stride != 0 || q.scale_batch_stride != 0) {
    return {error_code::bad_option, "q", "must be one matrix, not transposed"};
  }
  if (q.rows == 0 || q.k == 0) return {};
  if (q.factor != nullptr) {
    if (status s = check_pointer(q.factor, 4, "q.factor"); !s.ok()) return s;
  }
  if (status s = check_pointer(q.codes, f.element.bits() == 6 ? 1 : 4, "q.codes"); !s.ok()) return s;
  if (status s = check_pointer(q.scales, 1, "q.scales"); !s.ok()) return s;
  if (status s = check_pointer(target.data, sizeof(T), "target"); !s.ok()) return s;
  if (status s = prepare_layout(f, q.code_order, q.scale_order, q.code_stride, q.scale_stride, q.rows, q.k,
                                f.element.bits() == 6 ? 1 : 4,
                                {"q.code_order", "q.scale_order", "q.code_stride", "q.scale_stride"}, a.in);
      !s.ok()) {
    return s;
  }
  a.in.codes = const_cast<std::uint8_t*>(q.codes);
  a.in.scales = const_cast<std::uint8_t*>(q.scales);
  a.rows = static_cast<unsigned>(q.rows);
  a.k = static_cast<unsigned>(q.k);
  a.length = static_cast<unsigned>(f.length);
  a.scale = f.scale;
  // Row-major scales are stored once per block of rows, placed scales once per row.
  a.scale_rows = q.scale_order == placement::row_major ? static_cast<unsigned>(f.rows) : 1;
  a.target = target.data;
  a.row_stride = target.stride(is_transposed ? 1 : 0);
  a.k_stride = target.stride(is_transposed ? 0 : 1);
  a.factor = q.factor;
  a.vectors = a.k_stride == 1 && reinterpret_cast<std::uintptr_t>(a.target) % 16 == 0 &&
              a.row_stride * static_cast<index_t>(sizeof(T)) % 16 == 0;
  return {};
}

template <class T>
status dequantize_to(const gemm_operand& q, block_axis axis, matrix<T> target, stream stream) {
  dequantize_kernel_args a;
  if (status s = prepare_dequantize(q, axis, target, a); !s.ok() || a.rows == 0) return s;
  if (status s = check_ready(stream); !s.ok()) return s;
  return with_element(q.element, [&](auto element) {
    return launch_dequantize<T, decltype(element)>(a, axis == block_axis::column, stream);
  });
}

}  // namespace

status dequantize(const gemm_operand& q, block_axis axis, matrix<float> target, stream s) {
  return dequantize_to(q, axis, target, s);
}
status dequantize(const gemm_operand& q, block_axis axis, matrix<fp16> target, stream s) {
  return dequantize_to(q, axis, target, s);
}
status dequantize(const gemm_operand& q, block_axis axis, matrix<bf16> target, stream s) {
  return dequantize_to(q, axis, target, s);
}

status dequantize_pair(const gemm_operand& a, matrix<bf16> to_a, const gemm_operand& b, matrix<bf16> to_b, stream s) {
  dequantize_pair_args p;
  if (status c = prepare_dequantize(a, block_axis::row, to_a, p.of[0].matrix); !c.ok()) return c;
  if (status c = prepare_dequantize(b, block_axis::row, to_b, p.of[1].matrix); !c.ok()) return c;
  if (a.element != b.element || p.of[0].matrix.rows == 0 || p.of[1].matrix.rows == 0) {
    const status first = dequantize(a, block_axis::row, to_a, s);
    return first.ok() ? dequantize(b, block_axis::row, to_b, s) : first;
  }
  if (status c = check_ready(s); !c.ok()) return c;
  return with_element(a.element, [&](auto element) {
    using Element = decltype(element);
    index_t count = 0;
    for (auto& x : p.of) {
      const unsigned fours = (x.matrix.rows + 3) / 4;
      x.across = (x.matrix.k / word_count<Element::format> + 255) / 256;
      x.down = fours < 65535 ? fours : 65535;
      count += index_t{x.across} * x.down;
    }
    return launch(dequantize_pair_kernel<bf16, Element>, blocks(count), blocks(256), 0, s, p);
  });
}

}  // namespace rotoscale::gpu
