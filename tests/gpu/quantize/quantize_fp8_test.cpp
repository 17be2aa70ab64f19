// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Per-tensor FP8 cast, transpose and amax against encode, by bytes, in host mode or on a device.
#include "gpu/api/quantize_fp8.hpp"

#include <doctest/doctest.h>

#include <string>

#include "rotoscale/quantize_ref.hpp"
#include "tests/gpu/device_memory.hpp"

namespace quantize_quantize_fp8_test {

using namespace rotoscale;
using namespace gpu_test;

struct fp8_case {
  index_t rows, columns;
  gpu::fp8_options options;
  float scale = 1.0f;
  index_t extra_stride = 0, extra_row_stride = 0, extra_column_stride = 0;
  bool want_rows = true, want_columns = true, want_amax = true;
  index_t source_column_stride = 1;
  bool transposed = false;
};

/// FP8 operands as docs/reference/recipes.md defines them, one element at a time.
template <class T>
std::uint8_t expected_code(const gpu::fp8_options& o, T source, float scale, std::uint64_t index) {
  const float x = round_to_format(o.source, source_value(source));
  // FP32 arithmetic may lose a NaN's sign, so NaN is not multiplied.
  const float scaled = fp32_is_nan(fp32_bits(x)) ? x : x * scale;
  return static_cast<std::uint8_t>(encode(o.element, scaled, o.rounding, overflow::saturate, o.random.word(index)));
}

template <class T>
void check(const fp8_case& c, unsigned seed) {
  CAPTURE(c.rows);
  CAPTURE(c.columns);
  CAPTURE(seed);
  const index_t rows_in_memory = c.transposed ? c.columns : c.rows;
  const index_t columns_in_memory = c.transposed ? c.rows : c.columns;
  const index_t stride = columns_in_memory * c.source_column_stride + c.extra_stride;
  const std::vector<T> x = make_source<T>(rows_in_memory, stride, seed);
  const auto view_of = [&](const T* data) {
    const matrix<const T> memory{data, {rows_in_memory, columns_in_memory}, {stride, c.source_column_stride}};
    return c.transposed ? transposed(memory) : memory;
  };
  const device_array<T> source(x);
  const index_t row_stride = c.columns + c.extra_row_stride, column_stride = c.rows + c.extra_column_stride;
  const device_array<std::uint8_t> rows(static_cast<std::size_t>(c.rows * row_stride)),
      columns(static_cast<std::size_t>(c.columns * column_stride));
  const device_array<float> scale(std::vector<float>{c.scale}), amax(std::vector<float>{0.5f});
  const gpu::fp8_output out{c.want_rows ? rows.data() : nullptr, c.want_columns ? columns.data() : nullptr, row_stride,
                            column_stride, c.want_amax ? amax.data() : nullptr};
  const auto view = view_of(source.data());
  const gpu::status s = run([&](gpu::stream stream) {
    return gpu::cast_transpose_fp8(c.options, view, c.scale == 1.0f ? nullptr : scale.data(), out, stream);
  });
  CHECK_MESSAGE(s.ok(), s.message());

  std::vector<std::uint8_t> expected_rows(rows.read().size(), 0xA5), expected_columns(columns.read().size(), 0xA5);
  std::uint32_t largest = fp32_bits(0.5f);
  for (index_t r = 0; r < c.rows; ++r) {
    for (index_t k = 0; k < c.columns; ++k) {
      const T value = view_of(x.data())(r, k);
      const std::uint8_t code = expected_code(c.options, value, c.scale, static_cast<std::uint64_t>(r * c.columns + k));
      if (c.want_rows) expected_rows[static_cast<std::size_t>(r * row_stride + k)] = code;
      if (c.want_columns) expected_columns[static_cast<std::size_t>(k * column_stride + r)] = code;
      const std::uint32_t u = fp32_bits(round_to_format(c.options.source, source_value(value))) & fp32_magnitude_mask;
      if (u < fp32_infinity_bits && u > largest) largest = u;
    }
  }
  CHECK(rows.read() == expected_rows);
  CHECK(columns.read() == expected_columns);
  CHECK(fp32_bits(amax.read()[0]) == (c.want_amax ? largest : fp32_bits(0.5f)));
  CHECK(rows.guards_hold());
  CHECK(columns.guards_hold());
  CHECK(amax.guards_hold());
}

TEST_CASE_TEMPLATE("FP8 cast, transpose and amax", T, bf16, fp16, float) {
  unsigned seed = 0;
  const format source = std::is_same_v<T, fp16> ? formats::fp32 : formats::bf16;
  for (const format element : {formats::e4m3, formats::e5m2}) {
    const gpu::fp8_options o{element, source};
    for (const float scale : {1.0f, 0.37f, 1024.0f, 0x1p-30f}) check<T>({128, 128, o, scale}, ++seed);
    check<T>({256, 384, o, 3.0f}, ++seed);
    check<T>({64, 96, o, 3.0f}, ++seed);
    check<T>({37, 131, o, 3.0f}, ++seed);
    check<T>({130, 16, o, 3.0f, 3, 5, 7}, ++seed);
    check<T>({128, 256, o, 3.0f, 8, 16, 32}, ++seed);
    check<T>({128, 128, o, 3.0f, 0, 0, 0, true, false, false}, ++seed);
    check<T>({128, 128, o, 3.0f, 0, 0, 0, false, true, true}, ++seed);
    check<T>({128, 128, o, 3.0f, 0, 0, 0, false, false, true}, ++seed);
    check<T>({48, 144, {element, formats::fp32}, 0.7f}, ++seed);
    for (const bool is_transposed : {false, true}) {
      for (const index_t column_stride : {1, 2}) {
        check<T>({128, 256, o, 3.0f, 8, 16, 0, true, true, true, column_stride, is_transposed}, ++seed);
        check<T>({37, 131, o, 3.0f, 1, 0, 3, true, true, true, column_stride, is_transposed}, ++seed);
        check<T>({64,
                  48,
                  {element, source, rounding::stochastic, {5, 6}},
                  3.0f,
                  0,
                  0,
                  0,
                  true,
                  true,
                  false,
                  column_stride,
                  is_transposed},
                 ++seed);
      }
    }
    for (const rounding r : {rounding::stochastic, rounding::toward_zero}) {
      check<T>({48, 144, {element, source, r, {99, 7}}, 0.7f}, ++seed);
    }
  }
}

TEST_CASE("large, and captured in a graph") {
  const index_t size = on_device ? 16 : 1;
  through_graphs = true;
  check<bf16>({256 * size, 320 * size, {formats::e4m3, formats::bf16}, 448.0f}, 50);
  check<float>({130 * size, 144 * size, {formats::e5m2, formats::bf16}, 3.0f}, 51);
  through_graphs = false;
}

TEST_CASE("bad arguments are named before anything is launched") {
  const device_array<fp16> x(64 * 64);
  const device_array<std::uint8_t> codes(64 * 64);
  const auto source = row_major<const fp16>(x.data(), 64, 64);
  const gpu::fp8_output good{codes.data()};
  const gpu::fp8_options o{formats::e4m3, formats::fp32};
  const auto names = [](const gpu::status& s, const std::string& argument) {
    CHECK_MESSAGE(s.message().rfind(argument + ": ", 0) == 0, s.message());
  };
  names(gpu::cast_transpose_fp8({formats::e2m1, formats::fp32}, source, nullptr, good, {}), "o.element");
  names(gpu::cast_transpose_fp8({formats::e4m3, formats::bf16}, source, nullptr, good, {}), "o.source");
  names(gpu::cast_transpose_fp8(o, source, nullptr, {}, {}), "out.rows");
  names(gpu::cast_transpose_fp8(o, row_major<const fp16>(nullptr, 64, 64), nullptr, good, {}), "source");
  names(gpu::cast_transpose_fp8(o, source, nullptr, {codes.data(), nullptr, 63}, {}), "out.row_stride");
  names(gpu::cast_transpose_fp8(o, source, nullptr, {nullptr, codes.data(), 0, 63}, {}), "out.column_stride");
  const auto* odd = reinterpret_cast<const float*>(codes.data() + 1);
  names(gpu::cast_transpose_fp8(o, source, odd, good, {}), "scale");
  CHECK(codes.read() == std::vector<std::uint8_t>(64 * 64, 0xA5));
}

}  // namespace quantize_quantize_fp8_test
