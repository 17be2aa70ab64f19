// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The warp-specialized GEMM kernels of sm_90a: C = A · Bᵀ. Tiles are in tiles.hpp, the epilogue in output.hpp.
// Operands are dense BF16 or FP8 (dense.hpp), or converted (upconvert.hpp): to int8 (`accurate`, exact sums), to E5M2
// promoted every 128 k (`fast`) or 32 k (`accurate`, fallback kernel), or to BF16.
//
// Persistent blocks walk the tiles. Two blocks form a cluster for tiles of 256 × 256; smaller tiles take one block.
// 1. Produce: one warp copies k-blocks (128 bytes of k) by TMA into the next free stage. In a cluster each block copies
//    half of the operand rows that both need, and multicasts them.
// 2. Consume: two warpgroups wait for a stage, issue wgmma, and release the stage.
// 3. Store: scale the accumulators and write C.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/sm90_ptx.hpp"
#include "gpu/gemm/arguments.hpp"
#include "gpu/gemm/output.hpp"
#include "gpu/gemm/sm90/output.hpp"
#include "gpu/gemm/sm90/tiles.hpp"
#include "gpu/gemm/sm90/widths.hpp"
#include "gpu/gemm/tile_walk.hpp"

namespace rotoscale::gpu::sm90 {

/// Boxes (128 bytes of a row) of a part of K: [first, last).
struct k_block_range {
  int first, last;
};
template <class Tile>
__device__ k_block_range k_blocks_of(const gemm_arguments& p, int part) {
  constexpr int k_block_length = Tile::width == operand_width::bf16 ? box_bytes / 2 : box_bytes;
  const int part_k_blocks = p.part_k / k_block_length, first = part * part_k_blocks, last = first + part_k_blocks;
  const int all = (p.k + k_block_length - 1) / k_block_length;
  return {first, last < all ? last : all};
}

/// Loads k-block `k` of an operand's rows from `row` on into shared memory. A transposed operand takes two consecutive
/// k-blocks of 64 rows (128 bytes) by 64 k.
template <bool Transposed, class Load>
__device__ inline void load_rows(std::uint32_t to, int k, int row, const Load& load) {
  if constexpr (Transposed) {
    load(to, 2 * row, k * transposed_box_k);
    load(to + 64 * box_bytes, 2 * row + box_bytes, k * transposed_box_k);
  } else {
    load(to, k * box_bytes, row);
  }
}
/// The same for both blocks of a cluster, each of which loads a half, or for this block alone.
template <bool Transposed, bool Shared, int Rows>
__device__ inline void load_operand(std::uint32_t to, const CUtensorMap& map, int k, int row, std::uint32_t rank,
                                    std::uint32_t bar) {
  if constexpr (Shared) {
    const int half = static_cast<int>(rank) * Rows;
    load_rows<Transposed>(to + static_cast<std::uint32_t>(half * box_bytes), k, row + half,
                          [&](std::uint32_t at, int x, int y) { load_box_multicast(at, &map, x, y, bar, 3); });
  } else {
    load_rows<Transposed>(to, k, row, [&](std::uint32_t at, int x, int y) { load_box(at, &map, x, y, bar); });
  }
}

/// Copies k-block `k` of a tile's operands into the next stage. `first`: first output of the block. `more_bytes`: bytes
/// that the caller adds to the stage.
template <class Tile>
__device__ inline void produce_k_block(const gemm_arguments& p, const CUtensorMap& map_a, const CUtensorMap& map_b,
                                       const pipeline<Tile>& q, ring& r, std::uint32_t rank, fragment_position first,
                                       int k, unsigned more_bytes = 0) {
  barrier_wait(q.empty_at(r.stage), r.phase ^ 1);
  const std::uint32_t bar = q.full_at(r.stage);
  barrier_expect(bar, Tile::stage_size + more_bytes);
  load_operand<Tile::transposed_a, Tile::shares_a, Tile::box_a>(q.a(r.stage), map_a, k, first.row, rank, bar);
  load_operand<Tile::transposed_b, Tile::shares_b, Tile::box_b>(q.b(r.stage), map_b, k, first.column, rank, bar);
  r.advance(p.stages);
}
/// Copies a tile's operands, stage by stage.
template <class Tile>
__device__ inline void produce(const gemm_arguments& p, const CUtensorMap& map_a, const CUtensorMap& map_b,
                               const pipeline<Tile>& q, ring& r, std::uint32_t rank, tile_position at) {
  const fragment_position first = Tile::first_of(at, rank);
  const k_block_range k_blocks = k_blocks_of<Tile>(p, at.part);
  for (int k = k_blocks.first; k < k_blocks.last; ++k) produce_k_block(p, map_a, map_b, q, r, rank, first, k);
}

template <class Number, int Groups, int Half>
__device__ void clear(Number (&acc)[Groups][Half]) {
  ROTOSCALE_UNROLL
  for (int w = 0; w < Groups; ++w) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Half; ++i) acc[w][i] = Number{};
  }
}

