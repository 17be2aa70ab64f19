// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The row-wise layers on the CPU, forward and backward by hand: RMSNorm, RoPE, SwiGLU, embedding, cross-entropy. Every
// sum has a stated order (math.hpp); sums over tokens go in fixed chunks whose partial sums are added in order. Rows
// are FP32 or BF16 in memory and FP32 in between.
#pragma once

#include <algorithm>

#include "rotoscale/nn/cpu/storage.hpp"
#include "rotoscale/nn/layer_math.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::nn::cpu {

/// Rows that one task takes.
inline constexpr index_t row_chunk = gain_chunk;

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

/// The most scratch memory that a thread takes for rows of n.
inline std::size_t row_bytes(index_t n) { return scratch_array<float>::bytes(5 * n); }

/// One row of RMSNorm; returns rstd.
inline float rmsnorm_row(const float* x, const float* gain, float eps, index_t d, float* y) {
  const float squares = ordered_sum(d, [&](index_t j, float sum) { return fma(x[j], x[j], sum); });
  const float r = rms_reciprocal(squares, d, eps);
  for (index_t j = 0; j < d; ++j) y[j] = rms_normed(x[j], r, gain[j]);
  return r;
}

template <class X, class Y>
void rmsnorm_forward(matrix<X> x, const float* gain, float eps, matrix<Y> y, float* rstd, thread_pool& pool) {
  const index_t d = x.extent(1);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(2, d);
    for (index_t t = first; t < last; ++t) {
      float* yt = target_row(&y(t, 0), room[1]);
      rstd[t] = rmsnorm_row(read_row(&x(t, 0), d, room[0]), gain, eps, d, yt);
      write_row(yt, d, &y(t, 0));
    }
  });
}

/// sum = x + branch and y = norm(sum), a row at a time: the bytes of add and rmsnorm_forward.
template <class X, class S>
void residual_norm(matrix<X> x, matrix<X> branch, const float* gain, float eps, matrix<S> sum, matrix<S> y, float* rstd,
                   thread_pool& pool) {
  const index_t d = x.extent(1);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(4, d);
    for (index_t t = first; t < last; ++t) {
      const float* a = read_row(&x(t, 0), d, room[0]);
      const float* b = read_row(&branch(t, 0), d, room[1]);
      float* to = target_row(&sum(t, 0), room[2]);
      for (index_t j = 0; j < d; ++j) to[j] = a[j] + b[j];
      write_row(to, d, &sum(t, 0));
      float* yt = target_row(&y(t, 0), room[3]);
      rstd[t] = rmsnorm_row(read_row(&sum(t, 0), d, room[2]), gain, eps, d, yt);
      write_row(yt, d, &y(t, 0));
    }
  });
}

/// dx_j += rstd (w_j dy_j - x_j rstd² mean(w dy x)); dgain_j += Σ_t dy_j x_j rstd: partial sums of 64 rows, added in
/// order, then to dgain. `partial` has a row for each 64 of x.
template <class D, class X, class T>
void rmsnorm_backward(matrix<D> dy, matrix<X> x, const float* gain, const float* rstd, matrix<T> dx, float* dgain,
                      float* partial, thread_pool& pool) {
  const index_t d = x.extent(1);
  const index_t chunks = (x.extent(0) + row_chunk - 1) / row_chunk;
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, d);
    float* dw = partial + first / row_chunk * d;
    for (index_t j = 0; j < d; ++j) dw[j] = 0.0f;
    for (index_t t = first; t < last; ++t) {
      const float* xt = read_row(&x(t, 0), d, room[0]);
      const float* dyt = read_row(&dy(t, 0), d, room[1]);
      float* dxt = update_row(&dx(t, 0), d, room[2]);
      const float r = rstd[t];
      const float dot = ordered_sum(d, [&](index_t j, float sum) { return fma(gain[j] * dyt[j], xt[j], sum); });
      const float pull = rms_pull(dot, d, r);
      for (index_t j = 0; j < d; ++j) {
        dxt[j] = rms_gradient(xt[j], pull, gain[j], dyt[j], r, dxt[j]);
        dw[j] = fma(dyt[j] * xt[j], r, dw[j]);
      }
      write_row(dxt, d, &dx(t, 0));
    }
  });
  if (dgain == nullptr) return;
  for (index_t j = 0; j < d; ++j) {
    float sum = 0.0f;
    for (index_t c = 0; c < chunks; ++c) sum += partial[c * d + j];
    dgain[j] += sum;
  }
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

template <class G, class H>
void swiglu_forward(matrix<G> gate, matrix<G> up, matrix<H> h, thread_pool& pool) {
  const index_t n = h.extent(1);
  for_each_chunk(pool, h.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, n);
    for (index_t t = first; t < last; ++t) {
      const float* g = read_row(&gate(t, 0), n, room[0]);
      const float* u = read_row(&up(t, 0), n, room[1]);
      float* out = target_row(&h(t, 0), room[2]);
      for (index_t j = 0; j < n; ++j) out[j] = swiglu(g[j], u[j]);
      write_row(out, n, &h(t, 0));
    }
  });
}

template <class D, class G, class T>
void swiglu_backward(matrix<D> dh, matrix<G> gate, matrix<G> up, matrix<T> dgate, matrix<T> dup, thread_pool& pool) {
  const index_t n = dh.extent(1);
  for_each_chunk(pool, dh.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(5, n);
    for (index_t t = first; t < last; ++t) {
      const float* d = read_row(&dh(t, 0), n, room[0]);
      const float* g = read_row(&gate(t, 0), n, room[1]);
      const float* u = read_row(&up(t, 0), n, room[2]);
      float* dg = target_row(&dgate(t, 0), room[3]);
      float* du = target_row(&dup(t, 0), room[4]);
      for (index_t j = 0; j < n; ++j) {
        const float_pair gradients = swiglu_gradients(d[j], g[j], u[j]);
        dg[j] = gradients.first;
        du[j] = gradients.second;
      }
      write_row(dg, n, &dgate(t, 0));
      write_row(du, n, &dup(t, 0));
    }
  });
}

/// sum = x + y.
template <class X, class Y, class S>
void add(matrix<X> x, matrix<Y> y, matrix<S> sum, thread_pool& pool) {
  const index_t n = x.extent(1);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, n);
    for (index_t t = first; t < last; ++t) {
      const float* xt = read_row(&x(t, 0), n, room[0]);
      const float* yt = read_row(&y(t, 0), n, room[1]);
      float* to = target_row(&sum(t, 0), room[2]);
      for (index_t j = 0; j < n; ++j) to[j] = xt[j] + yt[j];
      write_row(to, n, &sum(t, 0));
    }
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
