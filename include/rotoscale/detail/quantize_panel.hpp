// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizes tiles into parts of a matrix. A panel has several blocks of a tile's output rows, and is stored at once, so
// that each row gets whole cache lines. This decides the speed of column-wise results, which are stored transposed.
#pragma once

#include "rotoscale/detail/encode_tile.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Output rows [v0, v1) and elements [e0, e1) of each: whole blocks, and whole groups of rows except at the matrix end.
struct output_part {
  index_t v0, v1, e0, e1;
};

/// Blocks whose codes fill sixteen words per row, or a multiple of that; at most 8.
constexpr int panel_blocks(int words) { return words == 8 ? 2 : words == 4 ? 4 : 8; }
inline constexpr int max_panel_words = 48;  // eight blocks of 32 six-bit codes
inline constexpr index_t line_bytes = 64;

/// Start of panels in a row, and whether lines bypass the caches. Reading a line before writing it is the largest cost
/// of a transposed result, but a small result should stay in the caches.
struct panel_layout {
  bool stream = false;
  int first_blocks = 0;  ///< blocks of a row's first panel, after which panels are line-aligned
};

inline panel_layout lay_out_panels(const tile_plan& p, block_matrix<std::uint8_t> out) {
  constexpr index_t small = index_t{1} << 20;
  const int most = panel_blocks(p.words);
  if (out.code_stride % line_bytes != 0 || out.rows * out.code_stride < small) return {false, most};
  for (int blocks = most; blocks > 0; --blocks) {
    if (reinterpret_cast<std::uintptr_t>(out.codes + blocks * p.words * 4) % line_bytes == 0) return {true, blocks};
  }
  return {false, most};
}

/// Codes and scale bytes of a tile's rows of a panel: one row per lane, the first block in the lowest bytes.
struct staged_rows {
  lanes_u32 words[max_panel_words];
  lanes_u32 scales[2];
};

inline void stage_scales(const lanes_u32& codes, int block, staged_rows& staged) {
  lanes_u32& scales = staged.scales[block / 4];
  scales = (block % 4 == 0 ? lanes_u32{} : scales) | codes << (block % 4 * 8);
}

/// Address `ahead` bytes after `at`, for prefetching. Computed as an integer, since a pointer must not leave its array.
/// Prefetching from an invalid address does nothing.
inline const void* address_ahead(const void* at, index_t ahead) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(at) + static_cast<std::uintptr_t>(ahead));
}
[[gnu::always_inline]] inline void fetch(const void* at, index_t ahead) {
  __builtin_prefetch(address_ahead(at, ahead));
}
[[gnu::always_inline]] inline void fetch_to_second_level(const void* at, index_t ahead) {
  __builtin_prefetch(address_ahead(at, ahead), 0, 2);
}

