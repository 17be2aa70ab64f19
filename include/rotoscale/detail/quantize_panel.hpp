// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Parts of a quantized matrix out of tiles. So many blocks of sixteen output rows are quantized before any is stored
// that each row gets whole cache lines: for column-wise results, which lie transposed, that is what counts.
#pragma once

#include "rotoscale/detail/encode_tile.hpp"

namespace rotoscale::detail {

/// Output rows [v0, v1) and elements [e0, e1) of each: whole groups of rows but at the end of the matrix, whole blocks.
struct output_part {
  index_t v0, v1, e0, e1;
};

/// Blocks whose codes fill sixteen words a row, or a multiple of that; at most 8.
constexpr int panel_blocks(int words) { return words == 8 ? 2 : words == 4 ? 4 : 8; }
inline constexpr int max_panel_words = 48;  // eight blocks of 32 six-bit codes

/// Codes and scale bytes of sixteen rows of a panel.
struct staged_rows {
  lanes_u32 words[max_panel_words];
  std::uint8_t scales[lane_count][8];
};

/// Quantizes block `e / length` of the rows from v on: one group of sixteen rows, or as many as share a scale.
template <bool Exact, int Length, class T>
inline bool quantize_tile(const tile_plan& p, matrix<const T> source, block_axis axis, index_t k, index_t v, index_t e,
                          int block, staged_rows* staged) {
  const int groups = p.f.rows > lane_count ? p.f.rows / lane_count : 1;
  lanes_u32 x[2][Length], amax{}, wrapped{};
  const bool ignore_nan = Exact && p.o.policy.nan == block_policy::nan_rule::ignore;
  for (int g = 0; g < groups; ++g) {
    load_tile<Exact>(p, source, axis, v + g * lane_count, e, x[g], wrapped);
    finish_rotation<Exact>(p, x[g]);
    join_amax(x[g], ignore_nan, amax);
  }
  if (p.f.rows > 1) spread_largest(amax);
  tile_scales s;
  if constexpr (!Exact) {
    if (!quick_scales(p, amax, wrapped, s)) return false;
  } else if constexpr (Length == 32) {
    exact_e8m0_scales(p, amax, s);
  } else {
    exact_float_scales<formats::ue4m3>(p, amax, s);
  }
  for (int g = 0; g < groups; ++g) {
    tile_words random(p.o, k, v + g * lane_count, e);
    encode_tile<Exact>(p, x[g], s, random, staged[g].words + block * p.words);
    for (int l = 0; l < lane_count; ++l) staged[g].scales[l][block] = static_cast<std::uint8_t>(s.codes[l]);
  }
  return true;
}

template <class T>
inline void quantize_tile(const tile_plan& p, matrix<const T> source, block_axis axis, index_t k, index_t v, index_t e,
                          int block, staged_rows* staged) {
  if (p.f.length == 16) {
    quantize_tile<true, 16>(p, source, axis, k, v, e, block, staged);
  } else if (!quantize_tile<false, 32>(p, source, axis, k, v, e, block, staged)) {
    quantize_tile<true, 32>(p, source, axis, k, v, e, block, staged);
  }
}

/// Stores `blocks` staged blocks of sixteen rows (fewer at the end of the matrix) from row v and element e on.
inline void store_rows(const tile_plan& p, staged_rows& staged, int blocks, block_matrix<std::uint8_t> out, index_t v,
                       index_t e) {
  const int rows = static_cast<int>(out.rows - v < lane_count ? out.rows - v : lane_count);
  const index_t block = e / p.f.length;
  std::uint8_t* codes = out.codes + v * out.code_stride + block * p.words * 4;
  for (int first = 0; first < blocks * p.words; first += lane_count) {
    lanes_u32 t[lane_count];
    for (int i = 0; i < lane_count; ++i) t[i] = staged.words[first + i];
    transpose_lanes(t);
    const int count = blocks * p.words - first < lane_count ? blocks * p.words - first : lane_count;
    if (count == lane_count) {
      for (int l = 0; l < rows; ++l) __builtin_memcpy(codes + l * out.code_stride + first * 4, &t[l], sizeof t[l]);
    } else {
      for (int l = 0; l < rows; ++l)
        __builtin_memcpy(codes + l * out.code_stride + first * 4, &t[l], static_cast<std::size_t>(count) * 4);
    }
  }
  const int step = p.f.rows;  // several rows share one of scales
  for (int l = 0; l < rows; l += step) {
    if (v % step != 0) break;
    std::uint8_t* scales = out.scales + (v + l) / step * out.scale_stride + block;
    for (int b = 0; b < blocks; ++b) scales[b] = staged.scales[l][b];
  }
}

/// Sixteen-row groups that take turns while a panel is staged. Along columns a strip of them reads whole runs of each
/// source row; along rows each goes on by itself.
inline constexpr int strip_groups = 8;

template <class T>
inline void quantize_part(const tile_plan& p, matrix<const T> source, block_axis axis, block_matrix<std::uint8_t> out,
                          const output_part& part) {
  const int tile_rows = p.f.rows > lane_count ? p.f.rows : lane_count;
  const index_t strip = axis == block_axis::row ? tile_rows : strip_groups * lane_count;
  const index_t panel = panel_blocks(p.words) * p.f.length;
  staged_rows staged[strip_groups];
  for (index_t v0 = part.v0; v0 < part.v1; v0 += strip) {
    const index_t v1 = part.v1 - v0 < strip ? part.v1 : v0 + strip;
    for (index_t e0 = part.e0; e0 < part.e1; e0 += panel) {
      const index_t e1 = part.e1 - e0 < panel ? part.e1 : e0 + panel;
      const int blocks = static_cast<int>((e1 - e0) / p.f.length);
      for (int b = 0; b < blocks; ++b) {
        for (index_t v = v0; v < v1; v += tile_rows) {
          quantize_tile(p, source, axis, out.k, v, e0 + b * p.f.length, b, staged + (v - v0) / lane_count);
        }
      }
      for (index_t v = v0; v < v1; v += lane_count) {
        store_rows(p, staged[(v - v0) / lane_count], blocks, out, v, e0);
      }
    }
  }
}

}  // namespace rotoscale::detail
