// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The block quantizer's arguments and its stores other than codes along rows: staged codes of columns, scales of
// columns, padding of scales.
#pragma once

#include "gpu/quantize/layout.hpp"
#include "gpu/quantize/source_tile.hpp"

namespace rotoscale::gpu {

struct quantize_kernel_args : tile_source {
  known_divisor tiles_across;
  unsigned paired_rows = 0;  ///< the first rows of tiles, which are walked in pairs; even
  std::uint32_t tiles = 0;
  std::uint32_t whole_tiles = 0;  ///< tiles after these are two items each: columns, rows
  block_format format;
  block_output row, column;
};

/// Writes the padding of scales in a tile: the padded extents beyond the matrix.
__device__ inline void pad_scales(const block_output& out, unsigned row0, unsigned rows, unsigned c0, unsigned columns,
                                  unsigned matrix_rows, unsigned matrix_columns) {
  // The step is a compile-time constant on AMD only, where it saves 16 registers. With it, nvcc schedules the kernels'
  // other instructions worse (1.5 % of the benchmark's time).
  const unsigned step = bounds_count_waves ? tile_threads : block_size().x;
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = thread_index().x; i < rows * columns; i += step) {
    const unsigned r = row0 + i / columns, c = c0 + i % columns;
    if (r >= out.padded_rows || c >= out.padded_columns || (r < matrix_rows && c < matrix_columns)) continue;
    out.scales[scale_offset(out, r, c)] = out.padding;
  }
}

/// Codes are stored in units of 16 bytes; 6-bit codes, of which 32 take 24 bytes, in units of 8.
template <format F>
inline constexpr unsigned unit_words = F.bits() == 6 ? 2 : 4;

/// Stores the codes of a run, its units `step` bytes apart.
template <format F>
__device__ inline void store_units(std::uint8_t* to, std::uint32_t step, const std::uint32_t (&code)[storage_bits(F)]) {
  constexpr unsigned words = unit_words<F>;
  ROTOSCALE_UNROLL
  for (unsigned p = 0; p < static_cast<unsigned>(storage_bits(F)) / words; ++p) {
    const std::uint32_t* const w = code + p * words;
    if constexpr (words == 2) {
      store_streaming8(to + p * step, w[0], w[1]);
    } else {
      store_streaming(to + p * step, vec16{{w[0], w[1], w[2], w[3]}});
    }
  }
}

/// Staging buffer for the codes of columns. Its units are swizzled within eight, so accesses along rows and columns
/// have no bank conflicts.
template <class T, format F>
struct code_stage {
  static constexpr unsigned unit_bytes = 4 * unit_words<F>;
  static constexpr unsigned block_vecs = static_cast<unsigned>(storage_bits(F)) / unit_words<F>;
  static constexpr unsigned vecs = tile_rows<T> / 32 * block_vecs;  // units per column
  static constexpr std::size_t size = tile_columns * vecs * unit_bytes;
  unsigned char* bytes;

  __device__ unsigned char* unit(unsigned column, unsigned p) const {
    const unsigned i = column * vecs + p;
    return bytes + (i ^ (i / 8 & 7u)) * unit_bytes;
  }
  __device__ vec16* vec(unsigned column, unsigned p) const { return reinterpret_cast<vec16*>(unit(column, p)); }
  /// Stages the codes of run `b`.
  __device__ void put(unsigned column, unsigned b, const std::uint32_t (&code)[storage_bits(F)]) const {
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < static_cast<unsigned>(storage_bits(F)); ++w) {
      reinterpret_cast<any_word*>(unit(column, b * block_vecs + w / unit_words<F>))[w % unit_words<F>] = code[w];
    }
  }
};

/// Number of the tile's rows inside the matrix.
template <class T>
__device__ inline unsigned rows_of(const quantize_kernel_args& a, const tile_origin& at) {
  if (at.whole || at.row + tile_rows<T> <= a.rows) return tile_rows<T>;
  return at.row < a.rows ? a.rows - at.row : 0;
}

/// Stores the staged columns of 6-bit codes, 8 bytes per thread.
template <class T, format F>
__device__ inline void flush_narrow_columns(const quantize_kernel_args& a, const code_stage<T, F>& stage,
                                            const tile_origin& at) {
  using shape = code_stage<T, F>;
  const block_output& out = a.column;
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = thread_index().x; i < tile_columns * shape::vecs; i += tile_threads) {
    const unsigned c = i / shape::vecs, p = i % shape::vecs;
    if (at.column + c >= a.columns || at.row + p / shape::block_vecs * 32 >= a.rows) continue;
    const auto* const from = reinterpret_cast<const any_word*>(stage.unit(c, p));
    store_streaming8(out.codes + code_offset(out, at.column + c, at.row / 32 * shape::block_vecs + p), from[0],
                     from[1]);
  }
}

/// Stores the staged columns, 16 bytes per thread. Neighbouring threads store neighbouring bytes of a column.
template <class T, format F>
__device__ inline void flush_columns(const quantize_kernel_args& a, const code_stage<T, F>& stage,
                                     const tile_origin& at) {
  using shape = code_stage<T, F>;
  if constexpr (unit_words<F> != 4) return flush_narrow_columns(a, stage, at);
  constexpr unsigned columns_at_once = tile_threads / shape::vecs;
  static_assert(unit_words<F> != 4 || columns_at_once % 16 == 0, "a step is whole groups of 16 rows of codes");
  const block_output& out = a.column;
  const unsigned c0 = thread_index().x / shape::vecs, p = thread_index().x % shape::vecs;
  std::uint8_t* const tile = out.codes + tile_code_offset(out, at.column, at.row / 32 * shape::block_vecs);
  std::uint32_t to = code_in_tile(out, c0, p);
  if (!at.whole && at.row + p / shape::block_vecs * 32 >= a.rows) return;
  const auto flush = [&](unsigned c) {
    store_streaming(tile + to, *stage.vec(c0 + c, p));
    to += columns_at_once / 16 * out.code_row16;
  };
  // Without branches, so that the reads of shared memory overlap. On AMD it would cost a wave of occupancy.
  if (at.whole && !bounds_count_waves) {
    ROTOSCALE_UNROLL
    for (unsigned c = 0; c < tile_columns; c += columns_at_once) flush(c);
    return;
  }
  ROTOSCALE_UNROLL
  for (unsigned c = 0; c < tile_columns; c += columns_at_once) {
    if (!at.whole && at.column + c0 + c >= a.columns) return;
    flush(c);
  }
}

/// Stores 4, 2 or 1 scales of a column at once, the first block's in the lowest byte. Byte stores would take one sector
/// each, together at least as many as the column's codes.
__device__ inline void store_scales(std::uint8_t* to, unsigned count, std::uint32_t scales) {
  ROTOSCALE_ASSERT(reinterpret_cast<std::uintptr_t>(to) % count == 0);
  if (count == 4) {
    *reinterpret_cast<any_word*>(to) = scales;
  } else if (count == 2) {
    *reinterpret_cast<any_half*>(to) = static_cast<std::uint16_t>(scales);
  } else {
    *to = static_cast<std::uint8_t>(scales);
  }
}

}  // namespace rotoscale::gpu
