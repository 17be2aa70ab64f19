// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launchers of gpu/api/quantize_fp8.hpp.
#include "gpu/api/quantize_fp8.hpp"

#include <utility>

#include "gpu/quantize/prepare_fp8.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

template <class T, class Element>
status launch_fp8(const fp8_kernel_args& a, unsigned tiles, bool exactly, stream s) {
  const auto kernel = exactly ? fp8_kernel<T, Element, true> : fp8_kernel<T, Element, false>;
  return launch(kernel, blocks(tiles), blocks(fp8_threads), 0, s, a);
}

template <class T>
status cast_source(const fp8_options& o, matrix<const T> source, const float* scale, const fp8_output& out,
                   stream stream) {
  if (status s = check_fp8_options<T>(o); !s.ok()) return s;
  fp8_kernel_args a;
  const bool reads_transpose = is_transposed(source) && o.rounding != rounding::stochastic;
  if (status s = prepare_source(reads_transpose ? transposed(source) : source, a); !s.ok()) return s;
  const index_t m = source.extent(0), n = source.extent(1);
  if (m == 0 || n == 0) return {};
  if (status s = prepare_fp8_output(out, m, n, a.out); !s.ok()) return s;
  if (status s = check_fp8_scale(scale); !s.ok()) return s;
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (reads_transpose) {
    std::swap(a.out.rows, a.out.columns);
    std::swap(a.out.row_stride, a.out.column_stride);
  }
  unsigned tiles = 0;
  if (status s = count_fp8_tiles(a.rows, a.columns, a.tiles_across, tiles); !s.ok()) return s;
  a.vectors = a.vectors && has_vectors(a.out);
  a.cast = make_fp8_cast(o, scale);
  const bool exactly = o.rounding != rounding::nearest_even;
  if (o.element == formats::e4m3) return launch_fp8<T, e4m3>(a, tiles, exactly, stream);
  return launch_fp8<T, e5m2>(a, tiles, exactly, stream);
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
