// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The fused block quantizer's kernel: one tile of the source per thread block at a time.
// 1. Load the tile into shared memory (prefetched with two buffers).
// 2. Each thread quantizes runs of 32 elements along columns. Their codes are staged in shared memory and stored 16
//    bytes at a time.
// 3. Each thread quantizes runs along rows, and stores their codes directly, 16 bytes at a time.
// Scales go straight to their places, padding included.
#pragma once

#include "gpu/quantize/general_tile.hpp"

namespace rotoscale::gpu {

/// Two buffers prefetch the next tile. Blocks per SM are limited by shared memory and registers.
template <format F>
inline constexpr unsigned tile_buffers = F.bits() == 4 && !has_small_shared_memory ? 2 : 1;
template <format F>
inline constexpr unsigned quantize_blocks_per_processor = bounds_count_waves ? 2
                                                          : F.bits() == 4    ? 3
                                                                             : 4;

/// `least` of takes_fast_path. Numbers of BF16 and FP16 keep all bits when they are divided by 4.
template <class T, quantize_path Path>
__device__ inline std::uint32_t least_fast_amax(bool bf16_source) {
  const bool exact = Path != quantize_path::fast_h16 || !std::is_same_v<T, float> || bf16_source;
  return has_packed_bf16 && exact ? 0 : least_inexact_amax;
}

/// Passes the codes of a fast-path block to `store(vec, bytes)`, 16 bytes at a time.
template <format F, class Block, class Store>
__device__ inline void store_codes(const Block& block, const fast_scale& s, const Store& store) {
  ROTOSCALE_UNROLL
  for (unsigned p = 0; p < static_cast<unsigned>(storage_bits(F)) / 4; ++p) {
    vec16 b;
    ROTOSCALE_UNROLL
    for (unsigned w = 0; w < 4; ++w) b.word[w] = block.codes(static_cast<int>(4 * p + w), s);
    store(p, b);
  }
}

/// Rotates half a block and stores it in `block`. Always inlined: in host mode, g++ 12.2 at -O3 wrongly deletes calls
/// of it.
template <quantize_path Path, class Block>
[[gnu::always_inline]] __device__ inline void put_half(int half, float (&y)[16], Block& block) {
  if constexpr (Path == quantize_path::fast_h16) butterflies16(y);
  block.put(half, y);
}

/// Stores run `b` of row `r` of the tile, which is off the fast path.
template <class T, format F>
__device__ inline void store_slow_row(const quantize_kernel_args& a, const tile_view<T>& tile, unsigned r, unsigned b,
                                      std::uint8_t* codes, std::uint8_t* scales) {
  std::uint32_t code[storage_bits(F)];
  *scales = static_cast<std::uint8_t>(
      quantize_slow_run<T, F, true>(a.format, a.row.options, tile, r, 32 * b, 0, nullptr, nullptr, code));
  store_units<F>(codes, a.row.code_vec, code);
}

/// Quantizes a tile along rows: load, rotate, amax, scale, codes, store. Four threads share a row, one block each.
template <class T, format F, quantize_path Path>
__device__ inline void quantize_tile_rows(const quantize_kernel_args& a, const tile_view<T>& tile,
                                          const tile_origin& at) {
  constexpr unsigned block_vecs = code_stage<T, F>::block_vecs;
  const block_output& out = a.row;
  const bool bf16_source = out.bf16_source;
  const unsigned b = thread_index().x % 4, r0 = thread_index().x / 4, end = rows_of<T>(a, at);
  if (!at.whole && at.column + 32 * b >= a.columns) return;
  std::uint8_t* codes =
      out.codes + tile_code_offset(out, at.row, at.column / 32 * block_vecs) + code_in_tile(out, r0, b * block_vecs);
  std::uint8_t* scales =
      out.scales + tile_scale_offset<tile_rows<T>>(out, at.row, at.column / 32) + scale_in_tile(out, r0, b);
  // The vectors of a block are in one run of 128 bytes, and all its rows have the same swizzle.
  constexpr unsigned vecs = 32 / tile_view<T>::vec_elements;
  const vec16* from = reinterpret_cast<const vec16*>(tile.bytes) + r0 * tile_view<T>::row_vecs + b * vecs;
  const unsigned permutation = tile_view<T>::permutation(r0, b * vecs);
  // First half of the next block, prefetched while the second half of this one is rotated. Only 4-bit codes leave
  // registers for that. On AMD it would cost a wave of occupancy.
  constexpr bool ahead = F.bits() == 4 && !bounds_count_waves;
  vec16 first[vecs / 2];
  const auto load_first = [&] {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vecs / 2; ++i) first[i] = from[i ^ permutation];
  };
  if constexpr (ahead) load_first();
  unsigned r = r0;
  std::uint32_t slow_blocks = 0;  // one bit per block, the last in bit 0; their codes are rewritten below
  ROTOSCALE_KEEP_LOOP
  for (; r < end; r += row_step) {
    typename block_for<F>::type block;
    if constexpr (!ahead) load_first();
    ROTOSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float y[16];
      load_along_row<T>([&](unsigned i) { return half == 0 ? first[i] : from[(vecs / 2 + i) ^ permutation]; },
                        bf16_source, y);
      if (half == 1 && (!ahead || r + row_step < end)) from += row_step * tile_view<T>::row_vecs;
      if (half == 1 && ahead) load_first();
      put_half<Path>(half, y, block);
    }
    const std::uint32_t amax = block.amax();
    const fast_scale s = choose_fast_scale<Path == quantize_path::fast_h16>(out.fast, amax);
    store_codes<F>(block, s, [&](unsigned p, const vec16& bytes) { store_streaming(codes + p * out.code_vec, bytes); });
    *scales = static_cast<std::uint8_t>(s.byte);
    slow_blocks = slow_blocks << 1 | (takes_fast_path(amax, least_fast_amax<T, Path>(bf16_source)) ? 0u : 1u);
    codes += row_step / 16 * out.code_row16;
    scales += row_step / 32 * out.scale_row32;
  }
  // Walk back over the blocks. The ones off the fast path are quantized by the definition.
  ROTOSCALE_KEEP_LOOP
  while (slow_blocks != 0) {
    codes -= row_step / 16 * out.code_row16;
    scales -= row_step / 32 * out.scale_row32;
    r -= row_step;
    if ((slow_blocks & 1u) != 0) {
      store_slow_row<T, F>(a, tile, r, b, codes, scales);
    }
    slow_blocks >>= 1;
  }
}

