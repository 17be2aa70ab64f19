// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The sm_90 kernel of fp32_blockwise. A tile adds its k-blocks (128 k, tile_k_blocks.hpp) in three groups:
// 1. Plain k-blocks: int8 products, integer sums, converted to FP32 exactly.
// 2. Shifted k-blocks: an integer sum per k-block times a power of two.
// 3. E5M2 k-blocks: promoted to FP32 every 32 k.
// The bits are as for ascending k: either every sum of a tile is exact, or all of its k-blocks are E5M2.
#pragma once

#include "gpu/gemm/sm90/kernel.hpp"
#include "gpu/gemm/tile_k_blocks.hpp"

namespace rotoscale::gpu::sm90 {

struct k_block_maps {
  CUtensorMap int8_a, int8_b, e5m2_a, e5m2_b;
};

/// An E5M2 tile's shape with int8 products.
template <class Tile>
struct int8_products : Tile {
  static constexpr operand_width width = operand_width::int8;
  static constexpr int promotion = 0;
  static constexpr bool clears = true;  // a tile may have no plain k-block
  using number = std::int32_t;
};

/// Capacity of the copy of the tile table in shared memory. A larger table is read from global memory.
inline constexpr int shared_table_words = 1536, shared_table_tiles = 512;

/// Shared memory of a block.
template <class Tile>
struct k_block_memory {
  block_memory<Tile> common;
  alignas(16) std::uint16_t shifts[Tile::max_stages][2][window_tile];  ///< shift factors of a stage's k-block: A's, B's
  std::uint32_t k_blocks[shared_table_words];
  log_squares squares[shared_table_tiles];

  /// The table's copy in shared memory if it fits, else `t`. All threads of the block call it.
  __device__ tile_table table_of(const tile_table& t) {
    const int count = 2 * t.tiles() * t.words;
    if (count > shared_table_words || t.tiles() > shared_table_tiles) return t;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) k_blocks[i] = t.k_blocks[i];
    for (int i = static_cast<int>(threadIdx.x); i < t.tiles(); i += threads) squares[i] = t.squares[i];
    __syncthreads();
    return {squares, k_blocks, t.shifts, t.tiles_a, t.tiles_b, t.words};
  }
};

/// The tile of a block.
struct k_block_tile {
  tile_k_blocks k_blocks;
  int row, column;  ///< in units of window_tile
  template <class Tile>
  __device__ static k_block_tile of(const tile_table& table, const gemm_arguments& p, tile_position at) {
    const int row = at.row / (window_tile / Tile::rows), column = at.column / (window_tile / Tile::all_columns);
    return {tile_k_blocks(table, p.k, row, column), row, column};
  }
};

/// Copies a tile's k-blocks stage by stage, in the order of the products. Shift factors come with their k-block.
template <class Tile>
__device__ inline void produce_k_blocks(const gemm_arguments& p, const k_block_maps& maps, const tile_table& table,
                                        k_block_memory<Tile>& memory, const pipeline<Tile>& q, ring& r,
                                        std::uint32_t rank, tile_position at) {
  const k_block_tile t = k_block_tile::of<Tile>(table, p, at);
  if (t.k_blocks.falls_back(p)) return;
  const fragment_position first = Tile::first_of(at, rank);
  t.k_blocks.each(k_block_kind::plain,
                  [&](int k) { produce_k_block(p, maps.int8_a, maps.int8_b, q, r, rank, first, k); });
  t.k_blocks.each(k_block_kind::shifted, [&](int k) {
    const int stage = r.stage;
    const auto load_shifts = [&](std::uint16_t* to, int tile) {
      const std::uint16_t* from = table.shifts + (std::int64_t{tile} * t.k_blocks.count + k) * window_tile;
      load_bytes(shared_address(to), from, sizeof memory.shifts[0][0], q.full_at(stage));
    };
    produce_k_block(p, maps.int8_a, maps.int8_b, q, r, rank, first, k, sizeof memory.shifts[0]);
    load_shifts(memory.shifts[stage][0], t.row);
    load_shifts(memory.shifts[stage][1], table.tiles_a + t.column);
  });
  t.k_blocks.each(k_block_kind::e5m2,
                  [&](int k) { produce_k_block(p, maps.e5m2_a, maps.e5m2_b, q, r, rank, first, k); });
}

