// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Column-wise MXFP4 for AVX-512 with byte instructions. It takes a cache line of the source at a time: one tile of FP32
// columns, or two tiles (even and odd columns) of BF16. A line's codes are computed after the next line's scales are
// begun, which hides the latency of the scales.
#pragma once

#include "rotoscale/detail/mxfp4_rows.hpp"

#if defined(ROTOSCALE_BYTE_LANES)

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Columns of a line, as tiles with one block per lane.
template <class T>
struct line_tiles {
  static constexpr int count = static_cast<int>(sizeof(float) / sizeof(T));
  lanes_u32 x[count][32];  ///< rotated elements
  tile_scales scales[count];
  bool ordinary = false;

  /// Loads tile t: its lanes are columns `count` apart, from column t on.
  [[gnu::always_inline]] static void load(const float* from, lanes_u32 (&to)[count][16], int i) {
    load_as_fp32(from, to[0][i]);
  }
  [[gnu::always_inline]] static void load(const bf16* from, lanes_u32 (&to)[count][16], int i) {
    const auto pairs = load_lanes<lanes_u32>(from);
    to[0][i] = pairs << 16;
    to[count - 1][i] = pairs & 0xFFFF0000u;
  }
};

/// amax of `amax` and sixteen rotated elements; above the bits of Inf if one is NaN. The last butterflies paired
/// elements i and i + 8: if one of a pair is NaN, the other is NaN or infinite.
[[gnu::always_inline]] inline void join_rotated_amax(const lanes_u32 (&x)[16], lanes_u32& amax) {
  constexpr int larger_magnitude = 0b1011;  // the larger magnitude, positive; a number before NaN
  unrolled<8>([&](auto i) __attribute__((always_inline)) {
    const auto larger =
        __builtin_bit_cast(lanes_u32, _mm512_maskz_range_ps(0xFFFF, __builtin_bit_cast(__m512, x[i]),
                                                            __builtin_bit_cast(__m512, x[i + 8]), larger_magnitude));
    amax = larger > amax ? larger : amax;
  });
}

/// Walks down a column of lines, one source row at a time.
template <class T>
class line_walk {
 public:
  line_walk(const T* from, index_t stride) : at_(from), stride_(stride) {}
  [[gnu::always_inline]] const T* next() {
    const T* at = at_;
    at_ = reinterpret_cast<const T*>(address_ahead(at_, stride_ * static_cast<index_t>(sizeof(T))));
#if defined(__GNUC__)
    __asm__("" : "+r"(at_));  // keeps one pointer; compilers would keep one per row in memory
#endif
    return at;
  }

 private:
  const T* at_;
  index_t stride_;
};

/// Loads, rotates and scales the blocks of a line's columns. `from` is their first element; elements are `stride`
/// apart. Half of the rows of `fetched` are prefetched here, the others in end_line, so that no load of this line
/// waits.
template <bool Round, chunk_rotation Rotation, class T>
[[gnu::always_inline]] inline void begin_line(const tile_plan& p, const std::uint32_t (&signs)[32], const T* from,
                                              index_t stride, line_walk<T>& fetched, line_tiles<T>& line) {
  constexpr int tiles = line_tiles<T>::count;
  lanes_u32 amax[tiles] = {}, wrapped[tiles] = {};
  line_walk<T> walk(from, stride);
  for (int half = 0; half < 2; ++half) {
    lanes_u32 h[tiles][16];
    unrolled<16>([&](auto i) __attribute__((always_inline)) {
      if constexpr (i % 2 == 0) fetch_to_second_level(fetched.next(), 0);
      line_tiles<T>::load(walk.next(), h, i);
    });
    for (int t = 0; t < tiles; ++t) {
      unrolled<16>([&](auto i) __attribute__((always_inline)) {
        if constexpr (Round) {
          const lanes_u32 before = h[t][i];
          round_number_to_bf16(h[t][i]);
          wrapped[t] |= before ^ h[t][i];
        }
        if constexpr (Rotation == chunk_rotation::with_signs) h[t][i] ^= signs[16 * half + i];
      });
      if constexpr (Rotation != chunk_rotation::none) {
        butterflies(h[t]);
        join_rotated_amax(h[t], amax[t]);
      } else {
        lanes_u32 none;
        join_amax<false>(h[t], false, amax[t], none);
      }
      unrolled<16>([&](auto i) __attribute__((always_inline)) { line.x[t][16 * half + i] = h[t][i]; });
    }
  }
  line.ordinary = true;
  for (int t = 0; t < tiles; ++t) line.ordinary &= quick_scales(p, amax[t], wrapped[t], line.scales[t]);
}