/// Quantizes a tile along columns into the stage, one column per thread, and stores the scales.
template <class T, format F, quantize_path Path>
__device__ inline void quantize_tile_columns(const quantize_kernel_args& a, const tile_view<T>& tile,
                                             const code_stage<T, F>& stage, const tile_origin& at) {
  constexpr unsigned block_vecs = code_stage<T, F>::block_vecs;
  const block_output& out = a.column;
  const bool bf16_source = out.bf16_source;
  const unsigned c = thread_index().x % tile_columns;
  if (!at.whole && at.column + c >= a.columns) return;
  std::uint8_t* scales =
      out.scales + tile_scale_offset<tile_rows<T>>(out, at.column, at.row / 32) + scale_in_tile(out, c, 0);
  static_assert(tile_threads == tile_columns, "a column a thread");
  const T* even = tile.element(0, c);  // all even rows have one swizzle, all odd rows another
  const T* odd = tile.element(1, c) - tile_columns;
  const unsigned end = rows_of<T>(a, at);
  const bool as_word = out.has_scale_words && end == tile_rows<T>;
  unsigned b = 0;
  std::uint32_t slow_blocks = 0, word = 0;  // scales, the last block's in the top byte
  ROTOSCALE_KEEP_LOOP
  for (; 32 * b < end; ++b) {
    typename block_for<F>::type block;
    ROTOSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float y[16];
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < 16; ++i) {
        const unsigned r = 16 * static_cast<unsigned>(half) + i;
        y[i] = tile_value((i % 2 == 0 ? even : odd)[r * tile_columns], bf16_source);
      }
      put_half<Path>(half, y, block);
    }
    const std::uint32_t amax = block.amax();
    const fast_scale s = choose_fast_scale<Path == quantize_path::fast_h16>(out.fast, amax);
    store_codes<F>(block, s, [&](unsigned p, const vec16& bytes) { *stage.vec(c, b * block_vecs + p) = bytes; });
    if (!as_word) *scales = static_cast<std::uint8_t>(s.byte);
    word = word >> 8 | s.byte << 24;
    slow_blocks = slow_blocks << 1 | (takes_fast_path(amax, least_fast_amax<T, Path>(bf16_source)) ? 0u : 1u);
    scales += out.scale_block;
    even += 32 * tile_columns;
    odd += 32 * tile_columns;
  }
  constexpr unsigned count = tile_rows<T> / 32;
  word >>= 32 - 8 * count;
  ROTOSCALE_KEEP_LOOP
  while (slow_blocks != 0) {
    --b;
    scales -= out.scale_block;
    if ((slow_blocks & 1u) != 0) {
      std::uint32_t code[storage_bits(F)];
      const std::uint32_t scale =
          quantize_slow_run<T, F, false>(a.format, out.options, tile, c, 32 * b, 0, nullptr, nullptr, code);
      stage.put(c, b, code);
      if (!as_word) *scales = static_cast<std::uint8_t>(scale);
      word = (word & ~(255u << 8 * b)) | scale << 8 * b;
    }
    slow_blocks >>= 1;
  }
  if (as_word) store_scales(scales - b, count, word);
}

