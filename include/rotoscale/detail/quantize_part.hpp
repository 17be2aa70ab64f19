// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Quantizes a part of a matrix in one thread, along rows, columns or both, and dispatches to kernels for particular
// formats. Columns are taken in bands of one block from top to bottom; the next data is prefetched.
#pragma once

#include "rotoscale/detail/mxfp4_columns.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Can lanes round a source of T to this format? BF16, or no rounding.
template <class T>
constexpr bool lanes_round_source(format source) {
  return source == formats::bf16 && !std::is_same_v<T, bf16>;
}

/// The constants of one result, equal for all its parts.
struct output_plan {
  tile_plan tiles;
  panel_layout layout;
  block_axis axis;
  block_matrix<std::uint8_t> out;
};

template <class T>
output_plan plan_output(block_format f, const block_options& o, block_axis axis, block_matrix<std::uint8_t> out) {
  const tile_plan tiles = plan_tiles(f, o, lanes_round_source<T>(o.source));
  return {tiles, lay_out_panels(tiles, out), axis, out};
}

/// Does T have MXFP4 kernels?
template <class T>
inline constexpr bool has_chunks = std::is_same_v<T, float> || std::is_same_v<T, bf16>;

/// Prefetch distance in bytes along long rows: the fastest of those measured.
inline constexpr index_t fetch_along_rows = 3072;

/// Prefetch distance in lines within a band, for each of its 32 rows: the fastest of those measured. With a distance of
/// a whole band, the rows of two bands would compete for few sets of L2.
inline constexpr index_t lines_ahead = 4;
/// Prefetch a whole band ahead: this band is in the cache, since its rows were just quantized, and the next one is not.
inline constexpr index_t whole_band = 1 << 20;

/// Prefetch distance in rows for a part in both orientations, whose rows are short. 1 is too late for FP32. With 8,
/// rows a power of two apart, which share L1 sets, evict each other.
inline constexpr index_t fetch_rows_below = 4;

/// Limit on the columns of a part. Source rows come in runs of 2 KiB (shorter runs are slower), and the staged output
/// still fits in a cache. Narrow registers do not keep up with memory.
template <class T>
inline constexpr index_t strip_rows = lane_count < 16 ? 256 : 2048 / static_cast<index_t>(sizeof(T));

/// Source rows of a part that is quantized along columns. Many, since each band prefetches the next one; but few enough
/// to leave parts for all threads.
constexpr index_t part_height(index_t elements) { return elements < index_t{1} << 22 ? 256 : 2048; }

/// Quantizes the columns of a part from top to bottom. Blocks are staged until a panel of them is complete. A kernel
/// that keeps up with memory (`spread`) stores a complete panel a tile at a time, between the lines of the next panel.
/// Stores and prefetches then alternate.
template <class T>
class column_strip {
 public:
  column_strip(const output_plan& plan, matrix<const T> source, const output_part& part, index_t early)
      : plan_(plan), source_(source), part_(part), early_(early), max_blocks_(plan.layout.first_blocks) {
    ROTOSCALE_ASSERT(part.v1 - part.v0 <= strip_rows<T>);
#if defined(ROTOSCALE_BYTE_LANES)
    spread_ = has_chunks<T> && is_chunked(plan.tiles);
#endif
  }
  /// Takes the blocks of elements [e, end), in order from the part's first element to its last.
  void take(index_t e, index_t end) {
    const int length = plan_.tiles.f.length;
    for (; e < end; e += length) {
      quantize_band(e);
      const bool last = e + length == part_.e1;
      if (++blocks_ != max_blocks_ && !last) continue;
      store_waiting(part_.v1);
      max_blocks_ = panel_blocks(plan_.tiles.words);
      waiting_ = {part_.v0, e + length - blocks_ * length, first_, blocks_};
      if (spread_) first_ = max_blocks_ - first_;
      blocks_ = 0;
      if (last || !spread_) store_waiting(part_.v1);
    }
  }

 private:
  /// A complete panel: its rows start at v, and its blocks are staged from `first` on.
  struct staged_panel {
    index_t v, e;
    int first, blocks;
  };

  void quantize_band(index_t e) {
    const tile_plan& p = plan_.tiles;
    const index_t k = plan_.out.k, stride = source_.stride(0);
    constexpr index_t line = line_bytes / static_cast<index_t>(sizeof(T));
    index_t v = part_.v0;
#if defined(ROTOSCALE_BYTE_LANES)
    if constexpr (has_chunks<T>) {
      // Spread all tiles of a strip over the lines of a panel's bands.
      constexpr index_t lines_a_tile = panel_blocks(4) * lane_count / line;
      if (spread_) {
        index_t since = 0;
        v = quantize_lines(p, source_, k, v, part_.v1, e, first_ + blocks_, early_, staged_, [&] {
          if (++since % lines_a_tile == 0) store_waiting(waiting_.v + lane_count);
        });
      }
    }
#endif
    const index_t tile_rows = p.f.rows > lane_count ? p.f.rows : lane_count;
    for (; v < part_.v1; v += tile_rows) {
      const T* at = source_.data + e * stride + v;
      for (index_t c = (part_.v0 - v) % line == 0 ? 0 : line; c < tile_rows; c += line) {
        for (int i = 0; i < p.f.length; ++i) {
          fetch_to_second_level(at + i * stride + c, p.f.length * stride * static_cast<index_t>(sizeof(T)));
        }
      }
      quantize_tile(p, source_, block_axis::column, k, v, e, first_ + blocks_, staged_ + (v - part_.v0) / lane_count);
    }
  }

