// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers with FP8 output against the layer's launcher and encode, by bytes.
#include <string>

#include "layer_cases.hpp"
#include "rotoscale/quantize_ref.hpp"

namespace nn_fp8_rows_test {

using namespace rotoscale;
using gpu_test::device_array;
using gpu_test::layer;
namespace nn = rotoscale::nn;

struct fp8_case {
  gpu::fp8_options options;
  float scale = 1.0f;
  bool rows = true, columns = true, amax = true;
  index_t extra_row_stride = 0, extra_column_stride = 0;
};

template <class T>
void check_layer(layer which, index_t m, index_t n, const fp8_case& c, bool writes, std::size_t skew = 0) {
  CAPTURE(static_cast<int>(which));
  CAPTURE(m);
  CAPTURE(n);
  const gpu_test::layer_case<T> made(which, m, n, writes, skew);
  const index_t cols = made.cols(), row_stride = cols + c.extra_row_stride, column_stride = m + c.extra_column_stride;
  const device_array<std::uint8_t> rows(static_cast<std::size_t>(m * row_stride)),
      columns(static_cast<std::size_t>(cols * column_stride));
  const device_array<float> scale(std::vector<float>{c.scale}), inverse(std::vector<float>{0.375f}),
      amax(std::vector<float>{0.5f}), factor(std::vector<float>{-1.0f});
  const gpu::fp8_output out{c.rows ? rows.data() : nullptr,
                            c.columns ? columns.data() : nullptr,
                            c.extra_row_stride == 0 ? 0 : row_stride,
                            c.extra_column_stride == 0 ? 0 : column_stride,
                            c.amax ? amax.data() : nullptr,
                            factor.data(),
                            c.scale == 1.0f ? nullptr : inverse.data()};
  const float* const given = c.scale == 1.0f ? nullptr : scale.data();
  const std::vector<T> source = made.run(gpu::fp8_target{c.options, given, out});
  std::vector<std::uint8_t> want_rows(rows.read().size(), 0xA5), want_columns(columns.read().size(), 0xA5);
  std::uint32_t largest = fp32_bits(0.5f);
  for (index_t r = 0; r < m; ++r) {
    for (index_t k = 0; k < cols; ++k) {
      const float x = round_to_format(c.options.source, source_value(source[static_cast<std::size_t>(r * cols + k)]));
      const std::uint32_t u = fp32_bits(x) & fp32_magnitude_mask;
      const auto code = static_cast<std::uint8_t>(
          encode(c.options.element, fp32_is_nan(u) ? x : x * c.scale, rounding::nearest_even, overflow::saturate, 0));
      if (c.rows) want_rows[static_cast<std::size_t>(r * row_stride + k)] = code;
      if (c.columns) want_columns[static_cast<std::size_t>(k * column_stride + r)] = code;
      if (u < fp32_infinity_bits && u > largest) largest = u;
    }
  }
  CHECK(rows.read() == want_rows);
  CHECK(columns.read() == want_columns);
  CHECK(fp32_bits(amax.read()[0]) == (c.amax ? largest : fp32_bits(0.5f)));
  CHECK(factor.read()[0] == (c.scale == 1.0f ? 1.0f : 0.375f));
  CHECK(rows.guards_hold());
  CHECK(columns.guards_hold());
}

TEST_CASE("a layer's FP8 operands are those of what it would write") {
  fp8_case e4m3_case, e5m2_case, fp32_source, only_rows, only_columns, strided;
  e4m3_case.scale = 48.0f;
  e5m2_case.options.element = formats::e5m2;
  fp32_source.options.source = formats::fp32;
  fp32_source.scale = 0.25f;
  only_rows.columns = only_rows.amax = false;
  only_columns.rows = false;
  strided.extra_row_stride = 48;
  strided.extra_column_stride = 3;
  for (const layer which : gpu_test::layers) {
    // Whole tiles and their edges, with NaN and Inf, for every storage and element.
    check_layer<bf16>(which, 256, 128, e4m3_case, true);
    check_layer<bf16>(which, 160, 272, e4m3_case, true);
    check_layer<bf16>(which, 128, 256, e5m2_case, false);
    check_layer<float>(which, 130, 144, e5m2_case, true);
    check_layer<float>(which, 128, 128, fp32_source, false);
    check_layer<bf16>(which, 128, 136, only_rows, true);
    check_layer<float>(which, 136, 128, only_columns, true);
    check_layer<bf16>(which, 128, 128, strided, true);
    // Unaligned rows; a matrix smaller than a vector; a number of columns that is not a multiple of 8.
    check_layer<bf16>(which, 128, 128, e4m3_case, true, 1);
    check_layer<float>(which, 3, 5, e4m3_case, true);
    check_layer<bf16>(which, 129, 131, e5m2_case, true);
  }
}

}  // namespace nn_fp8_rows_test
