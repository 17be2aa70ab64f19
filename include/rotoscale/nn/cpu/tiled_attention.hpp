// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tiled contracts of attention (attention-bf16-tile64x64-EXP2@UNIT) on the CPU: online softmax over tiles of 64
// keys, five products of BF16 under a matrix unit's model, by the library's GEMM. docs/reference/layers.md has the
// contract.
#pragma once

#include <limits>

#include "rotoscale/ex2_approx.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/nn/attention_contract.hpp"
#include "rotoscale/nn/cpu/attention.hpp"

namespace rotoscale::nn::cpu {

namespace detail {

static_assert(attention_tile == query_block, "block_starts leaves whole tiles of keys");

/// A matrix of BF16 that a task makes, of at most as many elements as it has scratch memory for.
struct bf16_matrix {
  scratch_array<std::uint16_t> codes;
  index_t columns = 0;

  explicit bf16_matrix(index_t room) : codes(room) {}
  std::uint16_t& operator()(index_t r, index_t c) { return codes[r * columns + c]; }
  /// `rows` × `k` of it as an operand, from (row, column) on.
  gemm_operand part(index_t row, index_t rows, index_t column, index_t k) const {
    const auto* first = codes.data() + row * columns + column;
    return {.element = formats::bf16,
            .rows = rows,
            .k = k,
            .codes = reinterpret_cast<const std::uint8_t*>(first),
            .code_stride = columns * 2};
  }
};

inline std::uint16_t bf16_code(float x) { return static_cast<std::uint16_t>(bf16_bits(x)); }

/// A head's elements rounded to BF16, as rows or transposed.
template <class T>
void round_head(matrix<T> x, bf16_matrix& to) {
  to.columns = x.extent(1);
  for (index_t i = 0; i < x.extent(0); ++i) {
    for (index_t j = 0; j < x.extent(1); ++j) to(i, j) = bf16_code(load_element(x(i, j)));
  }
}

/// Scratch of a task on `seq` keys and heads of `dim`, and the products of one matrix unit.
struct tiled_scratch {
  bf16_matrix q, k, v, d_o, q_t, k_t, v_t, d_o_t;  // by head: rows, and transposed
  bf16_matrix p, ds, p_t, ds_t;                    // of a block of queries
  scratch_array<float> scores, dscores, out, dk, dv;
  thread_pool serial{1};  // tasks are shared out over heads

  /// The forward pass has no gradients.
  tiled_scratch(index_t seq, index_t dim, bool gradients)
      : tiled_scratch(seq * dim, attention_tile * seq, attention_tile * dim, gradients ? 1 : 0) {}

  /// Bytes of a task, with the scratch memory of its products.
  static std::size_t bytes(const mma_model& model, index_t seq, index_t dim) {
    const auto product = [&](index_t rows, index_t cols, index_t depth) {
      gemm_operand a, b;
      a.element = b.element = formats::bf16;
      a.rows = rows;
      b.rows = cols;
      a.k = b.k = depth;
      return gemm_workspace_bytes(a, b, options(model, true), 1);
    };
    using codes = scratch_array<std::uint16_t>;
    using numbers = scratch_array<float>;
    constexpr index_t tile = attention_tile;
    return 8 * codes::bytes(seq * dim) + 4 * codes::bytes(tile * seq) + 2 * numbers::bytes(tile * seq) +
           numbers::bytes(tile * dim) + 2 * numbers::bytes(seq * dim) +
           std::max(
               {product(tile, seq, dim), product(tile, dim, tile), product(seq, dim, tile), product(tile, dim, seq)});
  }
  /// c [rows × b.rows] = a · bᵀ, from +0 or on top of c.
  void multiply(const mma_model& model, const gemm_operand& a, const gemm_operand& b, float* c, index_t ld,
                bool continues) {
    rotoscale::gemm(a, b, options(model, continues), matrix<float>{c, {a.rows, b.rows}, {ld, 1}}, serial);
  }

