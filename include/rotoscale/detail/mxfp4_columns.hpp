// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Column-wise MXFP4: columns are lanes already, so nothing is transposed on the way in; four blocks of a column make
// one line of its (transposed) output.
#pragma once

#include "rotoscale/detail/mxfp4_lanes.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::detail {

/// Blocks of a column that fill a cache line of codes, and the source rows that they take.
inline constexpr index_t line_blocks = 4;
inline constexpr index_t band_rows = 32 * line_blocks;

/// Up to 16 elements of a row as FP32 bits; lanes beyond are zero.
inline void load_lanes(const float* from, index_t lanes, lanes_u32& x) {
  if (lanes == lane_count) {
    __builtin_memcpy(&x, from, sizeof x);
  } else {
    x = lanes_u32{};
    __builtin_memcpy(&x, from, static_cast<std::size_t>(lanes) * sizeof(float));
  }
}
inline void load_lanes(const bf16* from, index_t lanes, lanes_u32& x) {
  using halves = std::uint16_t __attribute__((vector_size(32)));
  halves h{};
  __builtin_memcpy(&h, from, lanes == lane_count ? sizeof h : static_cast<std::size_t>(lanes) * sizeof(bf16));
  x = __builtin_convertvector(h, lanes_u32) << 16;
}

/// Source rows [r0, r0 + rows) (rows a multiple of 32, at most band_rows) of up to 16 columns from c0 on.
template <class T>
void quantize_column_group(const block_options& o, matrix<T> source, block_matrix<std::uint8_t> out, index_t r0,
                           index_t rows, index_t c0, index_t lanes) {
  lanes_u32 words[16] = {};
  for (index_t b = 0; b < rows / 32; ++b) {
    lanes_u32 x[32], bytes;
    for (int i = 0; i < 32; ++i) load_lanes(source.data + (r0 + 32 * b + i) * source.stride(0) + c0, lanes, x[i]);
    const index_t block = r0 / 32 + b;
    std::uint8_t* scales = out.scales + c0 * out.scale_stride + block;
    if (quantize_lanes(o, x, words + 4 * b, bytes)) {
      for (index_t l = 0; l < lanes; ++l) scales[l * out.scale_stride] = static_cast<std::uint8_t>(bytes[l]);
      continue;
    }
    std::uint8_t codes[16 * lane_count];
    const block_matrix<std::uint8_t> some{lanes, 32, codes, 16, scales, out.scale_stride};
    quantize_ref(mxfp4, o, submatrix(source, r0 + 32 * b, c0, 32, lanes), block_axis::column, some);
    for (index_t l = 0; l < lanes; ++l) {
      std::uint32_t word[4];
      __builtin_memcpy(word, codes + 16 * l, sizeof word);
      for (int w = 0; w < 4; ++w) words[4 * b + w][l] = word[w];
    }
  }
  transpose_lanes(words);
  for (index_t l = 0; l < lanes; ++l) {
    __builtin_memcpy(out.codes + (c0 + l) * out.code_stride + r0 / 2, &words[l], static_cast<std::size_t>(rows / 2));
  }
}

/// Source rows [r0, r0 + rows) of columns [c0, c1).
template <class T>
void quantize_column_band(const block_options& o, matrix<T> source, block_matrix<std::uint8_t> out, index_t r0,
                          index_t rows, index_t c0, index_t c1) {
  for (index_t c = c0; c < c1; c += lane_count) {
    quantize_column_group(o, source, out, r0, rows, c, c1 - c < lane_count ? c1 - c : lane_count);
  }
}

/// Tasks of the column-wise quantizers: bands of source rows, cut into pieces that stay in a core's cache.
inline constexpr index_t piece_columns = 512;
template <class Body>
void for_each_piece(thread_pool& pool, index_t rows, index_t columns, const Body& body) {
  const index_t across = (columns + piece_columns - 1) / piece_columns;
  pool.for_each((rows + band_rows - 1) / band_rows * across, [&](index_t i) {
    const index_t r = i / across * band_rows, c = i % across * piece_columns;
    body(r, rows - r < band_rows ? rows - r : band_rows, c, columns - c < piece_columns ? columns : c + piece_columns);
  });
}

}  // namespace rotoscale::detail
