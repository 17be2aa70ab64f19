// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM kernels of sm_90a: C = A · Bᵀ from operands that gemm_expand.hpp wrote, E5M2 with promotion every 128 k
// (`fast`) or every 32 (`accurate`), or BF16 (what does not fit E5M2). Persistent clusters of two blocks compute tiles
// of 256 × 256; in a block one warp copies and two warpgroups multiply. The operand of which both blocks need the same
// 256 rows is copied half by each and multicast; the other's 128 rows each block copies for itself.
#pragma once

#include "gpu/gemm_arguments.hpp"
#include "gpu/gemm_output.hpp"
#include "gpu/gemm_sm90_ptx.hpp"
#include "gpu/hip.hpp"  // first: the numerics headers need its words

namespace rotoscale::gpu::sm90 {

inline constexpr int stages = 4, box_rows = 128, box_bytes = 128;
inline constexpr int box_size = box_rows * box_bytes;           // 16 KiB
inline constexpr int stage_size = 3 * box_size;                 // two boxes of one operand, one of the other
inline constexpr int shared_size = stages * stage_size + 1024;  // alignment
inline constexpr int threads = 384;                             // one producer warpgroup, two consumers
inline constexpr int super_tile = window_tile;

/// E5M2: 256 × 128 a block, a warpgroup computes two pieces of 64 × 128, emptied every Promotion k.
template <int Promotion>
struct fp8_tile {
  static constexpr bool shares_a = true;
  static constexpr int pieces = 2, columns = 128;
};
/// BF16: 128 × 256 a block, a warpgroup one piece of 64 × 256.
struct bf16_tile {
  static constexpr bool shares_a = false;
  static constexpr int pieces = 1, columns = 256;
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
  __device__ tile_position at(int index) const {
    constexpr int band = 8;
    const int part = index / (rows * columns), in_part = index % (rows * columns);
    const int first = in_part / (band * columns) * band, within = in_part % (band * columns);
    const int height = rows - first < band ? rows - first : band;
    return {first + within % height, within / height, part};
  }
};
/// 128-byte pieces of a part of K, the last not included.
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

/// Does this kernel compute this tile? Tiles with an operand outside the FP8 window go to the BF16 kernel.
template <bool Fp8>
__device__ bool is_mine(const gemm_arguments& p, bool any_flag, tile_position t) {
  if (p.flags == nullptr) return true;
  if (!any_flag) return Fp8;
  return tile_is_flagged(p, t.row * super_tile, t.column * super_tile) != Fp8;
}

template <class Tile>
__device__ void produce(const gemm_arguments& p, const CUtensorMap& map_a, const CUtensorMap& map_b, const pipeline& q,
                        std::uint32_t rank, int cluster, int clusters, bool any_flag) {
  ring r;
  const CUtensorMap* shared = Tile::shares_a ? &map_a : &map_b;
  const CUtensorMap* own = Tile::shares_a ? &map_b : &map_a;
  const tile_walk walk(p);
  for (int t = cluster; t < walk.count(); t += clusters) {
    const tile_position at = walk.at(t);
    if (!is_mine<Tile::shares_a>(p, any_flag, at)) continue;
    const int half = static_cast<int>(rank) * box_rows;
    const int shared_row = (Tile::shares_a ? at.row : at.column) * super_tile + half;
    const int own_row = (Tile::shares_a ? at.column : at.row) * super_tile + half;
    const box_range boxes = boxes_of(p, at.part);
    for (int k = boxes.first; k < boxes.last; ++k) {
      barrier_wait(q.empty_at(r.stage), r.phase ^ 1);
      const std::uint32_t bar = q.full_at(r.stage);
      barrier_expect(bar, stage_size);
      load_box_multicast(q.box(r.stage, static_cast<int>(rank)), shared, k * box_bytes, shared_row, bar, 3);
      load_box(q.box(r.stage, 2), own, k * box_bytes, own_row, bar);
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

/// The 64 × 64 outputs of unit `u` of a stage: its 32 k, its piece, its half of the columns.
__device__ inline void start_unit(int u, std::uint64_t a, std::uint64_t b, float (&part)[32]) {
  const auto step = static_cast<unsigned>(u / 4), piece = static_cast<unsigned>(u / 2 % 2);
  hold(part);
  wgmma_fence();
  wgmma_e5m2_n64(part, a + piece * half_box + 2 * step, b + static_cast<unsigned>(u % 2) * half_box + 2 * step);
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

__device__ inline void multiply(bf16_tile, int boxes, const pipeline& q, ring& r, int group, int lane,
                                float (&acc)[1][128]) {
  int last = -1;
  hold(acc[0]);
  for (int k = 0; k < boxes; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a = operand_descriptor(q.box(r.stage, 2)) + static_cast<unsigned>(group) * half_box;
    const std::uint64_t b = operand_descriptor(q.box(r.stage, 0));
    wgmma_fence();
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) wgmma_bf16_n256(acc[0], a + 2 * i, b + 2 * i, k == 0 && i == 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (last >= 0) release(q, last, lane);
    last = r.stage;
    r.advance();
  }
  hold(acc[0]);
  wgmma_wait<0>();
  hold(acc[0]);
  release(q, last, lane);
}

/// Where a thread's accumulators belong: rows row + 8 h, columns column + 8 g + e with h, e in {0, 1}.
struct piece_position {
  int row, column;
};

/// Sixteen bytes a lane: the quads' 4 × 4 pairs of BF16, transposed.
template <int Columns>
__device__ void store_plain(const gemm_arguments& p, const float (&acc)[Columns / 2], piece_position at, int lane) {
  const int first = at.column - 2 * (lane % 4) + 8 * (lane % 4);
  ROTOSCALE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = at.row + 8 * h;
    std::uint16_t* to = static_cast<std::uint16_t*>(p.out) + row * p.out_stride + first;
    ROTOSCALE_UNROLL
    for (int g = 0; g < Columns / 8; g += 4) {
      std::uint32_t w[4];
      ROTOSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        w[i] = bf16_pair(acc[4 * (g + i) + 2 * h] * p.alpha, acc[4 * (g + i) + 2 * h + 1] * p.alpha);
      }
      const uint4 v = transpose_quad(w[0], w[1], w[2], w[3], lane);
      if (row < p.m && first + 8 * g < p.n) *reinterpret_cast<uint4*>(to + 8 * g) = v;
    }
  }
}

/// Any output, one element at a time.
template <int Columns>
__device__ void store_general(const gemm_arguments& p, const float (&acc)[Columns / 2], piece_position at) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < Columns / 2; ++i) {
    const int row = at.row + i / 2 % 2 * 8, column = at.column + i / 4 * 8 + i % 2;
    if (row < p.m && column < p.n) store_output(p, acc[i], row, column);
  }
}

/// Sums of a part of K as they are.
template <int Columns>
__device__ void store_partial(const gemm_arguments& p, const float (&acc)[Columns / 2], piece_position at, int part) {
  float* to = p.partial + static_cast<std::int64_t>(part) * p.m * p.n;
  ROTOSCALE_UNROLL
  for (int i = 0; i < Columns / 2; ++i) {
    const int row = at.row + i / 2 % 2 * 8, column = at.column + i / 4 * 8 + i % 2;
    if (row < p.m && column < p.n) to[static_cast<std::int64_t>(row) * p.n + column] = acc[i];
  }
}

/// What brings a warp's folded sums back: 2^base of its rows and, in shared memory, of the block's columns.
struct fold_bases {
  int rows[4];  ///< exponents: pieces, then halves
  int column;   ///< of column `thread`
};
__device__ inline fold_bases load_bases(const gemm_arguments& p, piece_position at, int column) {
  fold_bases b;
  ROTOSCALE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = at.row + i / 2 * 64 + i % 2 * 8;
    b.rows[i] = row < p.m ? p.base[row] : 0;
  }
  b.column = column < p.n ? p.base[p.base_b + column] : 0;
  return b;
}
/// `shared`: 128 ints of this warpgroup.
template <int Pieces, int Half>
__device__ void unfold(const fold_bases& b, int* shared, int group, int thread, float (&acc)[Pieces][Half]) {
  static_assert(Pieces == 2 && Half == 64);
  group_sync(group);  // the last tile's readers
  shared[thread] = b.column;
  bool plain = second_base_is_plain(b.column);
  ROTOSCALE_UNROLL
  for (int i = 0; i < 4; ++i) plain &= first_base_is_plain(b.rows[i]);
  group_sync(group);
  // The columns' test must hold for all 128: every warp looks at them.
  ROTOSCALE_UNROLL
  for (int i = 0; i < 4; ++i) plain &= second_base_is_plain(shared[thread % 32 + 32 * i]);
  const int* columns = shared + 2 * (thread % 4);
  if (__all_sync(0xFFFFFFFFu, plain)) {
    ROTOSCALE_UNROLL
    for (int g = 0; g < 16; ++g) {
      const int2 exponent = *reinterpret_cast<const int2*>(columns + 8 * g);
      const float scale[2] = {__int_as_float((exponent.x + 127) << 23), __int_as_float((exponent.y + 127) << 23)};
      ROTOSCALE_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& x = acc[i / 4][4 * g + i % 4];
        x = x * __int_as_float((b.rows[i / 2] + 127) << 23) * scale[i % 2];
      }
    }
  } else {
    ROTOSCALE_UNROLL
    for (int g = 0; g < 16; ++g) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& x = acc[i / 4][4 * g + i % 4];
        x = times_power(x, b.rows[i / 2] + columns[8 * g + i % 2]);
      }
    }
  }
}

