// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The row-wise layers on the CPU, forward and backward by hand: RoPE, activations, embedding, cross-entropy.
// Every sum has a stated order (math.hpp); sums over tokens go in fixed chunks whose partial sums are added in order.
// Rows are FP32 or BF16 in memory and FP32 in between.
#pragma once

#include <algorithm>

#include "rotoscale/nn/cpu/norms.hpp"

namespace rotoscale::nn::cpu {

template <class T, class Y>
void embedding_forward(const std::int32_t* tokens, matrix<T> table, matrix<Y> y, thread_pool& pool) {
  for_each_chunk(pool, y.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      for (index_t j = 0; j < y.extent(1); ++j) store_element(y(t, j), load_element(table(tokens[t], j)));
    }
  });
}

/// Tokens by number: those of one follow each other, ascending.
class token_order {
 public:
  token_order(const std::int32_t* tokens, index_t n, index_t vocabulary, index_t* room)
      : first_(room), at_(room + vocabulary + 1) {
    for (index_t v = 0; v <= vocabulary; ++v) first_[v] = 0;
    for (index_t t = 0; t < n; ++t) ++first_[tokens[t] + 1];
    for (index_t v = 0; v < vocabulary; ++v) first_[v + 1] += first_[v];
    for (index_t t = 0; t < n; ++t) at_[first_[tokens[t]]++] = t;
    for (index_t v = vocabulary; v > 0; --v) first_[v] = first_[v - 1];
    first_[0] = 0;
  }
  static index_t room(index_t n, index_t vocabulary) { return n + vocabulary + 1; }

  index_t begin(index_t token) const { return first_[token]; }
  index_t end(index_t token) const { return first_[token + 1]; }
  index_t operator[](index_t i) const { return at_[i]; }

 private:
  index_t *first_, *at_;
};

/// dtable[v] += Σ dy[t] over the tokens t with number v, ascending from +0; tasks own columns. `room` has
/// token_order::room index_t.
template <class D>
void embedding_backward(const std::int32_t* tokens, matrix<D> dy, matrix<float> dtable, index_t* room,
                        thread_pool& pool) {
  constexpr index_t columns = 16;
  const token_order order(tokens, dy.extent(0), dtable.extent(0), room);
  for_each_chunk(pool, dy.extent(1), columns, [&](index_t first, index_t last) {
    for (index_t v = 0; v < dtable.extent(0); ++v) {
      if (order.begin(v) == order.end(v)) continue;
      float sum[columns] = {};
      for (index_t i = order.begin(v); i < order.end(v); ++i) {
        for (index_t j = first; j < last; ++j) sum[j - first] += load_element(dy(order[i], j));
      }
      for (index_t j = first; j < last; ++j) dtable(v, j) += sum[j - first];
    }
  });
}

/// Rotates the pairs (i, i + head_dim / 2) of every head by the angle of its position ("rotate half").
template <class T>
void rope(view<T, 4> x, const float* cosine, const float* sine, bool inverse, thread_pool& pool) {
  const index_t dim = x.extent(3), half = dim / 2;
  const float direction = inverse ? -1.0f : 1.0f;
  pool.for_each(x.extent(0), [&](index_t b) {
    const row_scratch room(1, dim);
    for (index_t t = 0; t < x.extent(1); ++t) {
      const float* c = cosine + t * half;
      const float* s = sine + t * half;
      for (index_t h = 0; h < x.extent(2); ++h) {
        float* v = update_row(&x(b, t, h, 0), dim, room[0]);
        for (index_t i = 0; i < half; ++i) {
          const float_pair rotated = rotate(v[i], v[i + half], c[i], s[i] * direction);
          v[i] = rotated.first;
          v[i + half] = rotated.second;
        }
        write_row(v, dim, &x(b, t, h, 0));
      }
    }
  });
}

/// h = activation(x, up). `up` is not read if the activation A is not gated.
template <class A, class X, class H>
void activation_forward(A, matrix<X> x, matrix<X> up, matrix<H> h, thread_pool& pool) {
  const index_t n = h.extent(1);
  for_each_chunk(pool, h.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, n);
    for (index_t t = first; t < last; ++t) {
      const float* g = read_row(&x(t, 0), n, room[0]);
      const float* u = A::gated ? read_row(&up(t, 0), n, room[1]) : g;
      float* out = target_row(&h(t, 0), room[2]);
      for (index_t j = 0; j < n; ++j) out[j] = A::value(g[j], u[j], sigmoid(A::sigmoid_input(g[j])));
      write_row(out, n, &h(t, 0));
    }
  });
}

