// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The row-wise layers on the CPU, forward and backward by hand: RoPE, activations, embedding, cross-entropy.
// Every sum has a stated order (math.hpp); sums over tokens go in fixed chunks whose partial sums are added in order.
// Rows are FP32 or BF16 in memory and FP32 in between.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

#include "rotoscale/nn/cpu/norms.hpp"

namespace rotoscale::nn::cpu {

/// Throws std::out_of_range for an id outside the vocabulary.
inline void check_tokens(const std::int32_t* tokens, index_t n, index_t vocabulary, bool may_mask) {
  for (index_t t = 0; t < n; ++t) {
    if ((may_mask && tokens[t] == ignored_target) || (tokens[t] >= 0 && tokens[t] < vocabulary)) continue;
    throw std::out_of_range("number " + std::to_string(tokens[t]) + " at " + std::to_string(t) +
                            " is outside a vocabulary of " + std::to_string(vocabulary));
  }
}

inline void compute(const op::embedding_forward::in& i, const op::embedding_forward::out& o, thread_pool& pool) {
  const std::int32_t* const tokens = i.tokens.now(*i.state);
  const auto table = as_matrix<const float>(i.table);
  check_tokens(tokens, o.y.extent(0), table.extent(0), false);
  with_storage(o.y.type, [&](auto stored) {
    const auto y = as_matrix<decltype(stored)>(o.y);
    for_each_chunk(pool, y.extent(0), row_chunk, [&](index_t first, index_t last) {
      for (index_t t = first; t < last; ++t) {
        for (index_t j = 0; j < y.extent(1); ++j) store_element(y(t, j), table(tokens[t], j));
      }
    });
  });
}

/// Tokens grouped by number, ascending within a group.
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

/// dtable[v] += Σ dy[t] over the tokens t with number v, ascending from +0; tasks own columns.
inline void compute(const op::embedding_backward::in& i, const op::embedding_backward::out& o, thread_pool& pool) {
  constexpr index_t columns = 16;
  const auto dtable = as_matrix<float>(o.dtable);
  const index_t n = i.dy.extent(0), vocabulary = dtable.extent(0);
  const auto room = work<index_t>(token_order::room(n, vocabulary));
  const token_order order(i.tokens.now(*i.state), n, vocabulary, room.data());
  with_storage(i.dy.type, [&](auto stored) {
    const auto dy = as_matrix<const decltype(stored)>(i.dy);
    for_each_chunk(pool, dy.extent(1), columns, [&](index_t first, index_t last) {
      for (index_t v = 0; v < vocabulary; ++v) {
        if (order.begin(v) == order.end(v)) continue;
        float sum[columns] = {};
        for (index_t at = order.begin(v); at < order.end(v); ++at) {
          for (index_t j = first; j < last; ++j) sum[j - first] += load_element(dy(order[at], j));
        }
        for (index_t j = first; j < last; ++j) dtable(v, j) += sum[j - first];
      }
    });
  });
}
inline room workspace(const op::embedding_backward::in& i, const op::embedding_backward::out& o) {
  return room_for<index_t>(token_order::room(i.dy.extent(0), o.dtable.extent(0)));
}

/// Rotates the pairs (j, j + head_dim / 2) of every head by the angle of its position ("rotate half").
template <class T>
void rotate_heads(view<T, 4> x, const op::rope::in& i, thread_pool& pool) {
  const index_t dim = x.extent(3), half = dim / 2;
  const float direction = i.inverse ? -1.0f : 1.0f;
  pool.for_each(x.extent(0), [&](index_t b) {
    const row_scratch room(1, dim);
    for (index_t t = 0; t < x.extent(1); ++t) {
      const float *const c = i.cosine + t * half, *const s = i.sine + t * half;
      for (index_t h = 0; h < x.extent(2); ++h) {
        float* v = update_row(&x(b, t, h, 0), dim, room[0]);
        for (index_t j = 0; j < half; ++j) {
          const float_pair rotated = rotate(v[j], v[j + half], c[j], s[j] * direction);
          v[j] = rotated.first;
          v[j + half] = rotated.second;
        }
        write_row(v, dim, &x(b, t, h, 0));
      }
    }
  });
}
inline void compute(const op::rope::in& i, const op::rope::out& o, thread_pool& pool) {
  for (const tensor_view& x : {o.queries, o.keys}) {
    if (!x.empty()) with_storage(x.type, [&](auto t) { rotate_heads(as<decltype(t), 4>(x), i, pool); });
  }
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

/// Input `at` of activation A: half of x if A is gated, otherwise x.
template <class A, class T, class View>
matrix<T> input_of(const View& x, index_t at) {
  const index_t n = x.extent(1) / 2;
  return as_matrix<T>(A::gated ? x.part(1, at * n, n) : x);
}
inline void compute(const op::activation_forward::in& i, const op::activation_forward::out& o, thread_pool& pool) {
  with_storage(o.h.type, [&](auto t) {
    with_activation(i.which, [&](auto a) {
      using T = decltype(t);
      using A = decltype(a);
      activation_forward(a, input_of<A, const T>(i.x, 0), input_of<A, const T>(i.x, 1), as_matrix<T>(o.h), pool);
    });
  });
}
inline void compute(const op::activation_backward::in& i, const op::activation_backward::out& o, thread_pool& pool) {
  with_storage(i.dh.type, [&](auto t) {
    with_activation(i.which, [&](auto a) {
      using T = decltype(t);
      using A = decltype(a);
      activation_backward(a, as_matrix<const T>(i.dh), input_of<A, const T>(i.x, 0), input_of<A, const T>(i.x, 1),
                          input_of<A, T>(o.dx, 0), input_of<A, T>(o.dx, 1), pool);
    });
  });
  if (!o.dtable.empty()) compute(op::bias_backward::in{o.dx}, {o.dtable}, pool);
}
inline room workspace(const op::activation_backward::in& i, const op::activation_backward::out& o) {
  const index_t n = i.x.extent(1);
  return room_for<float>(o.dtable.empty() ? 0 : bias_partials(i.x.extent(0), n, 1), row_bytes(n));
}

inline void compute(const op::add::in& i, const op::add::out& o, thread_pool& pool) {
  with_storage(i.x.type, [&](auto stored) {
    using T = decltype(stored);
    const auto x = as_matrix<const T>(i.x), y = as_matrix<const T>(i.y);
    const auto sum = as_matrix<T>(o.sum);
    const index_t n = x.extent(1);
    for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
      const row_scratch room(3, n);
      for (index_t t = first; t < last; ++t) add_row(&x(t, 0), &y(t, 0), &sum(t, 0), n, room);
    });
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

/// Replaces a chunk of logits by their exponentials. Returns their sum, and the largest logit.
inline float softmax_part(float* z, index_t n, float& largest) {
  largest = row_max(z, n);
  const float shift = softmax_shift(largest);
  for (index_t j = 0; j < n; ++j) z[j] = exp(z[j] - shift);
  return ordered_sum(n, [&](index_t j, float s) { return s + z[j]; });
}

/// The loss of each row; logits become exp and, with `gradients`, their gradients times the state's gradient_scale.
inline void compute(const op::cross_entropy::in& i, const op::cross_entropy::out& o, thread_pool& pool) {
  const matrix<float> logits = as_matrix<float>(o.logits);
  const std::int32_t* const targets = i.targets.now(*i.state) + i.first;
  const float gradient_scale = i.state->gradient_scale;
  const index_t n = logits.extent(1), parts = (n + softmax_chunk - 1) / softmax_chunk;
  check_tokens(targets, logits.extent(0), n, true);
  for_each_chunk(pool, logits.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(3, parts);
    float *const largest = room[0], *const sums = room[1], *const weight = room[2];
    for (index_t t = first; t < last; ++t) {
      float* const z = &logits(t, 0);
      const std::int32_t target = targets[t];
      o.loss[t] = 0.0f;
      if (target == ignored_target) {
        if (i.gradients) std::fill_n(z, n, 0.0f);
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
      o.loss[t] = log(sum) - (z_target - m);
      if (!i.gradients) continue;
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
inline room workspace(const op::cross_entropy::in&, const op::cross_entropy::out& o) {
  return {0, scratch_array<float>::bytes(3 * ((o.logits.extent(1) + softmax_chunk - 1) / softmax_chunk))};
}

}  // namespace rotoscale::nn::cpu
