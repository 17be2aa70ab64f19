// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention on the CPU in FP32, memory linear in the sequence. Scores are formed for a block of
// queries at a time, and recomputed in the backward pass from the stored log-sum-exp. Every product is one fma chain
// over its contraction index ascending. A row's maximum and sum run over the keys from its document's start to the
// query, in ordered_sum's order. Tensors are FP32 or BF16 in memory; scores, probabilities and sums are FP32.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "rotoscale/detail/gemm_kernel.hpp"
#include "rotoscale/nn/cpu/layers.hpp"

namespace rotoscale::nn::cpu {

namespace detail {

/// Queries that share one pass over the keys. Keys are taken or skipped in blocks of this size.
inline constexpr index_t query_block = 64;
/// First query of the next block after query `first`.
constexpr index_t next_block(index_t first) { return (first / query_block + 1) * query_block; }

/// Document start of each query of a block, as a position in the sequence, and the first key that the block reads.
struct block_starts {
  index_t start[query_block] = {};
  index_t first_key = 0;  ///< the least start, rounded down to a whole block

  /// `starts` [batch, seq]; null: a sequence is one document.
  block_starts(const std::int32_t* starts, index_t seq, index_t b, index_t first, index_t m) {
    if (starts == nullptr) return;
    index_t least = seq;
    for (index_t i = 0; i < m; ++i) {
      start[i] = starts[b * seq + first + i];
      least = std::min(least, start[i]);
    }
    first_key = least / query_block * query_block;
  }
};

inline index_t padded(index_t n) { return rotoscale::detail::panel_count(n) * rotoscale::detail::gemm_cols; }

/// One head of a [batch, seq, heads, head_dim] tensor as seq × head_dim.
template <class T>
matrix<T> head(view<T, 4> x, index_t b, index_t h) {
  return {&x(b, 0, h, 0), {x.extent(1), x.extent(3)}, {x.stride(1), x.stride(3)}};
}

/// A head's elements as FP32: in place, or widened into `room`.
inline matrix<const float> widened(matrix<const float> x, float*) { return x; }
inline matrix<const float> widened(matrix<const bf16> x, float* room) {
  for (index_t i = 0; i < x.extent(0); ++i) {
    for (index_t j = 0; j < x.extent(1); ++j) room[i * x.extent(1) + j] = load_element(x(i, j));
  }
  return row_major<const float>(room, x.extent(0), x.extent(1));
}

/// Scratch for one task, sized for `seq` keys and `dim` features.
struct attention_scratch {
  index_t ld_keys, ld_dim;
  float *keys_t, *values_t, *keys, *values;  // panels: of Kᵀ, Vᵀ (dim deep), K, V (seq deep)
  float *scores, *dscores, *rows, *rows2, *transposed, *out;
  float *dk, *dv;        // sums over the heads of a group and the query blocks, seq × ld_dim
  float* widened_heads;  // FP32 copies of q, k, v, o and dO of a task, if they are stored as BF16

  attention_scratch(index_t seq, index_t dim) : attention_scratch(seq, dim, part_sizes(seq, dim)) {}

  /// Bytes of a task.
  static std::size_t bytes(index_t seq, index_t dim) {
    return scratch_array<float>::bytes(total(part_sizes(seq, dim)));
  }

  /// Head h as FP32; each `which` has its own room.
  template <class T>
  matrix<const float> fp32_head(view<T, 4> x, index_t b, index_t h, int which) const {
    const matrix<const std::remove_const_t<T>> own = head(x, b, h);
    return widened(own, widened_heads + which * x.extent(1) * x.extent(3));
  }

 private:
  using sizes = std::array<index_t, 13>;

  static sizes part_sizes(index_t seq, index_t dim) {
    const index_t ld_keys = padded(seq), ld_dim = padded(dim);
    return {ld_keys * dim,         ld_keys * dim,     ld_dim * seq,      ld_dim * seq,      query_block * ld_keys,
            query_block * ld_keys, query_block * dim, query_block * dim, seq * query_block, query_block * ld_dim,
            seq * ld_dim,          seq * ld_dim,      5 * seq * dim};
  }
  static index_t total(const sizes& all) { return std::accumulate(all.begin(), all.end(), index_t{0}); }

  attention_scratch(index_t seq, index_t dim, const sizes& all)
      : ld_keys(padded(seq)), ld_dim(padded(dim)), memory_(total(all)) {
    float** const parts[] = {&keys_t, &values_t,   &keys, &values, &scores, &dscores,      &rows,
                             &rows2,  &transposed, &out,  &dk,     &dv,     &widened_heads};
    float* at = memory_.data();
    for (std::size_t i = 0; i < all.size(); ++i) {
      *parts[i] = at;
      at += all[i];
    }
  }

