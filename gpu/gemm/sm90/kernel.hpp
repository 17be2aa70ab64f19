// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM kernels of sm_90a: C = A · Bᵀ from operands that expand.hpp wrote, int8 (`accurate`, where sums are
// exact), E5M2 with promotion every 128 k (`fast`) or every 32 (`accurate`), or BF16 (what does not fit E5M2).
// Persistent clusters of two blocks compute tiles of 256 × 256; in a block one warp copies and two warpgroups multiply.
// The operand of which both blocks need the same 256 rows is copied half by each and multicast; the other's 128 rows
// each block copies for itself.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/sm90_ptx.hpp"
#include "gpu/gemm/arguments.hpp"
#include "gpu/gemm/output.hpp"
#include "gpu/gemm/sm90/output.hpp"

namespace rotoscale::gpu::sm90 {

inline constexpr int stages = 4, box_rows = 128, box_bytes = 128;
inline constexpr int box_size = box_rows * box_bytes;           // 16 KiB
inline constexpr int transposed_box_k = 64;                     // of two bytes each
inline constexpr int stage_size = 3 * box_size;                 // two boxes of one operand, one of the other
inline constexpr int shared_size = stages * stage_size + 1024;  // alignment
inline constexpr int threads = 384;                             // one producer warpgroup, two consumers
inline constexpr int super_tile = window_tile;

/// E5M2: 256 × 128 a block, a warpgroup computes two tiles of 64 × 128, emptied every Promotion k.
template <int Promotion>
struct fp8_tile {
  using number = float;
  static constexpr operand_width width = operand_width::e5m2;
  static constexpr bool shares_a = true, transposed_a = false, transposed_b = false;
  static constexpr int warpgroup_tiles = 2, columns = 128;
};
/// int8: 128 × 256 a block, a warpgroup one tile of 64 × 256.
struct int8_tile {
  using number = std::int32_t;
  static constexpr operand_width width = operand_width::int8;
  static constexpr bool shares_a = false, transposed_a = false, transposed_b = false;
  static constexpr int warpgroup_tiles = 1, columns = 256;
};
/// BF16: the same. An operand that is transposed has rows contiguous in memory, not k.
template <bool TransposedA = false, bool TransposedB = false>
struct bf16_tile {
  using number = float;
  static constexpr operand_width width = operand_width::bf16;
  static constexpr bool shares_a = false, transposed_a = TransposedA, transposed_b = TransposedB;
  static constexpr int warpgroup_tiles = 1, columns = 256;
};

/// Position `index` in the walk over super tiles: 8 rows of tiles at a time, down before right, so that the tiles in
/// flight share operands in L2.
struct tile_position {
  int row, column, part;
};
struct tile_walk {
  int rows, columns, parts;
  __device__ explicit tile_walk(const gemm_arguments& p)
      : rows((p.m + super_tile - 1) / super_tile), columns((p.n + super_tile - 1) / super_tile), parts(p.parts) {}
  __device__ int count() const { return rows * columns * parts; }
  /// One division as a rule: they are slow.
  __device__ tile_position at(int index) const {
    constexpr unsigned band = 8;
    const unsigned down = static_cast<unsigned>(rows), across = static_cast<unsigned>(columns);
    const unsigned part = parts == 1 ? 0 : static_cast<unsigned>(index) / (down * across);
    const unsigned in_part = static_cast<unsigned>(index) - part * (down * across);
    const unsigned bands = in_part / (band * across), within = in_part - bands * (band * across);
    const unsigned height = down - bands * band;
    const unsigned column = height >= band ? within / band : within / height;
    const unsigned row = within - column * (height >= band ? band : height);
    return {static_cast<int>(bands * band + row), static_cast<int>(column), static_cast<int>(part)};
  }
};
/// K boxes (128 bytes of a row) of a part of K, the last not included.
struct box_range {
  int first, last;
};
__device__ inline box_range boxes_of(const gemm_arguments& p, int part) {
  const int first = part * p.part_boxes, last = first + p.part_boxes;
  return {first, last < p.k_boxes ? last : p.k_boxes};
}

/// Addresses in shared memory: barriers of 8 bytes, boxes.
struct pipeline {
  std::uint32_t full, empty, data;
  __device__ std::uint32_t full_at(int s) const { return full + 8 * static_cast<std::uint32_t>(s); }
  __device__ std::uint32_t empty_at(int s) const { return empty + 8 * static_cast<std::uint32_t>(s); }
  /// The shared operand's two boxes, then the other's.
  __device__ std::uint32_t box(int s, int i) const {
    return data + static_cast<std::uint32_t>(s * stage_size + i * box_size);
  }
};

/// Which stage comes next, and the parity of its phase.
struct ring {
  int stage = 0;
  std::uint32_t phase = 0;
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

/// Joined widths of window_tile rows each of A, then of B, in shared memory, sixteen to a word.
struct tile_widths {
  static constexpr int words = 2 * max_gemm_extent / window_tile / 16;
  std::uint32_t* joined;  ///< null: no widths, every tile is the kernel's
  int tiles_a;
  __device__ std::uint32_t at(int tile) const { return joined[tile / 16] >> (2 * (tile % 16)) & 3u; }
  __device__ bool is_mine(operand_width width, tile_position t) const {
    return joined == nullptr || joined_width(at(t.row) | at(tiles_a + t.column)) == width;
  }
  /// Reads the widths; the widest of all rows. All threads of the block call it.
  __device__ operand_width fill(const gemm_arguments& p) {
    for (int i = static_cast<int>(threadIdx.x); i < words; i += threads) joined[i] = 0;
    __syncthreads();
    const int count_a = (p.m + 15) / 16, count_b = (p.n + 15) / 16;
    std::uint32_t seen = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count_a + count_b; i += threads) {
      const bool second = i >= count_a;
      const int at = second ? i - count_a : i, tile = (second ? tiles_a : 0) + at / (window_tile / 16);
      const std::uint32_t x = joined_widths_of_sixteen(p.widths + (second ? p.base_b : 0), at, second ? p.n : p.m);
      if (x != 0) atomicOr(joined + tile / 16, x << (2 * (tile % 16)));
      seen |= x;
    }
    const bool outside_int8 = __syncthreads_or(seen != 0), outside_e5m2 = __syncthreads_or(seen > 1);
    return outside_e5m2 ? operand_width::bf16 : outside_int8 ? operand_width::e5m2 : operand_width::int8;
  }
};

/// Box `k` of the 128 rows from `row` on into shared memory. Of a transposed operand it is two boxes of 64 rows (128
/// bytes) by 64 k, one behind the other.
template <bool Transposed, class Load>
__device__ inline void load_rows(std::uint32_t to, int k, int row, const Load& load) {
  if constexpr (Transposed) {
    load(to, 2 * row, k * transposed_box_k);
    load(to + box_size / 2, 2 * row + box_bytes, k * transposed_box_k);
  } else {
    load(to, k * box_bytes, row);
  }
}

template <class Tile>
__device__ void produce(const gemm_arguments& p, const CUtensorMap& map_a, const CUtensorMap& map_b, const pipeline& q,
                        std::uint32_t rank, int cluster, int clusters, const tile_widths& widths) {
  ring r;
  const CUtensorMap* shared = Tile::shares_a ? &map_a : &map_b;
  const CUtensorMap* own = Tile::shares_a ? &map_b : &map_a;
  const tile_walk walk(p);
  for (int t = cluster; t < walk.count(); t += clusters) {
    const tile_position at = walk.at(t);
    if (!widths.is_mine(Tile::width, at)) continue;
    const int half = static_cast<int>(rank) * box_rows;
    const int shared_row = (Tile::shares_a ? at.row : at.column) * super_tile + half;
    const int own_row = (Tile::shares_a ? at.column : at.row) * super_tile + half;
    const box_range boxes = boxes_of(p, at.part);
    for (int k = boxes.first; k < boxes.last; ++k) {
      barrier_wait(q.empty_at(r.stage), r.phase ^ 1);
      const std::uint32_t bar = q.full_at(r.stage);
      barrier_expect(bar, stage_size);
      load_rows<Tile::shares_a ? Tile::transposed_a : Tile::transposed_b>(
          q.box(r.stage, static_cast<int>(rank)), k, shared_row,
          [&](std::uint32_t to, int x, int y) { load_box_multicast(to, shared, x, y, bar, 3); });
      load_rows<Tile::shares_a ? Tile::transposed_b : Tile::transposed_a>(
          q.box(r.stage, 2), k, own_row, [&](std::uint32_t to, int x, int y) { load_box(to, own, x, y, bar); });
      r.advance();
    }
  }
}

template <int Pieces, int Half>
__device__ void clear(float (&acc)[Pieces][Half]) {
  ROTOSCALE_UNROLL
  for (int w = 0; w < Pieces; ++w) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Half; ++i) acc[w][i] = 0.0f;
  }
}