template <class Tile, output_mode Mode>
__device__ void consume(const gemm_arguments& p, const pipeline& q, int* columns, std::uint32_t rank, int cluster,
                        int clusters, bool any_flag) {
  const int thread = static_cast<int>(threadIdx.x) % 128, group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int warp = thread / 32, lane = thread % 32;
  ring r;
  const tile_walk walk(p);
  for (int t = cluster; t < walk.count(); t += clusters) {
    const tile_position tile = walk.at(t);
    if (!is_mine<Tile::shares_a>(p, any_flag, tile)) continue;
    const int half = static_cast<int>(rank) * box_rows;
    const int first_column = tile.column * super_tile + (Tile::shares_a ? half : 0);
    piece_position at{
        tile.row * super_tile + (Tile::shares_a ? 0 : half) + group * 64 * Tile::pieces + warp * 16 + lane / 4,
        first_column + 2 * (lane % 4)};
    constexpr bool unfolds = Tile::shares_a && Mode != output_mode::partial;
    fold_bases bases;
    if constexpr (unfolds) bases = load_bases(p, at, first_column + thread);
    float acc[Tile::pieces][Tile::columns / 2];
    const box_range boxes = boxes_of(p, tile.part);
    multiply(Tile{}, boxes.last - boxes.first, q, r, group, lane, acc);
    if constexpr (unfolds) unfold(bases, columns + 128 * group, group, thread, acc);
    ROTOSCALE_UNROLL
    for (int w = 0; w < Tile::pieces; ++w) {
      if constexpr (Mode == output_mode::plain) store_plain<Tile::columns>(p, acc[w], at, lane);
      if constexpr (Mode == output_mode::general) store_general<Tile::columns>(p, acc[w], at);
      if constexpr (Mode == output_mode::partial) store_partial<Tile::columns>(p, acc[w], at, tile.part);
      at.row += 64;
    }
  }
}