  scratch_array<float> memory_;
};

inline void copy_rows(matrix<const float> from, index_t first, index_t count, float* to) {
  const index_t dim = from.extent(1);
  for (index_t i = 0; i < count; ++i) {
    if (from.stride(1) == 1) {
      __builtin_memcpy(to + i * dim, &from(first + i, 0), static_cast<std::size_t>(dim) * sizeof(float));
    } else {
      for (index_t j = 0; j < dim; ++j) to[i * dim + j] = from(first + i, j);
    }
  }
}

/// to[cols × rows] = fromᵀ, by registers. Rows of `from` are ld floats apart.
inline void transpose_block(index_t rows, index_t cols, const float* from, index_t ld, float* to) {
  constexpr index_t w = rotoscale::detail::lane_count;
  index_t i = 0;
  for (; i + w <= rows; i += w) {
    index_t j = 0;
    for (; j + w <= cols; j += w) {
      rotoscale::detail::lanes_u32 t[w];
      for (index_t l = 0; l < w; ++l) {
        t[l] = rotoscale::detail::load_lanes<rotoscale::detail::lanes_u32>(from + (i + l) * ld + j);
      }
      rotoscale::detail::transpose_lanes(t);
      for (index_t l = 0; l < w; ++l) rotoscale::detail::store_lanes(to + (j + l) * rows + i, t[l]);
    }
    for (; j < cols; ++j) {
      for (index_t l = i; l < i + w; ++l) to[j * rows + l] = from[l * ld + j];
    }
  }
  for (; i < rows; ++i) {
    for (index_t j = 0; j < cols; ++j) to[j * rows + i] = from[i * ld + j];
  }
}

/// to[m × n] = rows[m × k] · panels, to zeroed first; ld is the row distance of `to`.
inline void product(index_t m, index_t n, index_t k, const float* rows, index_t lda, const float* panels,
                    index_t panel_k, float* to, index_t ld) {
  __builtin_memset(to, 0, static_cast<std::size_t>(m * ld) * sizeof(float));
  rotoscale::detail::multiply_panels(m, n, k, rows, lda, panels, panel_k, to, ld);
}

/// sum[keys × dim] += blockᵀ[keys × m] · rows[m × dim]: the chain over queries continues from `sum`.
inline void add_transposed_product(index_t keys, index_t m, index_t dim, const float* block, index_t ld_block,
                                   const float* rows, const attention_scratch& s, float* sum) {
  transpose_block(m, keys, block, ld_block, s.transposed);
  rotoscale::detail::pack_panels(matrix<const float>{rows, {m, dim}, {dim, 1}}, s.out);
  rotoscale::detail::multiply_panels(keys, dim, m, s.transposed, m, s.out, m, sum, s.ld_dim);
}

/// Scores of rows [first, first + m) of one head's queries against keys [first_key, first_key + keys), unscaled; column
/// 0 is first_key's.
inline void score_block(matrix<const float> q, index_t first, index_t m, index_t first_key, index_t keys,
                        const attention_scratch& s) {
  const index_t dim = q.extent(1);
  copy_rows(q, first, m, s.rows);
  product(m, keys, dim, s.rows, dim, s.keys_t + first_key * dim, dim, s.scores, s.ld_keys);
}

}  // namespace detail

inline float attention_scale(index_t head_dim) { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

/// `starts` [batch, seq]: position in its sequence where each token's document begins, at most the token's own; null:
/// 0. Queries are the last tokens of the sequence of k and v.
template <class Q, class O>
void attention_forward(view<Q, 4> q, view<Q, 4> k, view<Q, 4> v, view<O, 4> o, float* lse, const std::int32_t* starts,
                       thread_pool& pool) {
  const index_t seq = k.extent(1), queries = q.extent(1), past = seq - queries;
  const index_t heads = q.extent(2), dim = q.extent(3), group = heads / k.extent(2);
  const float scale = attention_scale(dim);
  pool.for_each(q.extent(0) * heads, [&](index_t task) {
    const index_t b = task / heads, h = task % heads;
    const detail::attention_scratch s(seq, dim);
    rotoscale::detail::pack_panels(transposed(s.fp32_head(k, b, h / group, 1)), s.keys_t);
    rotoscale::detail::pack_panels(s.fp32_head(v, b, h / group, 2), s.values);
    const auto qh = s.fp32_head(q, b, h, 0);
    const auto oh = detail::head(o, b, h);
    for (index_t first = past; first < seq; first = detail::next_block(first)) {
      const index_t m = std::min(detail::next_block(first), seq) - first;
      const detail::block_starts from(starts, seq, b, first, m);
      const index_t first_key = from.first_key, all = first + m - first_key;
      detail::score_block(qh, first - past, m, first_key, all, s);
      float inverse[detail::query_block];
      for (index_t i = 0; i < m; ++i) {
        float* p = s.scores + i * s.ld_keys;
        const index_t start = from.start[i] - first_key, keys = first + i + 1 - first_key;
        const float top = row_max(p + start, keys - start);
        const float shift = top * scale;
        for (index_t j = 0; j < start; ++j) p[j] = 0.0f;
        for (index_t j = start; j < keys; ++j) p[j] = exp(fma(p[j], scale, -shift));
        for (index_t j = keys; j < all; ++j) p[j] = 0.0f;
        const float sum = ordered_sum(keys, [&](index_t j, float acc) { return acc + p[j]; });
        inverse[i] = 1.0f / sum;
        lse[(b * heads + h) * queries + first - past + i] = fma(top, scale, log(sum));
      }
      detail::product(m, dim, all, s.scores, s.ld_keys, s.values + first_key * rotoscale::detail::gemm_cols, seq, s.out,
                      s.ld_dim);
      for (index_t i = 0; i < m; ++i) {
        for (index_t j = 0; j < dim; ++j) store_element(oh(first - past + i, j), s.out[i * s.ld_dim + j] * inverse[i]);
      }
    }
  });
}

/// With P the probabilities and D = Σ_j dO_j O_j: `dS = P ∘ (dO Vᵀ - D) / sqrt(head_dim)`, `dQ = dS K`, `dK = dSᵀ Q`,
/// `dV = Pᵀ dO`. Tasks own a key-value head; the query heads of its group are added in order.
template <class Q, class O, class D, class T>
void attention_backward(view<Q, 4> q, view<Q, 4> k, view<Q, 4> v, view<O, 4> o, const float* lse, view<D, 4> d_o,
                        view<T, 4> dq, view<T, 4> dk, view<T, 4> dv, const std::int32_t* starts, thread_pool& pool) {
  const index_t seq = q.extent(1), heads = q.extent(2), dim = q.extent(3);
  const index_t kv_heads = k.extent(2), group = heads / kv_heads;
  const float scale = attention_scale(dim);
  pool.for_each(q.extent(0) * kv_heads, [&](index_t task) {
    const index_t b = task / kv_heads, kv = task % kv_heads;
    const detail::attention_scratch s(seq, dim);
    const auto kh = s.fp32_head(k, b, kv, 1);
    rotoscale::detail::pack_panels(transposed(kh), s.keys_t);
    rotoscale::detail::pack_panels(transposed(s.fp32_head(v, b, kv, 2)), s.values_t);
    rotoscale::detail::pack_panels(kh, s.keys);
    std::fill_n(s.dk, 2 * seq * s.ld_dim, 0.0f);  // dv follows dk
    for (index_t h = kv * group; h < (kv + 1) * group; ++h) {
      const auto qh = s.fp32_head(q, b, h, 0);
      const auto oh = s.fp32_head(o, b, h, 3);
      const auto doh = s.fp32_head(d_o, b, h, 4);
      const auto dqh = detail::head(dq, b, h);
      for (index_t first = 0; first < seq; first += detail::query_block) {
        const index_t m = std::min(detail::query_block, seq - first);
        const detail::block_starts from(starts, seq, b, first, m);
        const index_t first_key = from.first_key, keys = first + m - first_key;
        detail::score_block(qh, first, m, first_key, keys, s);
        detail::copy_rows(doh, first, m, s.rows2);
        detail::product(m, keys, dim, s.rows2, dim, s.values_t + first_key * dim, dim, s.dscores, s.ld_keys);
        for (index_t i = 0; i < m; ++i) {
          const float* o_row = &oh(first + i, 0);
          const float* do_row = s.rows2 + i * dim;
          const float dot = ordered_sum(dim, [&](index_t j, float acc) { return fma(o_row[j], do_row[j], acc); });
          const float shift = lse[(b * heads + h) * seq + first + i];
          float* p = s.scores + i * s.ld_keys;
          float* ds = s.dscores + i * s.ld_keys;
          const index_t start = from.start[i] - first_key, own = first + i + 1 - first_key;
          for (index_t j = 0; j < start; ++j) p[j] = ds[j] = 0.0f;
          for (index_t j = start; j < own; ++j) {
            p[j] = exp(fma(p[j], scale, -shift));
            ds[j] = p[j] * (ds[j] - dot) * scale;
          }
          for (index_t j = own; j < keys; ++j) p[j] = ds[j] = 0.0f;
        }
        detail::add_transposed_product(keys, m, dim, s.scores, s.ld_keys, s.rows2, s, s.dv + first_key * s.ld_dim);
        detail::add_transposed_product(keys, m, dim, s.dscores, s.ld_keys, s.rows, s, s.dk + first_key * s.ld_dim);
        detail::product(m, dim, keys, s.dscores, s.ld_keys, s.keys + first_key * rotoscale::detail::gemm_cols, seq,
                        s.out, s.ld_dim);
        for (index_t i = 0; i < m; ++i) {
          for (index_t j = 0; j < dim; ++j) store_element(dqh(first + i, j), s.out[i * s.ld_dim + j]);
        }
      }
    }
    const auto dkh = detail::head(dk, b, kv);
    const auto dvh = detail::head(dv, b, kv);
    for (index_t t = 0; t < seq; ++t) {
      for (index_t j = 0; j < dim; ++j) {
        store_element(dkh(t, j), s.dk[t * s.ld_dim + j]);
        store_element(dvh(t, j), s.dv[t * s.ld_dim + j]);
      }
    }
  });
}

}  // namespace rotoscale::nn::cpu