/// Descriptor increment of 64 rows of a k-block.
inline constexpr unsigned half_box = 64 * box_bytes >> 4;

/// Signals to the producers of all blocks that this warp has read the stage.
template <class Tile>
__device__ inline void release(const pipeline<Tile>& q, int stage, int lane) {
  if (lane < Tile::blocks) barrier_arrive_remote(q.empty_at(stage), static_cast<std::uint32_t>(lane));
}

/// Descriptors of a warpgroup's rows of A and of B in a stage.
template <class Tile>
__device__ inline std::uint64_t descriptor_a(const pipeline<Tile>& q, int stage, int group) {
  return operand_descriptor<Tile::transposed_a>(q.a(stage)) +
         static_cast<unsigned>(Tile::row_of_group(group)) / 64 * half_box;
}
template <class Tile>
__device__ inline std::uint64_t descriptor_b(const pipeline<Tile>& q, int stage, int group) {
  return operand_descriptor<Tile::transposed_b>(q.b(stage)) +
         static_cast<unsigned>(Tile::column_of_group(group)) / 64 * half_box;
}

/// FP8 products, promoted every 128 k. One warpgroup adds while the other has the tensor cores.
template <class Tile>
__device__ inline void multiply_promoting_128(const gemm_arguments& p, int k_blocks, const pipeline<Tile>& q, ring& r,
                                              int group, int lane,
                                              float (&acc)[Tile::warpgroup_tiles][Tile::columns / 2]) {
  float part[Tile::columns / 2];
  clear(acc);
  for (int k = 0; k < k_blocks; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t b = descriptor_b(q, r.stage, group);
    ROTOSCALE_UNROLL
    for (int w = 0; w < Tile::warpgroup_tiles; ++w) {
      const std::uint64_t a = descriptor_a(q, r.stage, group) + static_cast<unsigned>(w) * half_box;
      hold(part);
      wgmma_fence();
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < 4; ++i) wgmma_fp8<Tile::products>(part, a + 2 * i, b + 2 * i, i == 0);
      wgmma_commit();
      hold(part);
      wgmma_wait<0>();
      if (w == Tile::warpgroup_tiles - 1) release(q, r.stage, lane);
      ROTOSCALE_UNROLL
      for (int i = 0; i < Tile::columns / 2; ++i) acc[w][i] += part[i];
    }
    r.advance(p.stages);
  }
}

/// A wgmma of 64 × 64 outputs and 32 k of a stage. Order: k steps, then warpgroup tiles, then columns.
template <class Tile>
struct promoted_unit {
  static constexpr int across = Tile::columns / 64, a_step = across * Tile::warpgroup_tiles, count = 4 * a_step;
  int step, warpgroup_tile, column;
  __device__ explicit promoted_unit(int u)
      : step(u / a_step), warpgroup_tile(u / across % Tile::warpgroup_tiles), column(u % across) {}
  __device__ void start(std::uint64_t a, std::uint64_t b, float (&part)[32]) const {
    hold(part);
    wgmma_fence();
    wgmma_fp8<Tile::products>(part,
                              a + static_cast<unsigned>(warpgroup_tile) * half_box + 2 * static_cast<unsigned>(step),
                              b + static_cast<unsigned>(column) * half_box + 2 * static_cast<unsigned>(step), true);
    wgmma_commit();
  }
};

/// E5M2 products, promoted every 32 k into `acc`. A sum of 32 is added while the next one is multiplied, since FP32
/// adders and tensor cores are equally busy.
template <class Tile>
__device__ inline void multiply_promoting_32(const gemm_arguments& p, int k_blocks, const pipeline<Tile>& q, ring& r,
                                             int group, int lane,
                                             float (&acc)[Tile::warpgroup_tiles][Tile::columns / 2]) {
  using unit = promoted_unit<Tile>;
  float part[2][32];
  const auto add = [&](int u) {
    hold(part[u % 2]);
    const unit at(u);
    ROTOSCALE_UNROLL
    for (int i = 0; i < 32; ++i) acc[at.warpgroup_tile][32 * at.column + i] += part[u % 2][i];
  };
  for (int k = 0; k < k_blocks; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a = descriptor_a(q, r.stage, group), b = descriptor_b(q, r.stage, group);
    unit(0).start(a, b, part[0]);
    ROTOSCALE_UNROLL
    for (int u = 1; u < unit::count; ++u) {
      unit(u).start(a, b, part[u % 2]);
      wgmma_wait<1>();
      add(u - 1);
    }
    wgmma_wait<0>();
    release(q, r.stage, lane);
    add(unit::count - 1);
    r.advance(p.stages);
  }
}