/// Adds a warpgroup's integer sums of a k-block to FP32 accumulators, for the columns in `part`. Shifted operands have
/// factors: `rows`, and in shared memory `columns`, from the thread's first column on. The factors of columns include
/// window_unit.
template <bool Rows, bool Columns, int Half>
__device__ inline void add_shifted(const std::int32_t (&part)[Half], const float (&rows)[2],
                                   const std::uint16_t* columns, float* acc) {
  ROTOSCALE_UNROLL
  for (int g = 0; g < Half / 4; ++g) {
    float of_columns[2] = {window_unit, window_unit};
    if constexpr (Columns) {
      const std::uint32_t pair = *reinterpret_cast<const any_word*>(columns + 8 * g);
      of_columns[0] = __uint_as_float(pair << 16);
      of_columns[1] = __uint_as_float(pair & 0xFFFF0000u);
    }
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto x = static_cast<float>(part[4 * g + i]);
      float& sum = acc[4 * g + i];
      if constexpr (Rows && Columns) sum = __fmaf_rn(x * rows[i / 2], of_columns[i % 2], sum);
      if constexpr (Rows && !Columns) sum = __fmaf_rn(x, rows[i / 2] * window_unit, sum);
      if constexpr (!Rows) sum = __fmaf_rn(x, of_columns[i % 2], sum);
    }
  }
}

/// Adds the shifted k-blocks. The two warpgroups ping-pong: one adds while the other has the tensor cores. With shifted
/// rows only, additions take less time than products, so named barriers enforce the turns.
template <class Tile>
__device__ inline void multiply_shifted(const gemm_arguments& p, const k_block_tile& t, tile_position at,
                                        std::uint32_t rank, const k_block_memory<Tile>& memory, const pipeline<Tile>& q,
                                        ring& r, int group, int lane,
                                        float (&acc)[Tile::warpgroup_tiles][Tile::columns / 2]) {
  constexpr int columns = Tile::columns < 128 ? Tile::columns : 128, half = columns / 2;
  const fragment_position first = Tile::first_of(at, rank);
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int row = (first.row + Tile::row_of_group(group)) % window_tile + 16 * warp + lane / 4,
            column = (first.column + Tile::column_of_group(group)) % window_tile + 2 * (lane % 4);
  std::int32_t part[half];
  if (group == 1) signal_turn(0);
  t.k_blocks.each(k_block_kind::shifted, [&](int k_block) {
    const bool has_rows = tile_k_blocks::has(t.k_blocks.a, k_block),
               has_columns = tile_k_blocks::has(t.k_blocks.b, k_block);
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a = descriptor_a(q, r.stage, group), b = descriptor_b(q, r.stage, group);
    ROTOSCALE_UNROLL
    for (int w = 0; w < Tile::warpgroup_tiles; ++w) {
      const std::uint16_t* of_rows = memory.shifts[r.stage][0] + row + 64 * w;
      const float rows[2] = {__uint_as_float(std::uint32_t{of_rows[0]} << 16),
                             __uint_as_float(std::uint32_t{of_rows[8]} << 16)};
      ROTOSCALE_UNROLL
      for (int h = 0; h < Tile::columns / columns; ++h) {
        hold(part);
        if (!has_columns) wait_for_turn(group);
        wgmma_fence();
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < 4; ++i) {
          wgmma_int8(part, a + static_cast<unsigned>(w) * half_box + 2 * i,
                     b + static_cast<unsigned>(h * (columns / 64)) * half_box + 2 * i, i == 0);
        }
        wgmma_commit();
        if (!has_columns) signal_turn(1 - group);
        hold(part);
        wgmma_wait<0>();
        const std::uint16_t* of_columns = memory.shifts[r.stage][1] + column + h * columns;
        float* const sums = acc[w] + h * half;
        if (!has_columns) {
          add_shifted<true, false>(part, rows, of_columns, sums);
        } else if (!has_rows) {
          add_shifted<false, true>(part, rows, of_columns, sums);
        } else {
          add_shifted<true, true>(part, rows, of_columns, sums);
        }
      }
    }
    release(q, r.stage, lane);
    r.advance(p.stages);
  });
  if (group == 0) wait_for_turn(0);  // consumes the initial signal
}

