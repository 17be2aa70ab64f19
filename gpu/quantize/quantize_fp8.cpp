// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/quantize_fp8.hpp.
#include "gpu/api/quantize_fp8.hpp"

#include <utility>

#include "gpu/quantize/fp8_tile.hpp"
#include "gpu/quantize/prepare.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

template <class T, class Element>
status launch_fp8(const fp8_kernel_args& a, bool exactly, stream s) {
  const std::uint64_t tiles = std::uint64_t{a.tiles_across} * ((a.rows + fp8_tile - 1) / fp8_tile);
  if (tiles > 0x7FFFFFFFu) return {error_code::bad_extent, "source", "has more than 2^31 tiles"};
  const auto kernel = exactly ? fp8_kernel<T, Element, true> : fp8_kernel<T, Element, false>;
  return launch(kernel, dim3{static_cast<unsigned>(tiles), 1, 1}, dim3{fp8_threads, 1, 1}, 0, s, a);
}

/// Strides of 0 become dense ones.
status prepare_fp8_output(const fp8_output& out, index_t m, index_t n, fp8_output& to) {
  if (out.rows == nullptr && out.columns == nullptr && out.amax == nullptr) {
    return {error_code::bad_pointer, "out.rows", "must not be null where out.columns and out.amax are"};
  }
  to = out;
  if (to.row_stride == 0) to.row_stride = n;
  if (to.column_stride == 0) to.column_stride = m;
  if (to.row_stride < n) return {error_code::bad_extent, "out.row_stride", "must not be less than a row"};
  if (to.column_stride < m) return {error_code::bad_extent, "out.column_stride", "must not be less than a row"};
  if (out.factor != nullptr) {
    if (status s = check_pointer(out.factor, sizeof(float), "out.factor"); !s.ok()) return s;
  }
  return out.amax == nullptr ? status{} : check_pointer(out.amax, sizeof(float), "out.amax");
}

template <class T>
status cast_source(const fp8_options& o, matrix<const T> source, const float* scale, const fp8_output& out,
                   stream stream) {
  if (o.element != formats::e4m3 && o.element != formats::e5m2) {
    return {error_code::bad_option, "o.element", "must be e4m3 or e5m2"};
  }
  if (o.source != formats::fp32 && (o.source != formats::bf16 || std::is_same_v<T, fp16>)) {
    return {error_code::bad_option, "o.source", "must be fp32, or bf16 where the source is not FP16"};
  }
  fp8_kernel_args a;
  const bool reads_transpose = is_transposed(source) && o.rounding != rounding::stochastic;
  if (status s = prepare_source(reads_transpose ? transposed(source) : source, a); !s.ok()) return s;
  const index_t m = source.extent(0), n = source.extent(1);
  if (m == 0 || n == 0) return {};
  if (status s = prepare_fp8_output(out, m, n, a.out); !s.ok()) return s;
  if (scale != nullptr) {
    if (status s = check_pointer(scale, sizeof(float), "scale"); !s.ok()) return s;
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (reads_transpose) {
    std::swap(a.out.rows, a.out.columns);
    std::swap(a.out.row_stride, a.out.column_stride);
  }
  const auto aligned = [](const void* pointer, index_t stride) {
    return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride % 16 == 0;
  };
  a.tiles_across = (a.columns + fp8_tile - 1) / fp8_tile;
  a.vectors = a.vectors && aligned(a.out.rows, a.out.rows == nullptr ? 0 : a.out.row_stride) &&
              aligned(a.out.columns, a.out.columns == nullptr ? 0 : a.out.column_stride);
  a.scale = scale;
  a.bf16_source = o.source == formats::bf16;
  a.rounding = o.rounding;
  a.random = o.random;
  a.drawn = o.drawn;
  const bool exactly = o.rounding != rounding::nearest_even;
  if (o.element == formats::e4m3) return launch_fp8<T, e4m3>(a, exactly, stream);
  return launch_fp8<T, e5m2>(a, exactly, stream);
}

}  // namespace

status cast_transpose_fp8(const fp8_options& o, matrix<const float> source, const float* scale, const fp8_output& out,
                          stream s) {
  return cast_source(o, source, scale, out, s);
}
status cast_transpose_fp8(const fp8_options& o, matrix<const fp16> source, const float* scale, const fp8_output& out,
                          stream s) {
  return cast_source(o, source, scale, out, s);
}
status cast_transpose_fp8(const fp8_options& o, matrix<const bf16> source, const float* scale, const fp8_output& out,
                          stream s) {
  return cast_source(o, source, scale, out, s);
}

}  // namespace rotoscale::gpu