  /// Stores the tiles of the waiting panel up to row `end`.
  void store_waiting(index_t end) {
    for (; waiting_.v < end && waiting_.v < part_.v1; waiting_.v += lane_count) {
      store_rows(plan_.tiles, staged_[(waiting_.v - part_.v0) / lane_count], waiting_.first, waiting_.blocks,
                 plan_.layout.stream, plan_.out, waiting_.v, waiting_.e);
    }
  }

  const output_plan& plan_;
  matrix<const T> source_;
  output_part part_;
  [[maybe_unused]] index_t early_;
  bool spread_ = false;
  int first_ = 0, blocks_ = 0, max_blocks_;  ///< staging position, number and capacity of the panel's blocks
  staged_panel waiting_{part_.v1, 0, 0, 0};
  staged_rows staged_[strip_rows<T> / lane_count];
};

/// Quantizes rows of a part. Kernels that prefetch do so `ahead` bytes early.
template <class T>
void quantize_rows(const output_plan& plan, matrix<const T> source, const output_part& part,
                   [[maybe_unused]] index_t ahead) {
  const block_matrix<std::uint8_t>& out = plan.out;
#if defined(ROTOSCALE_BYTE_LANES)
  if constexpr (has_chunks<T>) {
    if (is_chunked(plan.tiles)) {
      // Rows without gaps are quantized as one long row.
      const bool gapless = part.e0 == 0 && part.e1 == out.k && source.stride(0) == out.k &&
                           out.code_stride == out.k / 2 && out.scale_stride == out.k / 32;
      const index_t rows = gapless ? 1 : part.v1 - part.v0,
                    length = gapless ? (part.v1 - part.v0) * out.k : part.e1 - part.e0;
      chunked_rows<T> chunks(plan.tiles, plan.layout.stream, ahead);
      for (index_t v = part.v0; v < part.v0 + rows; ++v) {
        chunks.quantize(source.data + v * source.stride(0) + part.e0, length / 32,
                        out.codes + v * out.code_stride + part.e0 / 2,
                        out.scales + v * out.scale_stride + part.e0 / 32);
      }
      return;
    }
  }
#endif
  quantize_row_panels<T>(plan.tiles, source, out, plan.layout, part);
}

/// Quantizes a part of one result.
template <class T>
void quantize_part(const output_plan& plan, matrix<const T> source, const output_part& part) {
  if (plan.axis == block_axis::row) {
    quantize_rows(plan, source, part, fetch_along_rows);
  } else {
    column_strip<T>(plan, source, part, lines_ahead).take(part.e0, part.e1);
  }
  if (plan.layout.stream) finish_streaming();
}

/// Quantizes a part of the source to both results, in bands of 32 rows that stay in a cache for the second pass.
template <class T>
void quantize_part_both(const output_plan& rows, const output_plan& columns, matrix<const T> source,
                        const output_part& part) {
  column_strip<T> strip(columns, source, {part.e0, part.e1, part.v0, part.v1}, whole_band);
  const index_t ahead = fetch_rows_below * source.stride(0) * static_cast<index_t>(sizeof(T));
  for (index_t v = part.v0; v < part.v1; v += 32) {
    const index_t end = part.v1 - v < 32 ? part.v1 : v + 32;
    quantize_rows(rows, source, {v, end, part.e0, part.e1}, ahead);
    strip.take(v, end);
  }
  if (rows.layout.stream || columns.layout.stream) finish_streaming();
}

#if defined(ROTOSCALE_COMPILED)
extern template void quantize_part<float>(const output_plan&, matrix<const float>, const output_part&);
extern template void quantize_part<bf16>(const output_plan&, matrix<const bf16>, const output_part&);
extern template void quantize_part<fp16>(const output_plan&, matrix<const fp16>, const output_part&);
extern template void quantize_part_both<float>(const output_plan&, const output_plan&, matrix<const float>,
                                               const output_part&);
extern template void quantize_part_both<bf16>(const output_plan&, const output_plan&, matrix<const bf16>,
                                              const output_part&);
extern template void quantize_part_both<fp16>(const output_plan&, const output_plan&, matrix<const fp16>,
                                              const output_part&);
#endif

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