/// Gradients of x and, if A is gated, of up.
template <class A, class D, class X, class T>
void activation_backward(A, matrix<D> dh, matrix<X> x, matrix<X> up, matrix<T> dx, matrix<T> dup, thread_pool& pool) {
  const index_t n = dh.extent(1);
  for_each_chunk(pool, dh.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(5, n);
    for (index_t t = first; t < last; ++t) {
      const float* d = read_row(&dh(t, 0), n, room[0]);
      const float* g = read_row(&x(t, 0), n, room[1]);
      const float* u = A::gated ? read_row(&up(t, 0), n, room[2]) : g;
      float* dg = target_row(&dx(t, 0), room[3]);
      float* du = A::gated ? target_row(&dup(t, 0), room[4]) : nullptr;
      for (index_t j = 0; j < n; ++j) {
        const float_pair both = A::gradients(d[j], g[j], u[j], sigmoid(A::sigmoid_input(g[j])));
        dg[j] = both.first;
        if constexpr (A::gated) du[j] = both.second;
      }
      write_row(dg, n, &dx(t, 0));
      if constexpr (A::gated) write_row(du, n, &dup(t, 0));
    }
  });
}

/// sum = x + y.
template <class X, class Y, class S>
void add(matrix<X> x, matrix<Y> y, matrix<S> sum, thread_pool& pool) {
  const index_t n = x.extent(1);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, n);
    for (index_t t = first; t < last; ++t) add_row(&x(t, 0), &y(t, 0), &sum(t, 0), n, room);
  });
}

/// Largest of n >= 1 numbers. NaN is not propagated: it shows in the sum that follows.
inline float row_max(const float* x, index_t n) {
  float lane[sum_lanes];
  for (int j = 0; j < sum_lanes; ++j) lane[j] = x[0];
  index_t i = 0;
  for (; i + sum_lanes <= n; i += sum_lanes) {
    for (int j = 0; j < sum_lanes; ++j) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
  }
  float largest = lane[0];
  for (int j = 1; j < sum_lanes; ++j) largest = lane[j] > largest ? lane[j] : largest;
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// Exponentials of a chunk of logits take their place; returns their sum, and the largest logit.
inline float softmax_part(float* z, index_t n, float& largest) {
  largest = row_max(z, n);
  const float shift = softmax_shift(largest);
  for (index_t j = 0; j < n; ++j) z[j] = exp(z[j] - shift);
  return ordered_sum(n, [&](index_t j, float s) { return s + z[j]; });
}

/// Scratch memory of a thread of cross_entropy.
inline std::size_t softmax_bytes(index_t vocabulary) {
  return scratch_array<float>::bytes(3 * ((vocabulary + softmax_chunk - 1) / softmax_chunk));
}

/// The loss of each row; logits become exp and, with gradient_scale other than 0, their gradients times it.
inline void cross_entropy(matrix<float> logits, const std::int32_t* targets, float* loss, bool gradients,
                          float gradient_scale, thread_pool& pool) {
  const index_t n = logits.extent(1), parts = (n + softmax_chunk - 1) / softmax_chunk;
  for_each_chunk(pool, logits.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, parts);
    float *const largest = room[0], *const sums = room[1], *const weight = room[2];
    for (index_t t = first; t < last; ++t) {
      float* const z = &logits(t, 0);
      const std::int32_t target = targets[t];
      loss[t] = 0.0f;
      if (target == ignored_target) {
        if (gradients) std::fill_n(z, n, 0.0f);
        continue;
      }
      const float z_target = z[target];
      for (index_t p = 0; p < parts; ++p) {
        const index_t at = p * softmax_chunk;
        sums[p] = softmax_part(z + at, std::min(softmax_chunk, n - at), largest[p]);
      }
      const float m = row_max(largest, parts);
      float sum = 0.0f;
      for (index_t p = 0; p < parts; ++p) {
        weight[p] = exp(largest[p] - m);
        sum = fma(sums[p], weight[p], sum);
      }
      loss[t] = log(sum) - (z_target - m);
      if (!gradients) continue;
      const float e_target = z[target], scale = gradient_scale / sum;
      for (index_t p = 0; p < parts; ++p) {
        const float factor = weight[p] * scale;
        const index_t end = std::min(n, (p + 1) * softmax_chunk);
        for (index_t j = p * softmax_chunk; j < end; ++j) z[j] *= factor;
      }
      z[target] = fma(e_target, weight[target / softmax_chunk] * scale, -gradient_scale);
    }
  });
}

}  // namespace rotoscale::nn::cpu
