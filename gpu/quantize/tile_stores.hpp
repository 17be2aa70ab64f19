// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The block quantizer's arguments, and what its kernel writes of a tile besides rows: codes of columns, which wait in
// shared memory for stores as long as those of rows; scales of columns; scales of padding.
#pragma once

#include "gpu/quantize/layout.hpp"
#include "gpu/quantize/source_tile.hpp"

namespace rotoscale::gpu {

struct quantize_kernel_args : tile_source {
  known_divisor tiles_across;
  unsigned paired_rows = 0;  ///< the first so many rows of tiles are taken in pairs; even
  std::uint32_t tiles = 0;
  std::uint32_t whole_tiles = 0;  ///< the tiles after these are work for two blocks each: their columns, their rows
  bool square = false;            ///< 32 × 32 elements share a scale
  block_output row, column;
};

/// Writes scale bytes of a tile's padding: rows or columns of the padded extents that the matrix has not.
__device__ inline void pad_scales(const block_output& out, unsigned row0, unsigned rows, unsigned c0, unsigned columns,
                                  unsigned matrix_rows, unsigned matrix_columns) {
  // Where nvcc knows the step it puts the kernels' other instructions in a slower order (1.5 % of the headline's time);
  // where AMD's compiler does not, kernels take 16 registers more.
  const unsigned step = bounds_count_waves ? tile_threads : block_size().x;
  ROTOSCALE_KEEP_LOOP
  for (unsigned i = thread_index().x; i < rows * columns; i += step) {
    const unsigned r = row0 + i / columns, c = c0 + i % columns;
    if (r >= out.padded_rows || c >= out.padded_columns || (r < matrix_rows && c < matrix_columns)) continue;
    out.scales[scale_offset(out, r, c)] = out.padding;
  }
}

/// Shared memory for the columns' codes: 16-byte vectors swizzled within 128 bytes: no bank conflicts along rows or
/// columns.
template <class T, format F>
struct code_stage {
  static constexpr unsigned block_vecs = static_cast<unsigned>(storage_bits(F)) / 4;
  static constexpr unsigned vecs = tile_rows<T> / 32 * block_vecs;  // of a column
  static constexpr std::size_t size = tile_columns * vecs * 16;
  unsigned char* bytes;

  __device__ vec16* vec(unsigned column, unsigned p) const {
    const unsigned i = column * vecs + p;
    return reinterpret_cast<vec16*>(bytes) + (i ^ (i / 8 & 7u));
  }
};

/// Rows of a tile that lie in the matrix.
template <class T>
__device__ inline unsigned rows_of(const quantize_kernel_args& a, const tile_origin& at) {
  if (at.whole || at.row + tile_rows<T> <= a.rows) return tile_rows<T>;
  return at.row < a.rows ? a.rows - at.row : 0;
}

/// The staged columns to memory, 16 bytes a thread, those of one column side by side.
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
  // A whole tile without branches, so that no read of shared memory waits for the one before. AMD's kernels would lose
  // a wave.
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

/// A column's scales of a whole tile in one store, the first block's in the lowest byte. A store of each byte would be
/// a sector each, together at least as many as those of the column's codes.
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
