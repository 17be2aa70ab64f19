// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM kernels of sm_90a: C = A · Bᵀ from operands that gemm_expand.hpp wrote, E5M2 with promotion every 128 k
// (`fast`) or BF16 (`accurate`). Persistent clusters of two blocks compute tiles of 256 × 256; in a block one warp
// copies and two warpgroups multiply. The operand of which both blocks need the same 256 rows is copied half by each
// and multicast; the other's 128 rows each block copies for itself.
#pragma once

#include "gpu/gemm_arguments.hpp"
#include "gpu/gemm_sm90_ptx.hpp"

namespace rotoscale::gpu::sm90 {

inline constexpr int stages = 4, box_rows = 128, box_bytes = 128;
inline constexpr int box_size = box_rows * box_bytes;           // 16 KiB
inline constexpr int stage_size = 3 * box_size;                 // two boxes of one operand, one of the other
inline constexpr int shared_size = stages * stage_size + 1024;  // alignment
inline constexpr int threads = 384;                             // one producer warpgroup, two consumers
inline constexpr int super_tile = 256;

/// E5M2: 256 × 128 a block, a warpgroup computes two pieces of 64 × 128 at a time, emptied every 128 k.
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
  int row, column;
};
__device__ inline tile_position tile_at(int index, int tile_rows, int tile_columns) {
  constexpr int band = 8;
  const int first = index / (band * tile_columns) * band, within = index % (band * tile_columns);
  const int height = tile_rows - first < band ? tile_rows - first : band;
  return {first + within % height, within / height};
}

/// Byte addresses of the barriers, 8 bytes each, in static shared memory.
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
  bool flagged = false;
  const unsigned char* a = p.flags + t.row * (super_tile / flag_rows);
  const unsigned char* b = p.flags + p.flags_b + t.column * (super_tile / flag_rows);
  const int rows_a = (p.m + flag_rows - 1) / flag_rows - t.row * (super_tile / flag_rows);
  const int rows_b = (p.n + flag_rows - 1) / flag_rows - t.column * (super_tile / flag_rows);
  for (int i = 0; i < super_tile / flag_rows; ++i) {
    flagged |= (i < rows_a && a[i] != 0) || (i < rows_b && b[i] != 0);
  }
  return flagged != Fp8;
}

template <class Tile>
__device__ void produce(const gemm_arguments& p, const CUtensorMap& map_a, const CUtensorMap& map_b, const pipeline& q,
                        std::uint32_t rank, int cluster, int clusters, bool any_flag) {
  ring r;
  const CUtensorMap* shared = Tile::shares_a ? &map_a : &map_b;
  const CUtensorMap* own = Tile::shares_a ? &map_b : &map_a;
  const int tile_rows = (p.m + super_tile - 1) / super_tile, tile_columns = (p.n + super_tile - 1) / super_tile;
  for (int t = cluster; t < tile_rows * tile_columns; t += clusters) {
    const tile_position at = tile_at(t, tile_rows, tile_columns);
    if (!is_mine<Tile::shares_a>(p, any_flag, at)) continue;
    const int half = static_cast<int>(rank) * box_rows;
    const int shared_row = (Tile::shares_a ? at.row : at.column) * super_tile + half;
    const int own_row = (Tile::shares_a ? at.column : at.row) * super_tile + half;
    for (int k = 0; k < p.k_boxes; ++k) {
      barrier_wait(q.empty_at(r.stage), r.phase ^ 1);
      const std::uint32_t bar = q.full_at(r.stage);
      barrier_expect(bar, stage_size);
      load_box_multicast(q.box(r.stage, static_cast<int>(rank)), shared, k * box_bytes, shared_row, bar, 3);
      load_box(q.box(r.stage, 2), own, k * box_bytes, own_row, bar);
      r.advance();
    }
  }
}

/// Tells the producers of both blocks that this warp has read the stage.
__device__ inline void release(const pipeline& q, int stage, int lane) {
  if (lane < 2) barrier_arrive_remote(q.empty_at(stage), static_cast<std::uint32_t>(lane));
}

__device__ inline void multiply(fp8_tile, const gemm_arguments& p, const pipeline& q, ring& r, int group, int lane,
                                float (&acc)[2][64]) {
  float part[64];
#pragma unroll
  for (int w = 0; w < 2; ++w) {
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[w][i] = 0.0f;
  }
  for (int k = 0; k < p.k_boxes; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t b = operand_descriptor(q.box(r.stage, 2));
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const std::uint64_t a = operand_descriptor(q.box(r.stage, group)) + static_cast<unsigned>(w) * (64 * 128 >> 4);
      hold(part);
      wgmma_fence();
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) wgmma_e5m2_n128(part, a + 2 * i, b + 2 * i, i == 0);
      wgmma_commit();
      hold(part);
      wgmma_wait<0>();
      if (w == 1) release(q, r.stage, lane);
#pragma unroll
      for (int i = 0; i < 64; ++i) acc[w][i] += part[i];
    }
    r.advance();
  }
}