/// Descriptor increment of 16 k: 32 bytes of a row, or 16 rows of k.
template <bool Transposed>
inline constexpr unsigned k_step = Transposed ? 16 * box_bytes >> 4 : 2;

/// Products without promotion: wgmma accumulates over all of K.
template <class Tile>
__device__ inline void multiply_staying(const gemm_arguments& p, int k_blocks, const pipeline<Tile>& q, ring& r,
                                        int group, int lane,
                                        typename Tile::number (&acc)[Tile::warpgroup_tiles][Tile::columns / 2]) {
  if constexpr (Tile::clears) clear(acc);
  int last = -1;
  const auto hold_all = [&] {
    ROTOSCALE_UNROLL
    for (int w = 0; w < Tile::warpgroup_tiles; ++w) hold(acc[w]);
  };
  hold_all();
  for (int k = 0; k < k_blocks; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a = descriptor_a(q, r.stage, group), b = descriptor_b(q, r.stage, group);
    wgmma_fence();
    ROTOSCALE_UNROLL
    for (int w = 0; w < Tile::warpgroup_tiles; ++w) {
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        const std::uint64_t a_at = a + static_cast<unsigned>(w) * half_box + k_step<Tile::transposed_a> * i,
                            b_at = b + k_step<Tile::transposed_b> * i;
        if constexpr (Tile::width == operand_width::int8) {
          wgmma_int8(acc[w], a_at, b_at, k == 0 && i == 0);
        } else if constexpr (Tile::width == operand_width::e5m2) {
          wgmma_fp8<Tile::products>(acc[w], a_at, b_at, k == 0 && i == 0);
        } else {
          wgmma_bf16<Tile::transposed_a, Tile::transposed_b>(acc[w], a_at, b_at, k == 0 && i == 0);
        }
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (last >= 0) release(q, last, lane);
    last = r.stage;
    r.advance(p.stages);
  }
  hold_all();
  wgmma_wait<0>();
  hold_all();
  if (last >= 0) release(q, last, lane);
}

/// Sums of `k_blocks` k-blocks of a tile, for the rows and columns of one warpgroup.
template <class Tile>
__device__ inline void multiply(const gemm_arguments& p, int k_blocks, const pipeline<Tile>& q, ring& r, int group,
                                int lane, typename Tile::number (&acc)[Tile::warpgroup_tiles][Tile::columns / 2]) {
  if constexpr (Tile::promotion == 128) {
    multiply_promoting_128(p, k_blocks, q, r, group, lane, acc);
  } else if constexpr (Tile::promotion == 32) {
    clear(acc);
    multiply_promoting_32(p, k_blocks, q, r, group, lane, acc);
  } else {
    multiply_staying(p, k_blocks, q, r, group, lane, acc);
  }
}

/// Multiplies and stores a tile by two warpgroups. `multiplies` computes a warpgroup's sums.
template <class Tile, output_mode Mode, class Multiply>
__device__ inline void consume(const gemm_arguments& p, int* columns, std::uint32_t rank, tile_position tile,
                               const Multiply& multiplies) {
  const int thread = static_cast<int>(threadIdx.x) % 128, group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int warp = thread / 32, lane = thread % 32;
  const fragment_position first = Tile::first_of(tile, rank);
  const int first_column = first.column + Tile::column_of_group(group);
  const fragment_position at{first.row + Tile::row_of_group(group) + warp * 16 + lane / 4,
                             first_column + 2 * (lane % 4)};

  fold_bases<Tile> bases;
  if constexpr (unfolds<Tile, Mode>) bases.load(p, at, first_column, thread);
  row_bias bias = {};
  constexpr bool biases = Mode == output_mode::vector, has_registers = Tile::promotion == 0;
  if constexpr (biases && has_registers) bias.load(p, at, lane);
  typename Tile::number acc[Tile::warpgroup_tiles][Tile::columns / 2];
  multiplies(group, lane, acc);
  if constexpr (biases && !has_registers) bias.load(p, at, lane);
  const float factor = Tile::has_factors ? output_factor(p) : p.alpha;
  int* exponents = columns + Tile::columns * group;
  bool plain = true;
  if constexpr (unfolds<Tile, Mode>) plain = bases.share(exponents, group, thread);
  if (plain) {
    store_tile<Tile, Mode, true>(p, factor, acc, bases, exponents, bias, at, lane, tile.part);
  } else {
    store_tile<Tile, Mode, false>(p, factor, acc, bases, exponents, bias, at, lane, tile.part);
  }
}

template <class Tile, output_mode Mode>
__device__ inline void consume(const gemm_arguments& p, const pipeline<Tile>& q, ring& r, int* columns,
                               std::uint32_t rank, tile_position tile) {
  const k_block_range k_blocks = k_blocks_of<Tile>(p, tile.part);
  consume<Tile, Mode>(p, columns, rank, tile, [&](int group, int lane, auto& acc) {
    multiply<Tile>(p, k_blocks.last - k_blocks.first, q, r, group, lane, acc);
  });
}

/// Shared memory of a block with tiles of this kind.
template <class Tile>
struct block_memory {
  alignas(8) std::uint64_t barriers[2 * Tile::max_stages];
  alignas(8) int columns[2 * Tile::columns];
  std::uint32_t width_words[tile_widths::words + 1];
  __device__ pipeline<Tile> stages(std::uint32_t dynamic) const {
    return {shared_address(barriers), shared_address(barriers + Tile::max_stages), (dynamic + 1023) & ~1023u};
  }
  __device__ tile_widths widths(const gemm_arguments& p) {
    return {p.widths == nullptr ? nullptr : width_words, (p.m + window_tile - 1) / window_tile};
  }
};

/// Initializes the barriers before a block's first tile. All threads call it.
template <class Tile>
__device__ inline void init_stages(const pipeline<Tile>& q) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tile::max_stages; ++s) {
      barrier_init(q.full_at(s), 1);
      barrier_init(q.empty_at(s), 8 * Tile::blocks);  // eight consumer warps per block
    }
    fence_barrier_init();
  }
  cluster_sync();
}