/// What 64 rows of a box add to a descriptor.
inline constexpr unsigned half_box = 64 * box_bytes >> 4;

/// Tells the producers of both blocks that this warp has read the stage.
__device__ inline void release(const pipeline& q, int stage, int lane) {
  if (lane < 2) barrier_arrive_remote(q.empty_at(stage), static_cast<std::uint32_t>(lane));
}

/// Emptied every 128 k. While a warpgroup adds, the other has the tensor cores.
__device__ inline void multiply(fp8_tile<128>, int boxes, const pipeline& q, ring& r, int group, int lane,
                                float (&acc)[2][64]) {
  float part[64];
  clear(acc);
  for (int k = 0; k < boxes; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t b = operand_descriptor(q.box(r.stage, 2));
    ROTOSCALE_UNROLL
    for (int w = 0; w < 2; ++w) {
      const std::uint64_t a = operand_descriptor(q.box(r.stage, group)) + static_cast<unsigned>(w) * half_box;
      hold(part);
      wgmma_fence();
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < 4; ++i) wgmma_e5m2_n128(part, a + 2 * i, b + 2 * i, i == 0);
      wgmma_commit();
      hold(part);
      wgmma_wait<0>();
      if (w == 1) release(q, r.stage, lane);
      ROTOSCALE_UNROLL
      for (int i = 0; i < 64; ++i) acc[w][i] += part[i];
    }
    r.advance();
  }
}