__device__ inline void multiply(bf16_tile, const gemm_arguments& p, const pipeline& q, ring& r, int group, int lane,
                                float (&acc)[1][128]) {
  int last = -1;
  hold(acc[0]);
  for (int k = 0; k < p.k_boxes; ++k) {
    barrier_wait(q.full_at(r.stage), r.phase);
    const std::uint64_t a = operand_descriptor(q.box(r.stage, 2)) + static_cast<unsigned>(group) * (64 * 128 >> 4);
    const std::uint64_t b = operand_descriptor(q.box(r.stage, 0));
    wgmma_fence();
#pragma unroll
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

/// Four lanes hold a 4 × 4 matrix of words, lane q its column q; afterwards lane q holds row q.
__device__ inline void transpose_quad(std::uint32_t (&w)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = other;
  }
}

__device__ inline float old_output(const gemm_arguments& p, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  return p.bf16_out ? fp32_from_bits(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(p.out)[at]) << 16)
                    : static_cast<const float*>(p.out)[at];
}
__device__ inline void store_output(const gemm_arguments& p, float x, int row, int column) {
  const std::int64_t at = row * p.out_stride + column;
  if (p.bf16_out) {
    static_cast<std::uint16_t*>(p.out)[at] = static_cast<std::uint16_t>(bf16_bits(x));
  } else {
    static_cast<float*>(p.out)[at] = x;
  }
}
__device__ inline float finish(const gemm_arguments& p, float acc, int row, int column, bool inside) {
  const float old = p.accumulate && inside ? old_output(p, row, column) : 0.0f;
  const float bias = p.bias != nullptr && inside ? p.bias[column] : 0.0f;
  return finish_value(acc, p.alpha, p.accumulate, p.beta, old, p.bias != nullptr, bias, p.nan_bits);
}
/// Two numbers as BF16, nearest even; every NaN is 0x7FFF, which is also the upper half of the units' NaN.
__device__ inline std::uint32_t bf16_pair(float x, float y) {
  std::uint32_t w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(y), "f"(x));
  return w;
}

/// Writes one warp's piece: accumulators of rows first + lane / 4 (+ 8) and columns 8 g + 2 (lane % 4) (+ 1).
template <int Columns, bool Bases>
__device__ void store_piece(const gemm_arguments& p, const float (&acc)[Columns / 2], int first_row, int first_column,
                            int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + lane / 4 + 8 * h;
    const bool row_inside = row < p.m;
    const int base_a = Bases && row_inside ? p.base[row] : 0;
#pragma unroll
    for (int g4 = 0; g4 < Columns / 8; g4 += 4) {
      float x[4][2];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int column = first_column + 8 * (g4 + g) + 2 * (lane % 4);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool inside = row_inside && column + e < p.n;
          float value = acc[4 * (g4 + g) + 2 * h + e];
          if (Bases && inside) value = times_power(value, base_a + p.base[p.base_b + column + e]);
          x[g][e] = finish(p, value, row, column + e, inside);
        }
      }
      if (p.vector_stores) {
        // Sixteen bytes a lane: the quad's 4 × 4 pairs of BF16, transposed.
        std::uint32_t w[4];
#pragma unroll
        for (int g = 0; g < 4; ++g) w[g] = bf16_pair(x[g][0], x[g][1]);
        transpose_quad(w, lane);
        const int column = first_column + 8 * (g4 + lane % 4);
        if (row_inside && column < p.n) {
          *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(p.out) + row * p.out_stride + column) =
              uint4{w[0], w[1], w[2], w[3]};
        }
      } else {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          const int column = first_column + 8 * (g4 + g) + 2 * (lane % 4);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (row_inside && column + e < p.n) store_output(p, x[g][e], row, column + e);
          }
        }
      }
    }
  }
}

template <class Tile>
__device__ void consume(const gemm_arguments& p, const pipeline& q, std::uint32_t rank, int cluster, int clusters,
                        bool any_flag) {
  const int thread = static_cast<int>(threadIdx.x) - 128, group = thread / 128, warp = thread % 128 / 32,
            lane = thread % 32;
  ring r;
  const int tile_rows = (p.m + super_tile - 1) / super_tile, tile_columns = (p.n + super_tile - 1) / super_tile;
  for (int t = cluster; t < tile_rows * tile_columns; t += clusters) {
    const tile_position at = tile_at(t, tile_rows, tile_columns);
    if (!is_mine<Tile::shares_a>(p, any_flag, at)) continue;
    float acc[Tile::pieces][Tile::columns / 2];
    multiply(Tile{}, p, q, r, group, lane, acc);
    const int half = static_cast<int>(rank) * box_rows;
    const int row = at.row * super_tile + (Tile::shares_a ? 0 : half) + group * 64 * Tile::pieces + warp * 16;
    const int column = at.column * super_tile + (Tile::shares_a ? half : 0);
#pragma unroll
    for (int w = 0; w < Tile::pieces; ++w) {
      store_piece<Tile::columns, Tile::shares_a>(p, acc[w], row + 64 * w, column, lane);
    }
  }
}

template <class Tile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(threads, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ gemm_arguments p) {
  extern __shared__ std::uint8_t dynamic[];
  __shared__ alignas(8) std::uint64_t barriers[2 * stages];
  const pipeline q{shared_address(barriers), shared_address(barriers + stages),
                   (shared_address(dynamic) + 1023) & ~1023u};
  const std::uint32_t rank = cluster_rank();
  const int cluster = static_cast<int>(blockIdx.x / 2), clusters = static_cast<int>(gridDim.x / 2);
  bool flag = false;
  if (p.flags != nullptr) {
    const int count = p.flags_b + (p.n + flag_rows - 1) / flag_rows;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) flag |= p.flags[i] != 0;
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
  const bool any_flag = __syncthreads_or(flag);
  cluster_sync();
  if (threadIdx.x < 128) {
    registers_down<24>();
    if (threadIdx.x == 0) produce<Tile>(p, map_a, map_b, q, rank, cluster, clusters, any_flag);
  } else {
    registers_up<240>();
    consume<Tile>(p, q, rank, cluster, clusters, any_flag);
  }
  __syncwarp();
  cluster_sync();  // no block leaves while the other may still write to it
}

}  // namespace rotoscale::gpu::sm90
