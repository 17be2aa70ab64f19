// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// fp32_blockwise on tensor cores, with the definition's bits.
// Products are int8, or E5M2 promoted every 32 k. Both give exact sums of 32, added in FP32 in the same order. Rows are
// divided by a power of two, which changes no bit while the definition's sums stay normal in FP32. So a row's scales
// must be between least_unit_scale and largest_unit_scale, and not NaN. All other rows, and rows that E5M2 cannot
// represent, fall back to the SIMT kernel (blockwise.hpp).
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/gemm/blockwise.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/simt_operand.hpp"
#include "gpu/gemm/upconvert_k_blocks.hpp"

namespace rotoscale::gpu {

/// E8M0 bytes of 2^-62 and 2^51. A sum is a multiple of a quarter of the product of two smallest scales. It is at most
/// 2^20 * 36 times the product of two largest scales.
inline constexpr int least_unit_scale = 65, largest_unit_scale = 178;
static_assert(2 * scale_exponent(least_unit_scale) - 2 == -126, "the least normal number of FP32");
static_assert(36 * 1048576.0 < 0x1p26 && 2 * scale_exponent(largest_unit_scale) + 26 <= 128 &&
              max_gemm_extent == 1048576);

/// Grid of the fallback kernel. Usually every block finds no fallback rows and exits, else the blocks share the tiles.
inline constexpr int checking_blocks = 528;

/// True if `condition` holds in any thread of the block. All threads call it, with a barrier before each further call.
__device__ inline bool block_any(bool condition) {
  struct subgroup_flags {
    std::uint32_t of[simt_threads / 32];
  };
  subgroup_flags& seen = block_shared<subgroup_flags>();
  const int thread = static_cast<int>(thread_index().x);
  condition = subgroup_any(condition);
  if (thread % 32 == 0) seen.of[thread / 32] = condition ? 1 : 0;
  block_barrier();
  std::uint32_t any = 0;
  for (const std::uint32_t x : seen.of) any |= x;
  return any != 0;
}

__device__ inline bool any_fallback_rows(const tile_table& t) {
  bool found = false;
  for (int i = static_cast<int>(thread_index().x); i < t.tiles(); i += simt_threads) {
    found |= (t.squares[i] & fallback_row) != 0;
  }
  return block_any(found);
}

/// True if a tile of 16 R rows and columns falls back. All threads of a block call it, with a barrier before each
/// further call. With `accumulate` one kernel must compute all outputs of a window_tile² tile, so the whole tile falls
/// back.
template <int R>
__device__ inline bool falls_back(const simt_arguments& p, const k_block_arguments& k_blocks,
                                  const blockwise_position<R>& at) {
  const tile_k_blocks tile(k_blocks.tiles, p.k, at.row / window_tile, at.column / window_tile);
  if (!tile.has_fallback || p.accumulate) return tile.has_fallback;
  constexpr int edge = blockwise_position<R>::tile;
  static_assert(2 * edge <= simt_threads);
  const int thread = static_cast<int>(thread_index().x), row = at.row + thread, column = at.column + thread - edge;
  bool left = thread < edge && row < p.a.rows && k_blocks.squares[row] == fallback_row;
  left |= thread >= edge && thread < 2 * edge && column < p.b.rows &&
          k_blocks.squares[k_blocks.e.base_b + column] == fallback_row;
  return block_any(left);
}

/// Fallback kernel: computes the outputs that the tensor cores cannot.
template <int R>
[[maybe_unused]] static __global__ void __launch_bounds__(simt_threads)
    blockwise_fallback_kernel(const simt_arguments p, const k_block_arguments k_blocks) {
  static_assert(window_tile % blockwise_position<R>::tile == 0);
  wait_for_kernel_before();
  if (!any_fallback_rows(k_blocks.tiles)) return;
  constexpr int tile = blockwise_position<R>::tile;
  const int count = ((p.a.rows + tile - 1) / tile) * ((p.b.rows + tile - 1) / tile);
  for (int i = static_cast<int>(block_index().x); i < count; i += static_cast<int>(grid_size().x)) {
    const blockwise_position<R> at(p, i);
    block_barrier();  // all threads have read the previous flags
    if (falls_back<R>(p, k_blocks, at)) blockwise_tile<R>(p, at.row, at.column);
  }
}

namespace detail {

/// Workspace layout: offsets in bytes.
struct blockwise_map {
  std::size_t e5m2_a = 0, e5m2_b = 0, int8_a = 0, int8_b = 0, base = 0, squares = 0, row_k_blocks = 0, row_shifts = 0,
              tile_squares = 0, tile_k_blocks = 0, tile_shifts = 0, size = 0;
  blockwise_map(index_t m, index_t n, index_t k) {
    const int length = static_cast<int>(k);
    const index_t rows = second_base(m) + n, chunks = row_chunks(length), k_blocks = k_block_count(length),
                  tiles = window_tiles(static_cast<int>(m)) + window_tiles(static_cast<int>(n));
    const struct {
      std::size_t* at;
      index_t bytes;
    } parts[] = {{&e5m2_a, m * k},
                 {&e5m2_b, n * k},
                 {&int8_a, m * k},
                 {&int8_b, n * k},
                 {&base, 4 * rows},
                 {&squares, 2 * rows},
                 {&row_k_blocks, 4 * rows * chunks},
                 {&row_shifts, rows * chunks * chunk_k_blocks},
                 {&tile_squares, 2 * tiles},
                 {&tile_k_blocks, 8 * tiles * k_block_words(length)},
                 {&tile_shifts, 2 * tiles * k_blocks * window_tile}};
    for (const auto& part : parts) {
      *part.at = size;
      size += (static_cast<std::size_t>(part.bytes) + 255) / 256 * 256;
    }
  }
};

/// Arguments of the conversions of `a` and `b`.
inline k_block_arguments make_k_blocks(const gemm_operand& a, const gemm_operand& b, std::uint8_t* memory) {
  const blockwise_map map(a.rows, b.rows, a.k);
  const auto source = [](const gemm_operand& x) {
    return block_source{x.codes, x.scales, x.code_stride, x.scale_stride, static_cast<int>(x.rows)};
  };
  const int k = static_cast<int>(a.k);
  k_block_arguments k_blocks{
      {source(a), source(b), k, memory + map.e5m2_a, memory + map.e5m2_b, memory + map.int8_a, memory + map.int8_b},
      least_unit_scale,
      largest_unit_scale,
      reinterpret_cast<log_squares*>(memory + map.squares),
      reinterpret_cast<std::uint32_t*>(memory + map.row_k_blocks),
      reinterpret_cast<std::int8_t*>(memory + map.row_shifts),
      {reinterpret_cast<log_squares*>(memory + map.tile_squares),
       reinterpret_cast<std::uint32_t*>(memory + map.tile_k_blocks),
       reinterpret_cast<std::uint16_t*>(memory + map.tile_shifts), window_tiles(static_cast<int>(a.rows)),
       window_tiles(static_cast<int>(b.rows)), k_block_words(k)},
      row_split(k)};
  k_blocks.e.base_b = second_base(a.rows);
  k_blocks.e.base = reinterpret_cast<int*>(memory + map.base);
  return k_blocks;
}

/// Launches the conversions, the tensor-core kernel and the fallback kernel.
inline status run_blockwise_units(const gemm_launch& l) {
  simt_arguments p;
  if (status s = take_call(l.call, p); !s.ok()) return s;
  const k_block_arguments k_blocks = make_k_blocks(l.call.a, l.call.b, l.workspace);
  gemm_arguments g = make_arguments(l, nullptr);
  g.base = k_blocks.e.base;
  g.part_k = k_block_count(g.k) * k_block_length;
  const std::int64_t tile_chunks = std::int64_t{k_blocks.tiles.tiles_a + k_blocks.tiles.tiles_b} * row_chunks(g.k);
  status s = launch_behind_any(upconvert_window_kernel, blocks((g.m + g.n + int8_rows(g.k) - 1) / int8_rows(g.k)),
                               blocks(upconvert_threads), 0, l.stream, k_blocks);
  if (s.ok()) s = launch_behind(join_k_blocks_kernel, blocks(tile_chunks), blocks(window_tile), 0, l.stream, k_blocks);
  if (s.ok())
    s = launch_behind(upconvert_k_blocks_kernel, blocks(tile_chunks), blocks(upconvert_threads), 0, l.stream, k_blocks);
  if (s.ok()) s = multiply_k_blocks(k_blocks.e, k_blocks.tiles, g, l.device, l.stream);
  if (!s.ok()) return s;
  constexpr int owned_rows = 4, tile = 16 * owned_rows;
  const std::int64_t outputs = std::int64_t{(g.m + tile - 1) / tile} * ((g.n + tile - 1) / tile);
  return launch_behind(blockwise_fallback_kernel<owned_rows>,
                       blocks(outputs < checking_blocks ? outputs : checking_blocks), blocks(simt_threads), 0, l.stream,
                       p, k_blocks);
}

}  // namespace detail

}  // namespace rotoscale::gpu