/// A warpgroup's sums of a tile.
template <class Tile>
__device__ inline void multiply_k_blocks(const gemm_arguments& p, const k_block_tile& t, tile_position at,
                                         std::uint32_t rank, const k_block_memory<Tile>& memory,
                                         const pipeline<Tile>& q, ring& r, int group, int lane,
                                         float (&acc)[Tile::warpgroup_tiles][Tile::columns / 2]) {
  using narrow = int8_products<Tile>;
  std::int32_t sums[Tile::warpgroup_tiles][Tile::columns / 2];
  multiply_staying<narrow>(p, t.k_blocks.count_of(k_block_kind::plain), pipeline<narrow>{q.full, q.empty, q.data}, r,
                           group, lane, sums);
  ROTOSCALE_UNROLL
  for (int w = 0; w < Tile::warpgroup_tiles; ++w) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Tile::columns / 2; ++i) acc[w][i] = static_cast<float>(sums[w][i]) * window_unit;
  }
  if (t.k_blocks.count_of(k_block_kind::shifted) > 0) multiply_shifted(p, t, at, rank, memory, q, r, group, lane, acc);
  multiply_promoting_32(p, t.k_blocks.count_of(k_block_kind::e5m2), q, r, group, lane, acc);
}

/// A block's work: a prologue that overlaps the preceding kernel, then the producer and consumer loops over tiles.
template <class Tile, output_mode Mode>
__device__ inline void run_k_blocks(const k_block_maps& maps, const tile_table& lying, const gemm_arguments& p) {
  extern __shared__ std::uint8_t dynamic[];
  __shared__ k_block_memory<Tile> memory;
  const pipeline<Tile> q = memory.common.stages(shared_address(dynamic));
  const std::uint32_t rank = Tile::blocks == 1 ? 0 : cluster_rank();
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&maps.int8_a, &maps.int8_b, &maps.e5m2_a, &maps.e5m2_b}) prefetch_map(map);
  }
  init_stages(q);
  wait_for_kernel_before();
  const tile_table table = memory.table_of(lying);
  share_tiles<Tile>(
      p,
      [&](const auto& each) {
        each([&](tile_position at, ring& r) { produce_k_blocks(p, maps, table, memory, q, r, rank, at); });
      },
      [&](const auto& each) {
        each([&](tile_position at, ring& r) {
          const k_block_tile t = k_block_tile::of<Tile>(table, p, at);
          if (t.k_blocks.falls_back(p)) return;
          consume<Tile, Mode>(p, memory.common.columns, rank, at, [&](int group, int lane, auto& acc) {
            multiply_k_blocks<Tile>(p, t, at, rank, memory, q, r, group, lane, acc);
          });
        });
      });
}

template <class Tile, output_mode Mode>
[[maybe_unused]] static __global__ void __cluster_dims__(Tile::blocks, 1, 1) __launch_bounds__(threads, 1)
    k_blocks_kernel(const __grid_constant__ k_block_maps maps, const __grid_constant__ tile_table table,
                    const __grid_constant__ gemm_arguments p) {
  if constexpr (is_sm90a) run_k_blocks<Tile, Mode>(maps, table, p);
}

}  // namespace rotoscale::gpu::sm90
