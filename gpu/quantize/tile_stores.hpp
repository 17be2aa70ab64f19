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
  bool square = false;            ///< 32 × 32 elements share a scale
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

/// Staging buffer for the codes of columns. Its 16-byte vectors are swizzled within 128 bytes, so accesses along rows
/// and columns have no bank conflicts.
template <class T, format F>
struct code_stage {
  static constexpr unsigned block_vecs = static_cast<unsigned>(storage_bits(F)) / 4;
  static constexpr unsigned vecs = tile_rows<T> / 32 * block_vecs;  // vectors per column
  static constexpr std::size_t size = tile_columns * vecs * 16;
  unsigned char* bytes;

  __device__ vec16* vec(unsigned column, unsigned p) const {
    const unsigned i = column * vecs + p;
    return reinterpret_cast<vec16*>(bytes) + (i ^ (i / 8 & 7u));
  }
};

/// Number of the tile's rows inside the matrix.
template <class T>
__device__ inline unsigned rows_of(const quantize_kernel_args& a, const tile_origin& at) {
  if (at.whole || at.row + tile_rows<T> <= a.rows) return tile_rows<T>;
  return at.row < a.rows ? a.rows - at.row : 0;
}

/// Stores the staged columns, 16 bytes per thread. Neighbouring threads store neighbouring bytes of a column.
template <class T, format F>
__device__ inline void flush_columns(const quantize_kernel_args& a, const code_stage<T, F>& stage,
                                     const tile_origin& at) {
  using shape = code_stage<T, F>;
  constexpr unsigned columns_at_once = tile_threads / shape::vecs;
  static_assert(columns_at_once % 16 == 0, "a step is whole groups of 16 rows of codes");
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

/// Stores a column's scales of a whole tile at once, the first block's in the lowest byte. Byte stores would take one
/// sector each, together at least as many as the column's codes.
template <class T>
__device__ inline void store_scales(std::uint8_t* to, std::uint32_t scales) {
  constexpr unsigned blocks = tile_rows<T> / 32;
  ROTOSCALE_ASSERT(reinterpret_cast<std::uintptr_t>(to) % blocks == 0);
  if constexpr (blocks == 4) {
    *reinterpret_cast<any_word*>(to) = scales;
  } else if constexpr (blocks == 2) {
    *reinterpret_cast<any_half*>(to) = static_cast<std::uint16_t>(scales);
  } else {
    static_assert(blocks == 1);
    *to = static_cast<std::uint8_t>(scales);
  }
}

}  // namespace rotoscale::gpu
