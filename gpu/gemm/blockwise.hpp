// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The GEMM of fp32_blockwise on MXFP4 operands, on CUDA cores or VALUs.
// Twice an E2M1 value is an int8, so a block of 32 products is eight four-way integer dot products. Their exact sum
// counts quarters, and one fused multiply-add scales and adds it. All bits are the definition's, even if scales leave
// FP32's range.
#pragma once

#include "gpu/dialect/e2m1.hpp"
#include "gpu/gemm/simt.hpp"

namespace rotoscale::gpu {

inline constexpr int blockwise_blocks = 4;  // blocks of 32 per stage in shared memory

/// Marks a NaN scale: greater than any sum of two exponents.
inline constexpr int nan_exponent = 1 << 20;

/// One operand's stage in shared memory, aligned for owned::load.
template <int R>
struct alignas(16) blockwise_side {
  static constexpr int pitch = 16 * R + 4;
  std::uint32_t word[blockwise_blocks][8][pitch];  ///< four doubled elements; [.][w] holds elements 4 w to 4 w + 3
  int exponent[blockwise_blocks][pitch];           ///< exponent of the block's scale
};
template <int R>
struct blockwise_tiles {
  blockwise_side<R> a, b;
};

/// Eight codes as doubled int8 values.
__device__ inline void double_e2m1(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  const byte_table plus{0x03020100u, 0x0C080604u}, minus{0xFDFEFF00u, 0xF4F8FAFCu};
  const sign_bytes signs = spread_signs(codes);
  const std::uint32_t low_mask = permute_bytes<0xBA98>(signs.low, 0), high_mask = permute_bytes<0xBA98>(signs.high, 0);
  low = (plus.of(codes) & ~low_mask) | (minus.of(codes) & low_mask);
  high = (plus.of(codes >> 16) & ~high_mask) | (minus.of(codes >> 16) & high_mask);
}

/// A thread's part of blockwise_blocks blocks of 16 R rows, in registers between memory and shared memory.
template <int R>
struct blockwise_share {
  static constexpr int words = 4 * blockwise_blocks;  // words of codes per row
  static constexpr int count = 16 * R * words / simt_threads, scales = 16 * R * blockwise_blocks;
  static_assert(scales <= simt_threads);
  std::uint32_t codes[count];
  std::uint8_t scale;

  /// Loads blocks [first, first + blockwise_blocks) of the rows from `row` on. Blocks and rows out of range are zero
  /// and unused.
  __device__ void load(const simt_operand& o, int row, int first, int blocks, int thread) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      const int at = i * simt_threads + thread, r = at / words, w = at % words;
      codes[i] = 0;
      if (row + r < o.rows && first + w / 4 < blocks) {
        codes[i] = reinterpret_cast<const std::uint32_t*>(o.codes + (row + r) * o.row_step)[4 * first + w];
      }
    }
    const int r = thread / blockwise_blocks, block = thread % blockwise_blocks;
    scale = unit_scale_byte;
    if (thread < scales && row + r < o.rows && first + block < blocks)
      scale = scale_byte_of(o, row + r, 32 * (first + block));
  }
  __device__ void store(blockwise_side<R>& to, int thread) const {
    ROTOSCALE_UNROLL
    for (int i = 0; i < count; ++i) {
      const int at = i * simt_threads + thread, r = at / words, w = at % words, block = w / 4;
      double_e2m1(codes[i], to.word[block][w % 4 * 2][r], to.word[block][w % 4 * 2 + 1][r]);
    }
    if (thread >= scales) return;
    to.exponent[thread % blockwise_blocks][thread / blockwise_blocks] =
        scale == nan_scale_byte ? nan_exponent : scale_exponent(scale);
  }
};

/// True if every product of a block is -0. Only needed if a sum is already -0.
__device__ inline bool all_negative_zeros(const simt_arguments& p, int row, int column, int block) {
  const std::uint8_t* const a = p.a.codes + row * p.a.row_step + 16 * block;
  const std::uint8_t* const b = p.b.codes + column * p.b.row_step + 16 * block;
  bool all = true;
  for (int c = 0; c < 16; ++c) {
    for (int h = 0; h < 8; h += 4) {
      const std::uint32_t x = a[c] >> h, y = b[c] >> h;
      all = all && ((x & 7u) == 0 || (y & 7u) == 0) && ((x ^ y) & 8u) != 0;
    }
  }
  return all;
}

