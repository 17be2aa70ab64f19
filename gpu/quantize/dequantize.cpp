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

template <class T>
status dequantize_to(const gemm_operand& q, block_axis axis, matrix<T> target, stream stream) {
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
  dequantize_kernel_args a;
  if (status s = prepare_layout(f, q.code_order, q.scale_order, q.code_stride, q.scale_stride, q.rows, q.k,
                                f.element.bits() == 6 ? 1 : 4,
                                {"q.code_order", "q.scale_order", "q.code_stride", "q.scale_stride"}, a.in);
      !s.ok()) {
    return s;
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
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
  if (f.element == formats::e2m1) return launch_dequantize<T, e2m1>(a, is_transposed, stream);
  if (f.element == formats::e2m3) return launch_dequantize<T, e2m3>(a, is_transposed, stream);
  if (f.element == formats::e3m2) return launch_dequantize<T, e3m2>(a, is_transposed, stream);
  if (f.element == formats::e4m3) return launch_dequantize<T, e4m3>(a, is_transposed, stream);
  return launch_dequantize<T, e5m2>(a, is_transposed, stream);
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

}  // namespace rotoscale::gpu
