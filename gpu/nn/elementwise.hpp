// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Element-wise kernels: add, activations, dropout, RoPE. A thread takes one vec8 of a few rows and issues all of its
// loads before it computes.
#pragma once

#include "gpu/dialect/math.hpp"
#include "gpu/nn/rows.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::gpu {

/// A thread's vec8 and first row. Items are numbered along rows first.
struct row_item {
  unsigned vec8;
  index_t row;

  __device__ static row_item of_thread(const row_extents& e, unsigned rows) {
    const unsigned item = block_index().x * row_threads + thread_index().x;
    return {item % e.vec8s, index_t{item / e.vec8s} * rows};
  }
};

inline constexpr unsigned add_rows = 4, activation_rows = 2, embedding_rows = 2, rope_heads = 2;  // per thread

/// x = combine(x, y), computed in FP32 and rounded once.
template <class T, class Combine>
__device__ inline void combine_vec8(stored_vec8<T>& x, const stored_vec8<T>& y, const Combine& combine) {
  float p[vec8_elements], q[vec8_elements];
  x.widen(p);
  y.widen(q);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) p[i] = combine(p[i], q[i]);
  x.narrow(p);
}

template <class T>
struct add_args {
  row_extents e;
  row_span<const T> x, y;
  row_span<T> sum;
};

/// Stores x after combine(x, y), for one vec8 of Rows rows per thread. All loads come first.
template <unsigned Rows, class T, class Combine>
__device__ inline void combine_rows(const row_extents& e, const row_span<const T>& x, const row_span<const T>& y,
                                    const row_span<T>& to, const Combine& combine) {
  const row_item at = row_item::of_thread(e, Rows);
  const unsigned col = at.vec8 * vec8_elements, count = e.count(at.vec8);
  stored_vec8<T> first[Rows], second[Rows];
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < Rows; ++r) {
    if (at.row + r >= e.rows) continue;
    first[r].load(x[at.row + r] + col, count, e.vectors);
    second[r].load(y[at.row + r] + col, count, e.vectors);
  }
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < Rows; ++r) {
    if (at.row + r >= e.rows) continue;
    combine(first[r], second[r]);
    first[r].store(to[at.row + r] + col, count, e.vectors);
  }
}

template <class T>
__global__ void __launch_bounds__(row_threads) add_kernel(const ROTOSCALE_GRID_CONSTANT add_args<T> a) {
  combine_rows<add_rows>(a.e, a.x, a.y, a.sum, [](stored_vec8<T>& x, const stored_vec8<T>& y) {
    combine_vec8(x, y, [](float p, float q) { return p + q; });
  });
}

/// nn::sigmoid of a vec8. If all |x| are at most sigmoid_normal_limit, exp and the reciprocal skip range checks and
/// subnormal numbers, which halves the instructions.
__device__ inline void sigmoids(const float (&x)[vec8_elements], float (&s)[vec8_elements]) {
  bool normal = true;  // false if one is NaN
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) {
    normal = normal && __builtin_fabsf(x[i]) <= nn::sigmoid_normal_limit;
  }
  if (normal) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) s[i] = reciprocal(1.0f + nn::exp_normal(-x[i]));
    return;
  }
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) s[i] = x[i];
  // The code of the fallback exists once, because the elements rotate through s[0].
  ROTOSCALE_KEEP_LOOP
  for (unsigned done = 0; done < vec8_elements; ++done) {
    const float first = nn::sigmoid(s[0]);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i + 1 < vec8_elements; ++i) s[i] = s[i + 1];
    s[vec8_elements - 1] = first;
  }
}

/// s = nn::sigmoid(A::sigmoid_input(x)) for an activation A.
template <class A>
__device__ inline void activation_sigmoids(const float (&x)[vec8_elements], float (&s)[vec8_elements]) {
  float input[vec8_elements];
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) input[i] = A::sigmoid_input(x[i]);
  sigmoids(input, s);
}

/// Replaces x by h. `up` is not used if A is not gated.
template <class A, class T>
__device__ inline void activate(stored_vec8<T>& x, const stored_vec8<T>& up) {
  float g[vec8_elements], u[vec8_elements] = {}, s[vec8_elements];
  x.widen(g);
  if constexpr (A::gated) up.widen(u);
  activation_sigmoids<A>(g, s);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) g[i] = A::value(g[i], u[i], s[i]);
  x.narrow(g);
}

