// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Converts a quantized matrix to the layouts that GEMM kernels read, and back. Draws every layout for
// docs/reference/layouts.md.
#include <cstdio>
#include <initializer_list>
#include <vector>

#include "rotoscale/layout.hpp"
#include "rotoscale/quantize_ref.hpp"

using namespace rotoscale;

/// Prints the offsets of some rows and columns, padding in brackets, then the positions of the first bytes in memory.
static void draw(const char* name, layout l, std::initializer_list<index_t> rows,
                 std::initializer_list<index_t> columns) {
  std::printf("%s: %td x %td bytes, padded %td x %td\n     column", name, l.rows, l.columns, l.padded_rows(),
              l.padded_columns());
  for (const index_t c : columns) std::printf("%7td", c);
  for (const index_t r : rows) {
    std::printf("\n  row %5td", r);
    for (const index_t c : columns) {
      char text[24];
      std::snprintf(text, sizeof text, l.is_padding({r, c}) ? "[%td]" : "%td", l.offset(r, c));
      std::printf("%7s", text);
    }
  }
  std::printf("\n  memory    ");
  for (index_t i = 0; i < 9; ++i) std::printf(" (%td,%td)", l.position(i).row, l.position(i).column);
  std::printf(" ...\n\n");
}

int main() {
  draw("row_major", {placement::row_major, 3, 6}, {0, 1, 2}, {0, 1, 2, 3, 4, 5});
  draw("column_major", {placement::column_major, 3, 6}, {0, 1, 2}, {0, 1, 2, 3, 4, 5});
  draw("aiter_data_16x16", {placement::aiter_data_16x16, 32, 64}, {0, 1, 2, 15, 16, 31},
       {0, 1, 15, 16, 31, 32, 48, 63});
  draw("aiter_scale", {placement::aiter_scale, 40, 12}, {0, 1, 15, 16, 17, 31, 32, 40, 255}, {0, 1, 2, 3, 4, 7, 8, 12});
  draw("hipblaslt_scale_32x8", {placement::hipblaslt_scale_32x8, 40, 12}, {0, 16, 32, 40, 63}, {0, 1, 4, 8, 12});
  draw("nvidia_scale_128x4", {placement::nvidia_scale_128x4, 100, 6}, {0, 1, 31, 32, 64, 96, 100, 127},
       {0, 1, 2, 3, 4, 5, 6});

  // A 48 × 384 MXFP4 matrix for AITER's gemm_a4w4: one call for the codes, one for the scales.
  const index_t rows = 48, k = 384;
  std::vector<float> x(rows * k);
  for (index_t i = 0; i < rows * k; ++i) x[std::size_t(i)] = static_cast<float>(i * i % 1009 - 500) * 0.125f;
  std::vector<std::uint8_t> codes(rows * k / 2), scales(rows * k / 32);
  const auto blocks = dense_blocks(mxfp4, rows, k, codes.data(), scales.data());
  quantize_ref(mxfp4, presets::te_rocm, row_major<const float>(x.data(), rows, k), block_axis::row, blocks);

  const layout code_order = code_layout(placement::aiter_data_16x16, mxfp4, rows, k);
  const layout scale_order = scale_layout(placement::aiter_scale, mxfp4, rows, k);
  std::vector<std::uint8_t> shuffled(std::size_t(code_order.size_bytes())),
      swizzled(std::size_t(scale_order.size_bytes()));
  place_codes(mxfp4, blocks, placement::aiter_data_16x16, shuffled.data());
  place_scales(mxfp4, blocks, placement::aiter_scale, swizzled.data());
  std::printf("codes %zu bytes, placed %zu; scales %zu bytes, placed %zu, padded with 0x%02X\n", codes.size(),
              shuffled.size(), scales.size(), swizzled.size(), swizzled.back());

  std::vector<std::uint8_t> codes_back(codes.size()), scales_back(scales.size());
  const auto back = dense_blocks(mxfp4, rows, k, codes_back.data(), scales_back.data());
  gather_codes(mxfp4, shuffled.data(), placement::aiter_data_16x16, back);
  gather_scales(mxfp4, swizzled.data(), placement::aiter_scale, back);
  std::printf("gathered: codes %s, scales %s\n", codes_back == codes ? "equal" : "differ",
              scales_back == scales ? "equal" : "differ");
}