/// Quantizes block `e / length` of the rows from v on: one tile, or all tiles that share a scale.
template <bool Exact, int Length, class T>
inline bool quantize_tile(const tile_plan& p, matrix<const T> source, block_axis axis, index_t k, index_t v, index_t e,
                          int block, staged_rows* staged) {
  const int groups = p.f.rows > lane_count ? p.f.rows / lane_count : 1;
  using nan_rule = block_policy::nan_rule;
  lanes_u32 x[32 / lane_count][Length], amax{}, numbers{}, wrapped{};
  const bool ignore_nan = p.o.policy.nan != nan_rule::nan_scale;
  for (int g = 0; g < groups; ++g) {
    load_tile<Exact>(p, source, axis, v + g * lane_count, e, x[g], wrapped);
    finish_rotation<Exact>(p, x[g]);
    join_amax<Exact>(x[g], ignore_nan, amax, numbers);
  }
  if (p.f.rows > 1) {
    spread_largest(amax);
    spread_largest(numbers);
  }
  if (Exact && p.o.policy.nan == nan_rule::ignore_unless_all) amax |= ~numbers & fp32_infinity_bits;
  tile_scales s;
  if constexpr (!Exact) {
    if (!quick_scales(p, amax, wrapped, s)) return false;
  } else if constexpr (Length == 32) {
    exact_e8m0_scales(p, amax, s);
  } else {
    exact_float_scales<formats::ue4m3>(p, amax, s);
  }
  for (int g = 0; g < groups; ++g) {
    encode_tile<Exact>(p, x[g], s, k, v + g * lane_count, e, staged[g].words + block * p.words);
    stage_scales(s.codes, block, staged[g]);
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

/// Stores staged blocks [from, from + blocks) of a tile's rows as elements from e on of the rows from v on. `from` is a
/// multiple of 4; at the end of the matrix a tile has fewer rows.
inline void store_rows(const tile_plan& p, const staged_rows& staged, int from, int blocks, bool stream,
                       block_matrix<std::uint8_t> out, index_t v, index_t e) {
  const int rows = static_cast<int>(out.rows - v < lane_count ? out.rows - v : lane_count);
  const index_t block = e / p.f.length;
  for (int first = 0; first < blocks * p.words; first += lane_count) {
    std::uint8_t* codes = out.codes + v * out.code_stride + (block * p.words + first) * 4;
    lanes_u32 t[lane_count];
    unrolled<lane_count>([&](auto i)
                             __attribute__((always_inline)) { t[i] = staged.words[from * p.words + first + i]; });
    transpose_lanes(t);
    const int left = blocks * p.words - first;
    if (left < lane_count) {
      for (int l = 0; l < rows; ++l) {
        __builtin_memcpy(codes + l * out.code_stride, &t[l], static_cast<std::size_t>(left) * 4);
      }
    } else if (stream && reinterpret_cast<std::uintptr_t>(codes) % sizeof(lanes_u32) == 0) {
      for (int l = 0; l < rows; ++l) stream_lanes(codes + l * out.code_stride, t[l]);
    } else {
      for (int l = 0; l < rows; ++l) __builtin_memcpy(codes + l * out.code_stride, &t[l], sizeof t[l]);
    }
  }
  std::uint8_t* scales = out.scales + v / p.f.rows * out.scale_stride + block;
  std::uint32_t bytes[2][lane_count];
  __builtin_memcpy(bytes, staged.scales, sizeof bytes);
  for (int l = 0; l < (p.f.rows == 1 ? rows : 1); ++l) {  // rows that share a scale all hold it
    std::uint8_t* to = scales + l * out.scale_stride;
    if (blocks == 4) {
      __builtin_memcpy(to, &bytes[from / 4][l], 4);
    } else {
      for (int b = 0; b < blocks; ++b) to[b] = static_cast<std::uint8_t>(bytes[(from + b) / 4][l] >> (b % 4 * 8));
    }
  }
}

/// Quantizes a part along rows of the source. Parts begin at multiples of all panel lengths (256 elements).
template <class T>
inline void quantize_row_panels(const tile_plan& p, matrix<const T> source, block_matrix<std::uint8_t> out,
                                const panel_layout& layout, const output_part& part) {
  constexpr int max_groups = 32 / (lane_count < 32 ? lane_count : 32);
  const index_t tile_rows = p.f.rows > lane_count ? p.f.rows : lane_count;
  staged_rows staged[max_groups];
  for (index_t v0 = part.v0; v0 < part.v1; v0 += tile_rows) {
    const index_t v1 = part.v1 - v0 < tile_rows ? part.v1 : v0 + tile_rows;
    index_t next = part.e0 + layout.first_blocks * p.f.length;
    for (index_t e0 = part.e0; e0 < part.e1; e0 = next, next += panel_blocks(p.words) * p.f.length) {
      const int blocks = static_cast<int>(((next < part.e1 ? next : part.e1) - e0) / p.f.length);
      for (int b = 0; b < blocks; ++b) {
        quantize_tile(p, source, block_axis::row, out.k, v0, e0 + b * p.f.length, b, staged);
      }
      for (index_t v = v0; v < v1; v += lane_count) {
        store_rows(p, staged[(v - v0) / lane_count], 0, blocks, layout.stream, out, v, e0);
      }
    }
  }
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
