// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention in FP32 chains (attention-fp32-chains-keys-ascending). 256 threads compute a tile of 64 × 64 scores, 4 × 4
// each. The forward pass computes scores twice, because a row's maximum must be known before its sums begin. These
// kernels define the contract's bytes and are not fast: no tensor core adds in this order.
#pragma once

#include "gpu/nn/attention_arguments.hpp"

namespace rotoscale::gpu::chains {

inline constexpr int tile = attention_tile, threads = 256, chunk = 32;  // chunk: features per load

/// Shared memory: a chunk of features of 64 rows of two tensors, and probabilities; in the backward pass also
/// gradients.
struct shared_tiles {
  float left[tile][chunk + 1], right[tile][chunk + 1];
  float p[tile][tile + 1];
};
struct backward_tiles : shared_tiles {
  float ds[tile][tile + 1];
};

/// Part of the tile of scores that this thread owns: rows 4 `down` .. + 3, columns 4 `across` .. + 3.
struct place {
  int down = static_cast<int>(thread_index().x) / 16, across = static_cast<int>(thread_index().x) % 16;
};

/// Loads rows [first, first + 64), features [c, c + 32) of a head. Elements outside the tensor, which starts at row
/// `begin`, are zero.
template <class T>
__device__ void load_chunk(const head_tensor<const T>& x, int b, int h, int first, const attention_shape& n, int c,
                           float (&to)[tile][chunk + 1], int begin = 0) {
  for (int i = static_cast<int>(thread_index().x); i < tile * chunk; i += threads) {
    const int row = i / chunk, column = i % chunk;
    const bool inside = has_row(first + row, begin, n.seq) && c + column < n.dim;
    to[row][column] = inside ? attention_load(x.row(b, first + row, h) + c + column) : 0.0f;
  }
}

/// Sets acc to x (64 rows from first_x) · yᵀ (64 rows from first_y). Each element is one FMA chain over the features.
/// The array x starts at row `begin`. All threads of the block must call it.
template <class T>
__device__ void multiply_rows(const head_tensor<const T>& x, int head_x, int first_x, const head_tensor<const T>& y,
                              int head_y, int first_y, int b, const attention_shape& n, shared_tiles& s,
                              float (&acc)[4][4], int begin = 0) {
  const place at;
  for (auto& row : acc) {
    for (float& a : row) a = 0.0f;
  }
  int c = 0;
  do {  // dim >= 1. A loop that may run zero times would let the compiler branch around the barriers
    block_barrier();
    load_chunk(x, b, head_x, first_x, n, c, s.left, begin);
    load_chunk(y, b, head_y, first_y, n, c, s.right);
    block_barrier();
    const int depth = n.dim - c < chunk ? n.dim - c : chunk;
    for (int k = 0; k < depth; ++k) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        ROTOSCALE_UNROLL
        for (int j = 0; j < 4; ++j) {
          acc[i][j] = nn::fma(s.left[4 * at.down + i][k], s.right[4 * at.across + j][k], acc[i][j]);
        }
      }
    }
    c += chunk;
  } while (c < n.dim);
}

/// acc(r) += Σ weight(r, i) · x(first + i) for i ascending to `count`. The thread owns rows 4 `down` .. + 3 and columns
/// 2 `across`, + 1 of each chunk.
template <int Chunks, class T, class Weight>
__device__ void add_rows(const head_tensor<const T>& x, int head, int first, int count, int b, const attention_shape& n,
                         shared_tiles& s, const Weight& weight, float (&acc)[Chunks][4][2]) {
  const place at;
  ROTOSCALE_UNROLL
  for (int c = 0; c < Chunks; ++c) {
    if (c > 0 && c * chunk >= n.dim) continue;
    block_barrier();
    load_chunk(x, b, head, first, n, c * chunk, s.right);
    block_barrier();
    for (int k = 0; k < count; ++k) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float w = weight(4 * at.down + i, k);
        ROTOSCALE_UNROLL
        for (int j = 0; j < 2; ++j) acc[c][i][j] = nn::fma(w, s.right[k][2 * at.across + j], acc[c][i][j]);
      }
    }
  }
}