/// Interleaves the lanes of two tiles of even and odd columns into column order.
[[gnu::always_inline]] inline void interleave_lanes(lanes_u32& even, lanes_u32& odd) {
  const lanes_u32 a = even, b = odd;
  even = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  odd = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/// Writes codes and scales of a line as block `block` of staged rows.
template <class T>
[[gnu::always_inline]] inline void end_line(const line_tiles<T>& line, line_walk<T>& fetched, int block,
                                            staged_rows* staged) {
  constexpr int tiles = line_tiles<T>::count;
  lanes_u32 words[tiles][4], codes[tiles];
  for (int t = 0; t < tiles; ++t) {
    for (int i = 0; i < 16 / tiles; ++i) fetch_to_second_level(fetched.next(), 0);
    encode_ordinary_e2m1(line.x[t], line.scales[t], words[t]);
    codes[t] = line.scales[t].codes;
  }
  if constexpr (tiles == 2) {
    for (int w = 0; w < 4; ++w) interleave_lanes(words[0][w], words[1][w]);
    interleave_lanes(codes[0], codes[1]);
  }
  for (int t = 0; t < tiles; ++t) {
    for (int w = 0; w < 4; ++w) staged[t].words[4 * block + w] = words[t][w];
    stage_scales(codes[t], block, staged[t]);
  }
}

/// Quantizes block `block` of the panels for whole lines of columns from v on. Returns the first remaining column;
/// fewer than a line remain.
/// - Lines with blocks that are not ordinary take the exact path.
/// - Lines are prefetched `early` lines ahead.
/// - between() is called once per line.
template <bool Round, chunk_rotation Rotation, class T, class Between>
inline index_t quantize_lines(const tile_plan& p, matrix<const T> source, index_t k, index_t v, index_t end, index_t e,
                              int block, index_t early, staged_rows* staged, const Between& between) {
  constexpr int tiles = line_tiles<T>::count, columns = tiles * lane_count;
  std::uint32_t signs[32];
  for (int i = 0; i < 32; ++i) signs[i] = (p.o.rotation.signs[0] >> i & 1u) << 31;
  const T* from = source.data + e * source.stride(0) + v;
  const index_t stride = source.stride(0);
  // Beyond the end of this band, prefetch the start of the next one.
  const index_t width = (end - v) / columns * columns, last_line = v + width - columns,
                ahead = width < early * columns ? width : early * columns, next_band = 32 * stride - width;
  line_tiles<T> lines[2];
  int turn = 0;
  for (; v + columns <= end; v += columns, from += columns, staged += tiles, turn ^= 1) {
    line_tiles<T>&line = lines[turn], &last = lines[turn ^ 1];
    const index_t distance = ahead + (v + ahead > last_line ? next_band : 0);
    line_walk<T> fetched(reinterpret_cast<const T*>(address_ahead(from, distance * static_cast<index_t>(sizeof(T)))),
                         stride);
    begin_line<Round, Rotation>(p, signs, from, stride, fetched, line);
    if (last.ordinary) end_line(last, fetched, block, staged - tiles);
    between();
    if (!line.ordinary) {
      for (int t = 0; t < tiles; ++t) {
        quantize_tile<true, 32>(p, source, block_axis::column, k, v + t * lane_count, e, block, staged + t);
      }
    }
  }
  line_walk<T> nowhere(from, 0);
  if (lines[turn ^ 1].ordinary) end_line(lines[turn ^ 1], nowhere, block, staged - tiles);
  return v;
}

template <class T, class Between>
inline index_t quantize_lines(const tile_plan& p, matrix<const T> source, index_t k, index_t v, index_t end, index_t e,
                              int block, index_t early, staged_rows* staged, const Between& between) {
  const auto quantize = [&]<bool Round>(std::bool_constant<Round>) {
    using kind = chunk_rotation;
    const auto rotate = [&]<kind Rotation>(std::integral_constant<kind, Rotation>) {
      return quantize_lines<Round, Rotation>(p, source, k, v, end, e, block, early, staged, between);
    };
    if (p.o.rotation.points == 0) return rotate(std::integral_constant<kind, kind::none>{});
    if (p.o.rotation.signs[0] == 0) return rotate(std::integral_constant<kind, kind::plain>{});
    return rotate(std::integral_constant<kind, kind::with_signs>{});
  };
  if constexpr (std::is_same_v<T, float>) {
    if (p.round_to_bf16) return quantize(std::true_type{});
  }
  return quantize(std::false_type{});
}

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail

#endif
