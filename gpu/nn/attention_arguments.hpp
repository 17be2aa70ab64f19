// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments of the attention kernels, and their common parts: FP32 or BF16 elements, document starts, and the kernel
// that computes D.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/nn/attention_contract.hpp"
#include "rotoscale/nn/math.hpp"
#include "rotoscale/nn/step_state.hpp"
#include "rotoscale/small_float.hpp"

namespace rotoscale::gpu {

inline constexpr int attention_tile = static_cast<int>(nn::attention_tile);

/// A (batch, seq, heads, head_dim) tensor with contiguous head_dim; strides are in elements. If queries are of the last
/// tokens alone, `data` points to where token 0 would be.
template <class T>
struct head_tensor {
  T* data;
  std::int64_t batch, token, head;

  __device__ T* row(int b, int t, int h) const { return data + b * batch + t * token + h * head; }
};

/// Extents, and the start of each token's document.
struct attention_shape {
  int batch, seq, heads, kv_heads, dim;
  float scale;                 ///< 1 / sqrt(dim)
  const std::int32_t* starts;  ///< of microbatch 0; null: each sequence is one document
  std::int64_t starts_stride;  ///< elements between microbatches
  const nn::step_state* state;
  float *lse, *dots;  ///< (batch, heads, queries); dots: D, null in the forward pass

  __device__ int group() const { return heads / kv_heads; }
  __device__ std::int64_t row(int b, int h, int t) const { return (std::int64_t{b} * heads + h) * seq + t; }
  /// Starts of sequence b, or null.
  __device__ const std::int32_t* starts_of(int b) const {
    if (starts == nullptr) return nullptr;
    return starts + static_cast<std::int64_t>(state->micro_batch) * starts_stride + std::int64_t{b} * seq;
  }
};

/// True if the tensor, which has rows [begin, end), has row t.
__device__ inline bool has_row(int t, int begin, int end) {
  return static_cast<unsigned>(t - begin) < static_cast<unsigned>(end - begin);
}

/// Forward pass: queries of the tokens after the first `past`. Tiles count from the start of the sequence.
template <class T>
struct attention_pass {
  attention_shape n;
  int past;
  head_tensor<const T> q, k, v;
  head_tensor<T> o;
  bool vectors;  ///< all rows are aligned to 16 bytes

  /// First token of the block's tiles. The grid has the last tiles first.
  __device__ int first_query(int tiles = 1) const {
    return (past / attention_tile + static_cast<int>(grid_size().x - 1 - block_index().x) * tiles) * attention_tile;
  }
  /// True if token t has a query.
  __device__ bool has_query(int t) const { return has_row(t, past, n.seq); }
  /// Index of a query in lse.
  __device__ std::int64_t row(int b, int h, int t) const {
    return (std::int64_t{b} * n.heads + h) * (n.seq - past) + (t - past);
  }
};
template <class T>
struct attention_backward_pass {
  attention_shape n;
  head_tensor<const T> q, k, v, o, d_o;
  head_tensor<T> dq, dk, dv;
  bool vectors;
};

__device__ inline float attention_load(const float* x) { return *x; }
__device__ inline float attention_load(const bf16* x) {
  return fp32_from_bits(static_cast<std::uint32_t>(x->bits()) << 16);
}
__device__ inline void attention_store(float* to, float x) { *to = x; }
__device__ inline void attention_store(bf16* to, float x) {
  *to = bf16::from_bits(static_cast<std::uint16_t>(canonical_bf16(x)));
}

/// Returns the start of query t's document.
__device__ inline int start_of(const std::int32_t* starts, int t) { return starts == nullptr ? 0 : starts[t]; }
/// Returns the first key of a tile of queries: the least start of its queries, rounded down to a whole tile. The first
/// `past` tokens have no queries.
__device__ inline int first_key_of(const std::int32_t* starts, int first, int seq, int past = 0) {
  if (starts == nullptr) return 0;
  int least = first + attention_tile;
  for (int t = first < past ? past : first; t < first + attention_tile && t < seq; ++t)
    least = starts[t] < least ? starts[t] : least;
  return least / attention_tile * attention_tile;
}

inline constexpr int dots_threads = 256, dots_rows = dots_threads / nn::sum_lanes;

/// D = Σ o · do of dots_rows rows per block. Sixteen threads are the lanes of one row's ordered_sum.
template <class T>
[[maybe_unused]] static __global__ void __launch_bounds__(dots_threads)
    attention_dots_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  const int thread = static_cast<int>(thread_index().x), lane = thread % nn::sum_lanes;
  const std::int64_t rows = std::int64_t{p.n.batch} * p.n.heads * p.n.seq;
  const std::int64_t row = std::int64_t{block_index().x} * dots_rows + thread / nn::sum_lanes;
  const std::int64_t own = row < rows ? row : rows - 1;
  const int t = static_cast<int>(own % p.n.seq), bh = static_cast<int>(own / p.n.seq);
  const T *const o = p.o.row(bh / p.n.heads, t, bh % p.n.heads), *const d =
                                                                     p.d_o.row(bh / p.n.heads, t, bh % p.n.heads);
  float sum = 0.0f;
  for (int j = lane; j < p.n.dim; j += nn::sum_lanes) sum = nn::fma(attention_load(o + j), attention_load(d + j), sum);
  sum = subgroup_sum<nn::sum_lanes>(sum);
  if (lane == 0 && row < rows) p.n.dots[row] = sum;
}

}  // namespace rotoscale::gpu