 private:
  tiled_scratch(index_t head, index_t block, index_t tile, index_t gradients)
      : q(head),
        k(head),
        v(gradients * head),
        d_o(gradients * head),
        q_t(gradients * head),
        k_t(gradients * head),
        v_t(head),
        d_o_t(gradients * head),
        p(block),
        ds(gradients * block),
        p_t(gradients * block),
        ds_t(gradients * block),
        scores(block),
        dscores(gradients * block),
        out(tile),
        dk(gradients * head),
        dv(gradients * head) {}

  static gemm_options options(const mma_model& model, bool continues) {
    gemm_options o;
    o.model = model;
    o.start_from_c = continues;
    return o;
  }
};

/// Stored NaN: processors differ in sign and payload.
inline float canonical(float x) { return x == x ? x : fp32_from_bits(fp32_nan_bits); }

/// 2^x of a contract.
inline float exp2_of(attention_exp2 kind, float x) {
  switch (kind) {
    case attention_exp2::deg3: return exp2(x);
    case attention_exp2::ex2_approx: break;
  }
  return ex2_approx(x);
}
/// x_j becomes 2^fma(x_j, scale, -shift).
inline void exponentials(attention_exp2 kind, float* x, index_t n, float scale, float shift) {
  switch (kind) {
    case attention_exp2::deg3:
      for (index_t j = 0; j < n; ++j) x[j] = exp2(fma(x[j], scale, -shift));
      break;
    case attention_exp2::ex2_approx:
      for (index_t j = 0; j < n; ++j) x[j] = ex2_approx(fma(x[j], scale, -shift));
      break;
  }
}

/// A query's softmax so far.
struct softmax_row {
  float top = -std::numeric_limits<float>::infinity();
  float lane[sum_lanes] = {};