/// Quantizes one or both orientations of a tile, and pads the scales at the matrix's edges.
template <class T, format F, quantize_path Path>
__device__ inline void quantize_tile(const quantize_kernel_args& a, const tile_view<T>& tile,
                                     const code_stage<T, F>& stage, const tile_origin& at, bool columns, bool rows) {
  if (columns) {
    if constexpr (is_general(Path)) {
      quantize_columns_generally<T, F, Path>(a, tile, stage, at);
    } else {
      quantize_tile_columns<T, F, Path>(a, tile, stage, at);
    }
    block_barrier();
    flush_columns(a, stage, at);
    if (!at.whole && a.column.padded_rows != 0) {
      pad_scales(a.column, at.column, tile_columns, at.row / 32, tile_rows<T> / 32, a.columns, a.rows / 32);
    }
  }
  if (rows) {
    if constexpr (is_general(Path)) {
      quantize_rows_generally<T, F, Path>(a, tile, at);
    } else {
      quantize_tile_rows<T, F, Path>(a, tile, at);
    }
    if (!at.whole && a.row.padded_rows != 0) {
      pad_scales(a.row, at.row, tile_rows<T>, at.column / 32, tile_columns / 32, a.rows, a.columns / 32);
    }
  }
}

template <class T, class Element>
inline constexpr std::size_t quantize_shared_bytes =
    tile_buffers<Element::format>* tile_rows<T>* tile_columns * sizeof(T) + code_stage<T, Element::format>::size;

/// Position of a tile. Tiles are walked along rows, or in pairs if a column's codes of a tile do not fill a 128-byte
/// line. The second of a pair is the tile below, which writes the next bytes of row-major codes.
template <class T>
__device__ inline tile_origin origin_of(const quantize_kernel_args& a, std::uint32_t tile) {
  auto [row, column] = divide(tile, a.tiles_across);
  if (row < a.paired_rows) {
    const unsigned i = row % 2 * a.tiles_across.divisor + column;
    row += i % 2 - row % 2;
    column = i / 2;
  }
  return make_origin<T>(a, row, column);
}

/// A work item: a tile, or one orientation of it.
struct tile_item {
  tile_origin at;
  bool columns, rows;
};

/// Work item `i`. In the last wave an item is one orientation of a tile, which halves the wave's time.
template <class T>
__device__ inline tile_item item_of(const quantize_kernel_args& a, std::uint32_t i) {
  const bool columns = a.column.codes != nullptr, rows = a.row.codes != nullptr;
  if (i < a.whole_tiles) return {origin_of<T>(a, i), columns, rows};
  const std::uint32_t half = i - a.whole_tiles;
  return {origin_of<T>(a, a.whole_tiles + half / 2), half % 2 == 0, half % 2 != 0};
}

/// Calls use(tile, item) for items b, b + blocks, ... of thread block b. With two buffers the next tile is prefetched.
template <class T, unsigned Buffers, class Use>
__device__ inline void walk_tiles(const quantize_kernel_args& a, unsigned char* shared, const Use& use) {
  constexpr unsigned tile_bytes = tile_rows<T> * tile_columns * sizeof(T);
  const std::uint32_t step = grid_size().x, items = 2 * a.tiles - a.whole_tiles;
  unsigned buffer = 0;
  std::uint32_t i = block_index().x;
  tile_item item = item_of<T>(a, i);
  if constexpr (Buffers == 2) load_tile(a, item.at, tile_view<T>{shared});
  ROTOSCALE_KEEP_LOOP
  for (; i < items; i += step) {
    const tile_view<T> here{shared + buffer * tile_bytes};
    if constexpr (Buffers == 1) {
      block_barrier();  // all threads have finished with the previous tile
      load_tile(a, item.at, here);
    }
    wait_for_copies();
    block_barrier();
    const tile_item next = item_of<T>(a, i + step);
    if constexpr (Buffers == 2) {
      buffer ^= 1;
      if (i + step < items) load_tile(a, next.at, tile_view<T>{shared + buffer * tile_bytes});
    }
    use(here, item);
    item = next;
  }
}

/// Persistent kernel over the tiles of the padded extents. The element format is a type, since nvcc 13 cannot mangle a
/// kernel's template argument of class type.
template <class T, class Element, quantize_path Path>
__global__ void __launch_bounds__(tile_threads, quantize_blocks_per_processor<Element::format>)
    quantize_kernel(const ROTOSCALE_GRID_CONSTANT quantize_kernel_args a) {
  constexpr unsigned buffers = tile_buffers<Element::format>;
  auto* shared = dynamic_shared<unsigned char>();
  const code_stage<T, Element::format> stage{shared + buffers * tile_rows<T> * tile_columns * sizeof(T)};
  if constexpr (is_general(Path)) make_general_options(a);
  walk_tiles<T, buffers>(a, shared, [&](const tile_view<T>& tile, const tile_item& item) {
    quantize_tile<T, Element::format, Path>(a, tile, stage, item.at, item.columns, item.rows);
  });
}

}  // namespace rotoscale::gpu