/// Adds a block's quarters to an output's sum. `block` is in shared memory, `number` counts from k = 0.
__device__ inline float add_quarters(const simt_arguments& p, float acc, int quarters, int exponent, int row,
                                     int column, int number) {
  const int e = exponent - 2;
  if (e >= -126 && e <= 127 && (quarters != 0 || fp32_bits(acc) != 0x80000000u)) {
    return __builtin_fmaf(static_cast<float>(quarters), fp32_from_bits(static_cast<std::uint32_t>(e + 127) << 23), acc);
  }
  if (exponent >= nan_exponent / 2) return fp32_from_bits(fp32_nan_bits);
  const bool zero = quarters == 0 && fp32_bits(acc) == 0x80000000u;
  const bool inside = row < p.a.rows && column < p.b.rows;
  return add_block(acc, quarters, exponent, zero && inside && all_negative_zeros(p, row, column, number));
}

/// First row and column of tile number `at`, of 16 R rows and columns.
template <int R>
struct blockwise_position {
  static constexpr int tile = 16 * R;
  int row, column;
  __device__ blockwise_position(const simt_arguments& p, int at) {
    const int across = (p.b.rows + tile - 1) / tile;
    row = at / across * tile;
    column = at % across * tile;
  }
};

/// Computes the tile of outputs at (row, column). The next stage is prefetched to registers during the products.
template <int R>
__device__ inline void blockwise_tile(const simt_arguments& p, int row, int column) {
  auto& t = block_shared<blockwise_tiles<R>>();
  const int blocks = p.k / 32;
  const int thread = static_cast<int>(thread_index().x), row_part = thread / 16, column_part = thread % 16;
  float acc[R][R] = {};
  blockwise_share<R> share_a, share_b;
  share_a.load(p.a, row, 0, blocks, thread);
  share_b.load(p.b, column, 0, blocks, thread);
  for (int first = 0; first < blocks; first += blockwise_blocks) {
    share_a.store(t.a, thread);
    share_b.store(t.b, thread);
    block_barrier();
    share_a.load(p.a, row, first + blockwise_blocks, blocks, thread);
    share_b.load(p.b, column, first + blockwise_blocks, blocks, thread);
    ROTOSCALE_KEEP_LOOP
    for (int block = 0; block < blockwise_blocks && first + block < blocks; ++block) {
      int quarters[R][R] = {};
      ROTOSCALE_UNROLL
      for (int w = 0; w < 8; ++w) {
        std::uint32_t a[R], b[R];
        owned<R>::load(t.a.word[block][w], row_part, a);
        owned<R>::load(t.b.word[block][w], column_part, b);
        ROTOSCALE_UNROLL
        for (int i = 0; i < R; ++i) {
          ROTOSCALE_UNROLL
          for (int j = 0; j < R; ++j) quarters[i][j] = dot_int8x4(a[i], b[j], quarters[i][j]);
        }
      }
      int a[R], b[R];
      owned<R>::load(t.a.exponent[block], row_part, a);
      owned<R>::load(t.b.exponent[block], column_part, b);
      ROTOSCALE_UNROLL
      for (int i = 0; i < R; ++i) {
        ROTOSCALE_UNROLL
        for (int j = 0; j < R; ++j) {
          acc[i][j] = add_quarters(p, acc[i][j], quarters[i][j], a[i] + b[j], row + owned<R>::index(row_part, i),
                                   column + owned<R>::index(column_part, j), first + block);
        }
      }
    }
    block_barrier();
  }
  store_tile<R>(p, acc, row, column, row_part, column_part);
}

/// One thread block per tile.
template <int R>
[[maybe_unused]] static __global__ void __launch_bounds__(simt_threads)
    blockwise_kernel(const simt_arguments p) {
  const blockwise_position<R> at(p, static_cast<int>(block_index().x));
  blockwise_tile<R>(p, at.row, at.column);
}

}  // namespace rotoscale::gpu