  float sum() {
    for (int width = sum_lanes / 2; width > 0; width /= 2) {
      for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
    }
    return lane[0];
  }
  /// Takes the scores of a tile's keys, of which [first, last) are seen; they become probabilities relative to `top`.
  /// Returns the factor of the sums so far.
  float take(attention_exp2 kind, float* score, index_t n, index_t first, index_t last, float scale) {
    float largest = top;
    for (index_t j = first; j < last; ++j) largest = score[j] > largest ? score[j] : largest;
    const float base = largest == -std::numeric_limits<float>::infinity() ? 0.0f : largest, shift = base * scale;
    // Not a bare product, which compilers would fuse with exp2's additions.
    const float factor = exp2_of(kind, fma(top - base, scale, 0.0f));
    top = largest;
    exponentials(kind, score, n, scale, shift);
    for (index_t j = 0; j < n; ++j) score[j] = j >= first && j < last ? score[j] : 0.0f;
    for (index_t j = 0; j < sum_lanes; ++j) lane[j] = fma(lane[j], factor, j < n ? score[j] : 0.0f);
    for (index_t j = sum_lanes; j < n; ++j) lane[j % sum_lanes] += score[j];
    return factor;
  }
};

/// log2(e) / sqrt(head_dim), one product of two FP32 numbers.
inline float binary_scale(float scale) { return scale * 0x1.715476p+0f; }

/// Of queries [first, first + m) of a sequence, which have their places in one tile: output rows and log-sum-exp. The
/// first `past` tokens have no queries.
template <class O>
void tiled_forward_block(const attention_contract& contract, tiled_scratch& s, index_t past, index_t first, index_t m,
                         const block_starts& from, float scale, matrix<O> o, float* lse) {
  const index_t dim = o.extent(1), keys = first + m - from.first_key;
  float *const scores = s.scores.data(), *const out = s.out.data();
  s.multiply(contract.model, s.q.part(first - past, m, 0, dim), s.k.part(from.first_key, keys, 0, dim), scores, keys,
             false);
  std::fill_n(out, m * dim, 0.0f);
  softmax_row rows[attention_tile];
  for (index_t at = 0; at < keys; at += attention_tile) {
    const index_t n = std::min(attention_tile, keys - at), key = from.first_key + at;
    s.p.columns = n;
    for (index_t i = 0; i < m; ++i) {
      float* const p = scores + i * keys + at;
      const index_t last = std::min(n, first + i + 1 - key), begin = std::max<index_t>(0, from.start[i] - key);
      const float factor = rows[i].take(contract.exp2, p, n, begin, last, binary_scale(scale));
      for (index_t j = 0; j < dim; ++j) out[i * dim + j] *= factor;
      for (index_t j = 0; j < n; ++j) s.p(i, j) = bf16_code(p[j]);
    }
    s.multiply(contract.model, s.p.part(0, m, 0, n), s.v_t.part(0, dim, key, n), out, dim, true);
  }
  for (index_t i = 0; i < m; ++i) {
    const float sum = rows[i].sum(), inverse = 1.0f / sum;
    for (index_t j = 0; j < dim; ++j) store_element(o(first - past + i, j), canonical(out[i * dim + j] * inverse));
    lse[first - past + i] = canonical(fma(rows[i].top, scale, log(sum)));
  }
}

/// Probabilities and their gradients of a block of queries, BF16, as rows and transposed.
inline void tiled_gradients(attention_exp2 kind, tiled_scratch& s, index_t first, index_t m, const block_starts& from,
                            float scale, const float* lse, const float* dots) {
  const index_t keys = first + m - from.first_key;
  s.p_t.columns = s.ds_t.columns = m;
  s.ds.columns = keys;
  for (index_t i = 0; i < m; ++i) {
    float *const p = s.scores.data() + i * keys, *const ds = s.dscores.data() + i * keys;
    const index_t begin = from.start[i] - from.first_key, last = first + i + 1 - from.first_key;
    const float shift = lse[first + i] * 0x1.715476p+0f;
    exponentials(kind, p, keys, binary_scale(scale), shift);
    for (index_t j = 0; j < keys; ++j) {
      const bool seen = j >= begin && j < last;
      const float d = p[j] * (ds[j] - dots[i]);
      p[j] = seen ? p[j] : 0.0f;
      ds[j] = seen ? d : 0.0f;
    }
    for (index_t j = 0; j < keys; ++j) {
      s.p_t(j, i) = bf16_code(p[j]);
      s.ds(i, j) = s.ds_t(j, i) = bf16_code(ds[j]);
    }
  }
}

}  // namespace detail

/// `starts` as for attention_forward.
template <class Q, class O>
void tiled_attention_forward(const attention_contract& contract, view<Q, 4> q, view<Q, 4> k, view<Q, 4> v, view<O, 4> o,
                             float* lse, const std::int32_t* starts, thread_pool& pool) {
  const index_t seq = k.extent(1), queries = q.extent(1), past = seq - queries;
  const index_t heads = q.extent(2), dim = q.extent(3), group = heads / k.extent(2);
  pool.for_each(q.extent(0) * heads, [&](index_t task) {
    const index_t b = task / heads, h = task % heads;
    detail::tiled_scratch s(seq, dim, false);
    detail::round_head(detail::head(q, b, h), s.q);
    detail::round_head(detail::head(k, b, h / group), s.k);
    detail::round_head(transposed(detail::head(v, b, h / group)), s.v_t);
    for (index_t first = past; first < seq; first = detail::next_block(first)) {
      const index_t m = std::min(detail::next_block(first), seq) - first;
      const detail::block_starts from(starts, seq, b, first, m);
      detail::tiled_forward_block(contract, s, past, first, m, from, attention_scale(dim), detail::head(o, b, h),
                                  lse + (b * heads + h) * queries);
    }
  });
}

/// Gradients as of attention_backward, by tasks of a key-value head, the query heads of its group in order.
template <class Q, class O, class D, class T>
void tiled_attention_backward(const attention_contract& contract, view<Q, 4> q, view<Q, 4> k, view<Q, 4> v,
                              view<O, 4> o, const float* lse, view<D, 4> d_o, view<T, 4> dq, view<T, 4> dk,
                              view<T, 4> dv, const std::int32_t* starts, thread_pool& pool) {
  const index_t seq = q.extent(1), heads = q.extent(2), dim = q.extent(3);
  const index_t kv_heads = k.extent(2), group = heads / kv_heads;
  const float scale = attention_scale(dim);
  const mma_model& model = contract.model;
  pool.for_each(q.extent(0) * kv_heads, [&](index_t task) {
    const index_t b = task / kv_heads, kv = task % kv_heads;
    detail::tiled_scratch s(seq, dim, true);
    detail::round_head(detail::head(k, b, kv), s.k);
    detail::round_head(transposed(detail::head(k, b, kv)), s.k_t);
    detail::round_head(detail::head(v, b, kv), s.v);
    float *const sum_k = s.dk.data(), *const sum_v = s.dv.data();
    std::fill_n(sum_k, seq * dim, 0.0f);
    std::fill_n(sum_v, seq * dim, 0.0f);
    for (index_t h = kv * group; h < (kv + 1) * group; ++h) {
      const auto oh = detail::head(o, b, h);
      const auto doh = detail::head(d_o, b, h);
      const auto dqh = detail::head(dq, b, h);
      detail::round_head(detail::head(q, b, h), s.q);
      detail::round_head(transposed(detail::head(q, b, h)), s.q_t);
      detail::round_head(doh, s.d_o);
      detail::round_head(transposed(doh), s.d_o_t);
      for (index_t first = 0; first < seq; first += attention_tile) {
        const index_t m = std::min(attention_tile, seq - first);
        const detail::block_starts from(starts, seq, b, first, m);
        const index_t key = from.first_key, keys = first + m - key;
        float *const scores = s.scores.data(), *const dscores = s.dscores.data();
        s.multiply(model, s.q.part(first, m, 0, dim), s.k.part(key, keys, 0, dim), scores, keys, false);
        s.multiply(model, s.d_o.part(first, m, 0, dim), s.v.part(key, keys, 0, dim), dscores, keys, false);
        float dots[attention_tile];
        for (index_t i = 0; i < m; ++i) {
          dots[i] = ordered_sum(dim, [&](index_t j, float acc) {
            return fma(load_element(oh(first + i, j)), load_element(doh(first + i, j)), acc);
          });
        }
        detail::tiled_gradients(contract.exp2, s, first, m, from, scale, lse + (b * heads + h) * seq, dots);
        s.multiply(model, s.p_t.part(0, keys, 0, m), s.d_o_t.part(0, dim, first, m), sum_v + key * dim, dim, true);
        s.multiply(model, s.ds_t.part(0, keys, 0, m), s.q_t.part(0, dim, first, m), sum_k + key * dim, dim, true);
        float* const out = s.out.data();
        s.multiply(model, s.ds.part(0, m, 0, keys), s.k_t.part(0, dim, key, keys), out, dim, false);
        for (index_t i = 0; i < m; ++i) {
          for (index_t j = 0; j < dim; ++j) {
            store_element(dqh(first + i, j), detail::canonical(out[i * dim + j] * scale));
          }
        }
      }
    }
    const auto dkh = detail::head(dk, b, kv);
    const auto dvh = detail::head(dv, b, kv);
    for (index_t t = 0; t < seq; ++t) {
      for (index_t j = 0; j < dim; ++j) {
        store_element(dkh(t, j), detail::canonical(sum_k[t * dim + j] * scale));
        store_element(dvh(t, j), detail::canonical(sum_v[t * dim + j]));
      }
    }
  });
}

}  // namespace rotoscale::nn::cpu