/// Calls `produces` or `consumes`, by the thread's role, for each tile of a worker.
template <class Tile, class Produce, class Consume>
__device__ inline void share_tiles(const gemm_arguments& p, const Produce& produces, const Consume& consumes) {
  ring r;
  const auto each = [&](const auto& run) {
    const int worker = static_cast<int>(blockIdx.x) / Tile::blocks,
              workers = static_cast<int>(gridDim.x) / Tile::blocks;
    const tile_walk walk(p, Tile::rows, Tile::all_columns);
    for (int t = worker; t < walk.count(); t += workers) run(walk.at(t), r);
  };
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x == 0) produces(each);
  } else {
    registers_up<232>();
    consumes(each);
  }
  __syncwarp();
  cluster_sync();  // a block must not exit while the other may still write to it
}

/// A block's work: the tiles of Tile's width. The prologue overlaps the end of the preceding kernel.
template <class Tile, output_mode Mode>
__device__ inline void run_block(const CUtensorMap& map_a, const CUtensorMap& map_b, const gemm_arguments& p) {
  extern __shared__ std::uint8_t dynamic[];
  __shared__ block_memory<Tile> memory;
  const pipeline<Tile> q = memory.stages(shared_address(dynamic));
  const std::uint32_t rank = Tile::blocks == 1 ? 0 : cluster_rank();
  tile_widths widths = memory.widths(p);
  if (threadIdx.x == 0) {
    prefetch_map(&map_a);
    prefetch_map(&map_b);
  }
  widths.clear();
  init_stages(q);
  wait_for_kernel_before();
  if (p.widths != nullptr) leave_fallback(p, widths.fill(p));
  share_tiles<Tile>(
      p,
      [&](const auto& each) {
        each([&](tile_position at, ring& r) {
          if (widths.is_of<Tile>(at)) produce(p, map_a, map_b, q, r, rank, at);
        });
      },
      [&](const auto& each) {
        each([&](tile_position at, ring& r) {
          if (widths.is_of<Tile>(at)) consume<Tile, Mode>(p, q, r, memory.columns, rank, at);
        });
      });
}

template <class Tile, output_mode Mode>
[[maybe_unused]] static __global__ void __cluster_dims__(Tile::blocks, 1, 1) __launch_bounds__(threads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ gemm_arguments p) {
  if constexpr (is_sm90a) run_block<Tile, Mode>(map_a, map_b, p);  // never launched on other devices
}

}  // namespace rotoscale::gpu::sm90