/// Replaces x and, if A is gated, up by their gradients.
template <class A, class T>
__device__ inline void activation_gradients(const stored_vec8<T>& dh, stored_vec8<T>& x, stored_vec8<T>& up) {
  float g[vec8_elements], u[vec8_elements] = {}, d[vec8_elements], s[vec8_elements];
  x.widen(g);
  if constexpr (A::gated) up.widen(u);
  dh.widen(d);
  activation_sigmoids<A>(g, s);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) {
    const nn::float_pair both = A::gradients(d[i], g[i], u[i], s[i]);
    g[i] = both.first;
    u[i] = both.second;
  }
  x.narrow(g);
  if constexpr (A::gated) up.narrow(u);
}

/// `e` has the extents of h. `up` and `dup` are empty if the activation is not gated.
template <class T>
struct activation_args {
  row_extents e;
  row_span<const T> x, up, dh;
  row_span<T> h, dx, dup;
};

/// Loads a thread's vec8 of rows of x and, if A is gated, of up.
template <class A, class T>
__device__ inline void load_inputs(const activation_args<T>& a, index_t row, unsigned col, unsigned count,
                                   stored_vec8<T>& x, stored_vec8<T>& up) {
  x.load(a.x[row] + col, count, a.e.vectors);
  if constexpr (A::gated) up.load(a.up[row] + col, count, a.e.vectors);
}

template <class A, class T>
__global__ void __launch_bounds__(row_threads) activation_kernel(const ROTOSCALE_GRID_CONSTANT activation_args<T> a) {
  const row_item at = row_item::of_thread(a.e, activation_rows);
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  stored_vec8<T> x[activation_rows], up[activation_rows];
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < activation_rows; ++r) {
    if (at.row + r < a.e.rows) load_inputs<A>(a, at.row + r, col, count, x[r], up[r]);
  }
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < activation_rows; ++r) {
    if (at.row + r >= a.e.rows) continue;
    activate<A>(x[r], up[r]);
    x[r].store(a.h[at.row + r] + col, count, a.e.vectors);
  }
}

template <class A, class T>
__global__ void __launch_bounds__(row_threads)
    activation_gradient_kernel(const ROTOSCALE_GRID_CONSTANT activation_args<T> a) {
  const row_item at = row_item::of_thread(a.e, activation_rows);
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  stored_vec8<T> x[activation_rows], up[activation_rows], dh[activation_rows];
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < activation_rows; ++r) {
    if (at.row + r >= a.e.rows) continue;
    load_inputs<A>(a, at.row + r, col, count, x[r], up[r]);
    dh[r].load(a.dh[at.row + r] + col, count, a.e.vectors);
  }
  ROTOSCALE_UNROLL
  for (unsigned r = 0; r < activation_rows; ++r) {
    if (at.row + r >= a.e.rows) continue;
    activation_gradients<A>(dh[r], x[r], up[r]);
    x[r].store(a.dx[at.row + r] + col, count, a.e.vectors);
    if constexpr (A::gated) up[r].store(a.dup[at.row + r] + col, count, a.e.vectors);
  }
}

template <class X, class Y>
struct dropout_kernel_args {
  row_extents e;
  row_span<const X> x;
  row_span<Y> y;
  nn::dropout_args how;
  const nn::step_state* state = nullptr;
  bool accumulate = false;
};

/// Random words first .. first + 7: two Philox blocks if `first` is a multiple of four, otherwise three.
__device__ inline void take_words(const random_stream& words, std::uint64_t first, std::uint32_t (&to)[vec8_elements]) {
  const auto skip = static_cast<unsigned>(first % 4);
  philox_block before = words.block(first / 4);
  ROTOSCALE_UNROLL
  for (unsigned b = 0; b < vec8_elements / 4; ++b) {
    philox_block behind = before;
    if (skip != 0 || b + 1 < vec8_elements / 4) behind = words.block(first / 4 + b + 1);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      ROTOSCALE_UNROLL
      for (unsigned s = 0; s < 4; ++s) {
        if (s == skip) to[4 * b + i] = i + s < 4 ? before.word[(i + s) % 4] : behind.word[(i + s) % 4];
      }
    }
    before = behind;
  }
}