/// The 64 × 64 outputs of unit `u` of a stage: its 32 k, its warpgroup tile, its half of the columns.
__device__ inline void start_unit(int u, std::uint64_t a, std::uint64_t b, float (&part)[32]) {
  const auto step = static_cast<unsigned>(u / 4), warpgroup_tile = static_cast<unsigned>(u / 2 % 2);
  hold(part);
  wgmma_fence();
  wgmma_e5m2_n64(part, a + warpgroup_tile * half_box + 2 * step,
                 b + static_cast<unsigned>(u % 2) * half_box + 2 * step);
  wgmma_commit();
}

/// Emptied every 32 k. A sum of 32 is added while the next is multiplied: the adders are as busy as the tensor cores.
__device__ inline void multiply(fp8_tile<32>, int boxes, const pipeline& q, ring& r, int group, int lane,
                                float (&acc)[2][64]) {
  constexpr int units = 16;  // of a stage
  float part[2][32];
  clear(acc);
  const auto add = [&](int u) {
    hold(part[u % 2]);
    ROTOSCALE_UNROLL
    for (int i = 0; i < 32; ++i) acc[u / 2 % 2][32 * (u % 2) + i] += part[u % 2][i];
  };
  for (int k = 0; k < boxes; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a = operand_descriptor(q.box(r.stage, group)), b = operand_descriptor(q.box(r.stage, 2));
    start_unit(0, a, b, part[0]);
    ROTOSCALE_UNROLL
    for (int u = 1; u < units; ++u) {
      start_unit(u, a, b, part[u % 2]);
      wgmma_wait<1>();
      add(u - 1);
    }
    wgmma_wait<0>();
    release(q, r.stage, lane);
    add(units - 1);
    r.advance();
  }
}

/// What 16 k add to a descriptor: 32 bytes of a row, or 16 rows of k.
template <bool Transposed>
inline constexpr unsigned bf16_step = Transposed ? 16 * box_bytes >> 4 : 2;

template <bool TransposedA, bool TransposedB>
__device__ inline void multiply_box(bf16_tile<TransposedA, TransposedB>, float (&d)[128], std::uint64_t a,
                                    std::uint64_t b, bool first) {
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    wgmma_bf16_n256<TransposedA, TransposedB>(d, a + bf16_step<TransposedA> * i, b + bf16_step<TransposedB> * i,
                                              first && i == 0);
  }
}
__device__ inline void multiply_box(int8_tile, std::int32_t (&d)[128], std::uint64_t a, std::uint64_t b, bool first) {
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < 4; ++i) wgmma_int8_n256(d, a + 2 * i, b + 2 * i, first && i == 0);
}

