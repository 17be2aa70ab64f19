// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Per-tensor FP8 with a scale from earlier steps (delayed scaling): cast, transposed cast and amax in one launch. Codes
// are encode(element, x * scale), amax is the largest finite |x|; x is the source, rounded to BF16 first where asked
// for.
#pragma once

#include <utility>

#include "gpu/dialect/launch.hpp"
#include "gpu/quantize/fp8_tile.hpp"

namespace rotoscale::gpu {

/// What to cast to, and how.
struct fp8_options {
  format element = formats::e4m3;  ///< E4M3 or E5M2
  format source = formats::bf16;   ///< FP32, or BF16: FP32 sources are rounded to it first
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;
  random_stream random = {};  ///< for stochastic rounding: element (r, c) of the M × N source takes word r * N + c
};

namespace detail {
template <class T, class Element>
status launch_fp8(const fp8_args& a, bool exactly, hipStream_t stream) {
  const std::uint64_t tiles = std::uint64_t{a.tiles_across} * ((a.rows + fp8_tile - 1) / fp8_tile);
  if (tiles > 0x7FFFFFFFu) return {fault::bad_extent, "source", "has more than 2^31 tiles"};
  const auto kernel = exactly ? fp8_kernel<T, Element, true> : fp8_kernel<T, Element, false>;
  return launch(kernel, dim3{static_cast<unsigned>(tiles), 1, 1}, dim3{fp8_threads, 1, 1}, 0, stream, a);
}
}  // namespace detail

/// Casts M × N `source` (float, fp16 or bf16; any strides). `scale` (device memory, finite and
/// above zero; null: 1) multiplies every element. One launch, no allocation. Any status but ok: nothing was launched.
template <class T>
status cast_transpose_fp8(const fp8_options& o, matrix<const T> source, const float* scale, const fp8_output& out,
                          hipStream_t stream) {
  if (o.element != formats::e4m3 && o.element != formats::e5m2) {
    return {fault::bad_option, "o.element", "must be e4m3 or e5m2"};
  }
  if (o.source != formats::fp32 && (o.source != formats::bf16 || std::is_same_v<T, fp16>)) {
    return {fault::bad_option, "o.source", "must be fp32, or bf16 where the source is not FP16"};
  }
  fp8_args a;
  const bool flipped = is_transposed(source) && o.rounding != rounding::stochastic;
  if (status s = prepare_source(flipped ? transposed(source) : source, a); !s.ok()) return s;
  const index_t m = source.extent(0), n = source.extent(1);
  if (m == 0 || n == 0) return {};
  if (out.rows == nullptr && out.columns == nullptr && out.amax == nullptr) {
    return {fault::bad_pointer, "out.rows", "must not be null where out.columns and out.amax are"};
  }
  a.out = out;
  if (a.out.row_stride == 0) a.out.row_stride = n;
  if (a.out.column_stride == 0) a.out.column_stride = m;
  if (a.out.row_stride < n) return {fault::bad_extent, "out.row_stride", "must not be less than a row"};
  if (a.out.column_stride < m) return {fault::bad_extent, "out.column_stride", "must not be less than a row"};
  if (scale != nullptr) {
    if (status s = check_pointer(scale, sizeof(float), "scale"); !s.ok()) return s;
  }
  if (out.amax != nullptr) {
    if (status s = check_pointer(out.amax, sizeof(float), "out.amax"); !s.ok()) return s;
  }
  if (status s = check_device(); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (flipped) {
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
  const bool exactly = o.rounding != rounding::nearest_even;
  if (o.element == formats::e4m3) return detail::launch_fp8<T, e4m3>(a, exactly, stream);
  return detail::launch_fp8<T, e5m2>(a, exactly, stream);
}

}  // namespace rotoscale::gpu