/// One thread per vec8.
template <class X, class Y>
__global__ void __launch_bounds__(row_threads)
    dropout_kernel(const ROTOSCALE_GRID_CONSTANT dropout_kernel_args<X, Y> a) {
  const row_item at = row_item::of_thread(a.e, 1);
  if (at.row >= a.e.rows) return;
  const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
  stored_vec8<X> from;
  stored_vec8<Y> to;
  float x[vec8_elements], y[vec8_elements] = {};
  from.load(a.x[at.row] + col, count, a.e.vectors);
  from.widen(x);
  if (a.accumulate) {
    to.load(a.y[at.row] + col, count, a.e.vectors);
    to.widen(y);
  }
  const random_stream words = a.how.words(*a.state);
  const auto first = static_cast<std::uint64_t>(at.row) * a.e.cols + col;
  std::uint32_t word[vec8_elements] = {};
  if (a.how.threshold != 0) take_words(words, first, word);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) {
    const bool kept = word[i] >= a.how.threshold;
    y[i] = a.accumulate ? nn::dropped_onto(x[i], a.how.factor, kept, y[i]) : nn::dropped(x[i], a.how.factor, kept);
  }
  to.narrow(y);
  to.store(a.y[at.row] + col, count, a.e.vectors);
}

/// q and k (batch, seq, heads, head_dim). Without k, k.heads is 0. A vec8 belongs to half a head.
template <class T>
struct rope_args {
  struct tensor {
    T* data = nullptr;
    index_t batch_stride = 0, token_stride = 0, head_stride = 0;
    unsigned heads = 0;
  };
  tensor q, k;
  const float *cosine = nullptr, *sine = nullptr;
  float direction = 1.0f;
  unsigned tokens = 0, seq = 0, half = 0, vec8s = 0, head_groups = 0;
  bool vectors = false;

  /// First elements of a token.
  struct token_rows {
    T *q, *k;
  };
  __device__ token_rows rows(unsigned batch, unsigned position) const {
    return {q.data + batch * q.batch_stride + position * q.token_stride,
            k.data + batch * k.batch_stride + position * k.token_stride};
  }
  __device__ T* head(const token_rows& at, unsigned h) const {
    return h < q.heads ? at.q + h * q.head_stride : at.k + (h - q.heads) * k.head_stride;
  }
};

/// One thread rotates the pairs of one vec8 of rope_heads heads of a token and reads their angles once.
template <class T>
__global__ void __launch_bounds__(row_threads) rope_kernel(const ROTOSCALE_GRID_CONSTANT rope_args<T> a) {
  const unsigned item = block_index().x * row_threads + thread_index().x;
  const unsigned vec8 = item % a.vec8s, group = item / a.vec8s % a.head_groups;
  const unsigned token = item / a.vec8s / a.head_groups, position = token % a.seq;
  if (token >= a.tokens) return;
  const auto rows = a.rows(token / a.seq, position);
  const unsigned first = vec8 * vec8_elements, left = a.half - first;
  const unsigned count = left < vec8_elements ? left : vec8_elements;
  stored_vec8<T> low[rope_heads], high[rope_heads];
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < rope_heads; ++i) {
    const unsigned h = group * rope_heads + i;
    if (h >= a.q.heads + a.k.heads) continue;
    const T* const from = a.head(rows, h) + first;
    low[i].load(from, count, a.vectors);
    high[i].load(from + a.half, count, a.vectors);
  }
  float c[vec8_elements], s[vec8_elements];
  const index_t angle = index_t{position} * a.half + first;
  load_floats(a.cosine + angle, count, a.vectors, c);
  load_floats(a.sine + angle, count, a.vectors, s);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < rope_heads; ++i) {
    const unsigned h = group * rope_heads + i;
    if (h >= a.q.heads + a.k.heads) continue;
    float x[vec8_elements], y[vec8_elements];
    low[i].widen(x);
    high[i].widen(y);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < vec8_elements; ++j) {
      const nn::float_pair rotated = nn::rotate(x[j], y[j], c[j], s[j] * a.direction);
      x[j] = rotated.first;
      y[j] = rotated.second;
    }
    low[i].narrow(x);
    high[i].narrow(y);
    T* const to = a.head(rows, h) + first;
    low[i].store(to, count, a.vectors);
    high[i].store(to + a.half, count, a.vectors);
  }
}

}  // namespace rotoscale::gpu