template <class Tile, output_mode Mode>
[[maybe_unused]] static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(threads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ gemm_arguments p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // other devices have no such instructions, and are not offered the kernel
  extern __shared__ std::uint8_t dynamic[];
  __shared__ alignas(8) std::uint64_t barriers[2 * stages];
  __shared__ alignas(8) int columns[2 * 128];
  const pipeline q{shared_address(barriers), shared_address(barriers + stages),
                   (shared_address(dynamic) + 1023) & ~1023u};
  const std::uint32_t rank = cluster_rank();
  const int cluster = static_cast<int>(blockIdx.x / 2), clusters = static_cast<int>(gridDim.x / 2);
  const bool flag = p.flags != nullptr && sees_flag(p.flags, p.m + p.n, static_cast<int>(threadIdx.x), threads);
  if (threadIdx.x == 0) {
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    for (int s = 0; s < stages; ++s) {
      barrier_init(q.full_at(s), 1);
      barrier_init(q.empty_at(s), 16);  // eight consumer warps of either block
    }
    fence_barrier_init();
  }
  const bool any_flag = __syncthreads_or(flag);
  cluster_sync();
  if (threadIdx.x < 128) {
    registers_down<40>();
    if (threadIdx.x == 0) produce<Tile>(p, map_a, map_b, q, rank, cluster, clusters, any_flag);
  } else {
    registers_up<232>();
    consume<Tile, Mode>(p, q, columns, rank, cluster, clusters, any_flag);
  }
  __syncwarp();
  cluster_sync();  // no block leaves while the other may still write to it
#endif
}

}  // namespace rotoscale::gpu::sm90