/// One warpgroup tile of 64 × 256 whose accumulators stay.
template <class Tile, class Number>
__device__ void multiply_tile(Tile tile, int boxes, const pipeline& q, ring& r, int group, int lane,
                              Number (&acc)[128]) {
  int last = -1;
  hold(acc);
  for (int k = 0; k < boxes; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a =
        operand_descriptor<Tile::transposed_a>(q.box(r.stage, 2)) + static_cast<unsigned>(group) * half_box;
    const std::uint64_t b = operand_descriptor<Tile::transposed_b>(q.box(r.stage, 0));
    wgmma_fence();
    multiply_box(tile, acc, a, b, k == 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (last >= 0) release(q, last, lane);
    last = r.stage;
    r.advance();
  }
  hold(acc);
  wgmma_wait<0>();
  hold(acc);
  release(q, last, lane);
}
template <bool TransposedA, bool TransposedB>
__device__ inline void multiply(bf16_tile<TransposedA, TransposedB> tile, int boxes, const pipeline& q, ring& r,
                                int group, int lane, float (&acc)[1][128]) {
  multiply_tile(tile, boxes, q, r, group, lane, acc[0]);
}
__device__ inline void multiply(int8_tile tile, int boxes, const pipeline& q, ring& r, int group, int lane,
                                std::int32_t (&acc)[1][128]) {
  multiply_tile(tile, boxes, q, r, group, lane, acc[0]);
}

template <class Tile, output_mode Mode>
__device__ void consume(const gemm_arguments& p, const pipeline& q, int* columns, std::uint32_t rank, int cluster,
                        int clusters, const tile_widths& widths) {
  const int thread = static_cast<int>(threadIdx.x) % 128, group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int warp = thread / 32, lane = thread % 32;
  ring r;
  const tile_walk walk(p);
  for (int t = cluster; t < walk.count(); t += clusters) {
    const tile_position tile = walk.at(t);
    if (!widths.is_mine(Tile::width, tile)) continue;
    const int half = static_cast<int>(rank) * box_rows;
    const int first_column = tile.column * super_tile + (Tile::shares_a ? half : 0);
    fragment_position at{
        tile.row * super_tile + (Tile::shares_a ? 0 : half) + group * 64 * Tile::warpgroup_tiles + warp * 16 + lane / 4,
        first_column + 2 * (lane % 4)};

    fold_bases<Tile> bases;
    if constexpr (unfolds<Tile, Mode>) bases.load(p, at, first_column + thread);
    typename Tile::number acc[Tile::warpgroup_tiles][Tile::columns / 2];
    const box_range boxes = boxes_of(p, tile.part);
    multiply(Tile{}, boxes.last - boxes.first, q, r, group, lane, acc);
    int* exponents = columns + Tile::columns * group;
    bool plain = true;
    if constexpr (unfolds<Tile, Mode>) plain = bases.share(exponents, group, thread);
    if (plain) {
      store_tile<Tile, Mode, true>(p, acc, bases, exponents, at, lane, tile.part);
    } else {
      store_tile<Tile, Mode, false>(p, acc, bases, exponents, at, lane, tile.part);
    }
  }
}

/// A block's work.
template <class Tile, output_mode Mode>
__device__ inline void run_block(const CUtensorMap& map_a, const CUtensorMap& map_b, const gemm_arguments& p) {
  extern __shared__ std::uint8_t dynamic[];
  __shared__ alignas(8) std::uint64_t barriers[2 * stages];
  __shared__ alignas(8) int columns[2 * Tile::columns];
  __shared__ std::uint32_t width_words[tile_widths::words];
  const pipeline q{shared_address(barriers), shared_address(barriers + stages),
                   (shared_address(dynamic) + 1023) & ~1023u};
  const std::uint32_t rank = cluster_rank();
  const int cluster = static_cast<int>(blockIdx.x / 2), clusters = static_cast<int>(gridDim.x / 2);
  tile_widths widths{p.widths == nullptr ? nullptr : width_words, (p.m + window_tile - 1) / window_tile};
  if (p.widths != nullptr) {
    const operand_width widest = widths.fill(p);
    if (widest < Tile::width || (widest == p.min_width && widest != Tile::width)) return;  // no tile is this kernel's
  }
  if (threadIdx.x == 0) {
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    for (int s = 0; s < stages; ++s) {
      barrier_init(q.full_at(s), 1);
      barrier_init(q.empty_at(s), 16);  // eight consumer warps of either block
    }
    fence_barrier_init();
  }
  cluster_sync();
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x == 0) produce<Tile>(p, map_a, map_b, q, rank, cluster, clusters, widths);
  } else {
    registers_up<232>();
    consume<Tile, Mode>(p, q, columns, rank, cluster, clusters, widths);
  }
  __syncwarp();
  cluster_sync();  // no block leaves while the other may still write to it
}

template <class Tile, output_mode Mode>
[[maybe_unused]] static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(threads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ gemm_arguments p) {
  if constexpr (is_sm90a) run_block<Tile, Mode>(map_a, map_b, p);  // other devices are not offered the kernel
}

}  // namespace rotoscale::gpu::sm90