template <int Chunks>
__device__ void clear(float (&acc)[Chunks][4][2]) {
  ROTOSCALE_UNROLL
  for (int c = 0; c < Chunks; ++c) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 8; ++i) acc[c][i / 2][i % 2] = 0.0f;
  }
}
/// Stores finish(row, sum) of the thread's elements. The tensor starts at row `begin`.
template <int Chunks, class T, class Finish>
__device__ void store_rows(const head_tensor<T>& to, int head, int first, int b, const attention_shape& n,
                           const float (&acc)[Chunks][4][2], const Finish& finish, int begin = 0) {
  const place at;
  ROTOSCALE_UNROLL
  for (int c = 0; c < Chunks; ++c) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      ROTOSCALE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int row = 4 * at.down + i, column = c * chunk + 2 * at.across + j;
        if (has_row(first + row, begin, n.seq) && column < n.dim) {
          attention_store(to.row(b, first + row, head) + column, finish(row, acc[c][i][j]));
        }
      }
    }
  }
}

/// Keys that the thread's four queries of a tile may see.
struct seen_keys {
  int first, begin[4];
  __device__ seen_keys(const std::int32_t* starts, int tile_of_queries, int seq)
      : first(tile_of_queries + 4 * place().down) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) begin[i] = first + i < seq ? start_of(starts, first + i) : seq;
  }
  __device__ bool has(int i, int key) const { return key >= begin[i] && key <= first + i; }
};

/// Computes the largest visible score of each of the thread's rows.
template <class T>
__device__ void row_tops(const attention_pass<T>& p, int b, int h, int first, int first_key, const seen_keys& seen,
                         shared_tiles& s, float (&top)[4]) {
  for (float& t : top) t = -__builtin_inff();
  for (int key = first_key; key <= first; key += tile) {
    float score[4][4];
    multiply_rows(p.q, h, first, p.k, h / p.n.group(), key, b, p.n, s, score, p.past);
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const float x = score[i / 4][i % 4];
      if (seen.has(i / 4, key + 4 * place().across + i % 4) && x > top[i / 4]) top[i / 4] = x;
    }
  }
  ROTOSCALE_UNROLL
  for (int i = 0; i < 4; ++i) top[i] = subgroup_max<16>(top[i]);
}

/// Computes o and lse. Grid: (tiles of queries, heads, batch), the last tile first.
template <class T, int Chunks>
[[maybe_unused]] static __global__ void __launch_bounds__(threads)
    forward_kernel(const ROTOSCALE_GRID_CONSTANT attention_pass<T> p) {
  shared_tiles& s = *dynamic_shared<shared_tiles>();
  const place at;
  const int thread = static_cast<int>(thread_index().x);
  const int first = p.first_query();
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z);
  const std::int32_t* const starts = p.n.starts_of(b);
  const int first_key = first_key_of(starts, first, p.n.seq, p.past);
  const seen_keys seen(starts, first, p.n.seq);
  float top[4], out[Chunks][4][2], lane[4] = {};
  row_tops(p, b, h, first, first_key, seen, s, top);
  clear(out);
  for (int key = first_key; key <= first; key += tile) {
    float score[4][4];
    multiply_rows(p.q, h, first, p.k, h / p.n.group(), key, b, p.n, s, score, p.past);
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const int column = 4 * at.across + i % 4;
      const float e = nn::exp(nn::fma(score[i / 4][i % 4], p.n.scale, -(top[i / 4] * p.n.scale)));
      s.p[4 * at.down + i / 4][column] = seen.has(i / 4, key + column) ? e : 0.0f;
    }
    block_barrier();
    // Four threads hold the sixteen lanes of a row's sum.
    for (int i = 0; i < tile; ++i) {
      if (i % 16 / 4 == thread % 4) lane[i % 4] += s.p[thread / 4][i];
    }
    const int count = p.n.seq - key < tile ? p.n.seq - key : tile;
    add_rows(
        p.v, h / p.n.group(), key, count, b, p.n, s, [&](int r, int k) { return s.p[r][k]; }, out);
  }
  for (float& l : lane) l = subgroup_sum<4>(l);
  s.left[thread / 4][thread % 4] = (lane[0] + lane[2]) + (lane[1] + lane[3]);  // all four hold the sum
  block_barrier();
  if (at.across == 0) {
    for (int i = 0; i < 4; ++i) {
      const int row = 4 * at.down + i;
      if (p.has_query(first + row)) {
        p.n.lse[p.row(b, h, first + row)] = nn::fma(top[i], p.n.scale, nn::log(s.left[row][0]));
      }
    }
  }
  store_rows(
      p.o, h, first, b, p.n, out, [&](int row, float x) { return x * (1.0f / s.left[row][0]); }, p.past);
}

/// Computes probabilities and gradients of the scores of a pair of tiles, [query][key] in shared memory.
template <class T>
__device__ void make_gradients(const attention_backward_pass<T>& p, int b, int h, int first, int key,
                               const std::int32_t* starts, backward_tiles& s) {
  const place at;
  const seen_keys seen(starts, first, p.n.seq);
  float score[4][4], dp[4][4];
  multiply_rows(p.q, h, first, p.k, h / p.n.group(), key, b, p.n, s, score);
  multiply_rows(p.d_o, h, first, p.v, h / p.n.group(), key, b, p.n, s, dp);
  ROTOSCALE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int t = first + 4 * at.down + i, inside = t < p.n.seq ? t : p.n.seq - 1;
    const float shift = p.n.lse[p.n.row(b, h, inside)], dot = p.n.dots[p.n.row(b, h, inside)];
    ROTOSCALE_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int column = 4 * at.across + j;
      const bool visible = seen.has(i, key + column);
      const float e = nn::exp(nn::fma(score[i][j], p.n.scale, -shift));
      s.p[4 * at.down + i][column] = visible ? e : 0.0f;
      s.ds[4 * at.down + i][column] = visible ? e * (dp[i][j] - dot) * p.n.scale : 0.0f;
    }
  }
}

/// Computes dq by tiles of queries. Grid as in forward_kernel.
template <class T, int Chunks>
[[maybe_unused]] static __global__ void __launch_bounds__(threads)
    queries_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  backward_tiles& s = *dynamic_shared<backward_tiles>();
  const int first = static_cast<int>(grid_size().x - 1 - block_index().x) * tile;
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z);
  const std::int32_t* const starts = p.n.starts_of(b);
  float dq[Chunks][4][2];
  clear(dq);
  for (int key = first_key_of(starts, first, p.n.seq); key <= first; key += tile) {
    make_gradients(p, b, h, first, key, starts, s);
    const int count = p.n.seq - key < tile ? p.n.seq - key : tile;
    add_rows(
        p.k, h / p.n.group(), key, count, b, p.n, s, [&](int r, int k) { return s.ds[r][k]; }, dq);
  }
  store_rows(p.dq, h, first, b, p.n, dq, [](int, float x) { return x; });
}

/// Computes dk and dv by tiles of keys, over the query heads of the group in turn. Grid: (tiles of keys, key heads,
/// batch).
template <class T, int Chunks>
[[maybe_unused]] static __global__ void __launch_bounds__(threads)
    keys_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  backward_tiles& s = *dynamic_shared<backward_tiles>();
  const int key = static_cast<int>(block_index().x) * tile;
  const int kv = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z);
  const std::int32_t* const starts = p.n.starts_of(b);
  float dk[Chunks][4][2], dv[Chunks][4][2];
  clear(dk);
  clear(dv);
  for (int h = kv * p.n.group(); h < (kv + 1) * p.n.group(); ++h) {
    for (int first = key; first < p.n.seq; first += tile) {
      if (first_key_of(starts, first, p.n.seq) > key) continue;
      make_gradients(p, b, h, first, key, starts, s);
      const int count = p.n.seq - first < tile ? p.n.seq - first : tile;
      add_rows(
          p.d_o, h, first, count, b, p.n, s, [&](int r, int k) { return s.p[k][r]; }, dv);
      add_rows(
          p.q, h, first, count, b, p.n, s, [&](int r, int k) { return s.ds[k][r]; }, dk);
    }
  }
  const auto as_is = [](int, float x) { return x; };
  store_rows(p.dk, kv, key, b, p.n, dk, as_is);
  store_rows(p.dv, kv, key, b, p.n, dv, as_is);
}

}  // namespace rotoscale::gpu::chains
