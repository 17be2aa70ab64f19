// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Norms and biases on the CPU, forward and backward. Sums over tokens go in fixed chunks whose partial sums are added
// in order. Rows are FP32 or BF16 in memory and FP32 in between.
#pragma once

#include <algorithm>

#include "rotoscale/nn/cpu/storage.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::nn::cpu {

/// Rows that one task takes.
inline constexpr index_t row_chunk = gain_chunk;

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

/// to_j += Σ parts of column j in order. `partial` is (parts, n).
inline void add_parts(const float* partial, index_t parts, index_t n, float* to, thread_pool& pool) {
  for_each_chunk(pool, n, 256, [&](index_t first, index_t last) {
    for (index_t j = first; j < last; ++j) {
      float sum = 0.0f;
      for (index_t c = 0; c < parts; ++c) sum += partial[c * n + j];
      to[j] += sum;
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
  if (dgain != nullptr) add_parts(partial, chunks, d, dgain, pool);
}

/// One row of LayerNorm.
inline void layernorm_row(const float* x, const float* gain, const float* bias, float eps, index_t d, float* y,
                          float& mean, float& rstd) {
  const float m = ordered_sum(d, [&](index_t j, float sum) { return sum + x[j]; }) / static_cast<float>(d);
  const float squares = ordered_sum(d, [&](index_t j, float sum) { return fma(x[j] - m, x[j] - m, sum); });
  const float r = rms_reciprocal(squares, d, eps);
  for (index_t j = 0; j < d; ++j) y[j] = layer_normed(x[j], m, r, gain[j], bias[j]);
  mean = m;
  rstd = r;
}

/// sum = x + branch, y = norm(sum). Without a branch the sum is x and is not written.
template <class T>
void layernorm_forward(matrix<const T> x, matrix<const T> branch, const float* gain, const float* bias, float eps,
                       matrix<T> sum, matrix<T> y, float* mean, float* rstd, thread_pool& pool) {
  const index_t d = x.extent(1);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(4, d);
    for (index_t t = first; t < last; ++t) {
      const float* a = read_row(&x(t, 0), d, room[0]);
      if (branch.data != nullptr) {
        const float* b = read_row(&branch(t, 0), d, room[1]);
        float* to = target_row(&sum(t, 0), room[2]);
        for (index_t j = 0; j < d; ++j) to[j] = a[j] + b[j];
        write_row(to, d, &sum(t, 0));
        a = read_row(&sum(t, 0), d, room[2]);
      }
      float* yt = target_row(&y(t, 0), room[3]);
      layernorm_row(a, gain, bias, eps, d, yt, mean[t], rstd[t]);
      write_row(yt, d, &y(t, 0));
    }
  });
}

/// Adds the gradient of x to dx, of gain and bias to dgain and dbias: partial sums of 64 rows, added in order.
/// `partial` has layernorm_partials numbers.
template <class T>
void layernorm_backward(matrix<const T> dy, matrix<const T> x, const float* gain, const float* mean, const float* rstd,
                        matrix<T> dx, float* dgain, float* dbias, float* partial, thread_pool& pool) {
  const index_t d = x.extent(1), chunks = (x.extent(0) + row_chunk - 1) / row_chunk;
  const auto n = static_cast<float>(d);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(4, d);
    float *const dw = partial + first / row_chunk * d, *const db = dw + chunks * d, *const unit = room[3];
    for (index_t j = 0; j < d; ++j) dw[j] = db[j] = 0.0f;
    for (index_t t = first; t < last; ++t) {
      const float* xt = read_row(&x(t, 0), d, room[0]);
      const float* dyt = read_row(&dy(t, 0), d, room[1]);
      float* dxt = update_row(&dx(t, 0), d, room[2]);
      for (index_t j = 0; j < d; ++j) unit[j] = layer_unit(xt[j], mean[t], rstd[t]);
      const float pulled = ordered_sum(d, [&](index_t j, float sum) { return fma(gain[j], dyt[j], sum); }) / n;
      const float pull = ordered_sum(d, [&](index_t j, float sum) { return fma(gain[j] * dyt[j], unit[j], sum); }) / n;
      for (index_t j = 0; j < d; ++j) {
        dxt[j] = layer_gradient(unit[j], pulled, pull, gain[j], dyt[j], rstd[t], dxt[j]);
        dw[j] = fma(dyt[j], unit[j], dw[j]);
        db[j] += dyt[j];
      }
      write_row(dxt, d, &dx(t, 0));
    }
  });
  if (dgain != nullptr) add_parts(partial, chunks, d, dgain, pool);
  if (dbias != nullptr) add_parts(partial + chunks * d, chunks, d, dbias, pool);
}

/// x += row t mod r of the table.
template <class T>
void bias_forward(matrix<const float> table, matrix<T> x, thread_pool& pool) {
  const index_t n = x.extent(1), period = table.extent(0);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(1, n);
    for (index_t t = first; t < last; ++t) {
      const float* bias = &table(t % period, 0);
      float* to = update_row(&x(t, 0), n, room[0]);
      for (index_t j = 0; j < n; ++j) to[j] += bias[j];
      write_row(to, n, &x(t, 0));
    }
  });
}

/// Adds dy to the rows of the table's gradient: 64 terms of a row from +0, these sums in order. `partial` has
/// bias_partials numbers.
template <class T>
void bias_backward(matrix<const T> dy, matrix<float> dtable, float* partial, thread_pool& pool) {
  const index_t n = dy.extent(1), rows = dy.extent(0), period = dtable.extent(0);
  const index_t parts = bias_partials(rows, 1, period);
  for_each_chunk(pool, parts, 1, [&](index_t part, index_t) {
    const row_scratch room(1, n);
    float* const sum = partial + part * n;
    for (index_t j = 0; j < n; ++j) sum[j] = 0.0f;
    const index_t first = part / period * row_chunk * period + part % period;
    for (index_t t = first; t < std::min(rows, first + row_chunk * period); t += period) {
      const float* d = read_row(&dy(t, 0), n, room[0]);
      for (index_t j = 0; j < n; ++j) sum[j] += d[j];
    }
  });
  for_each_chunk(pool, period, 1, [&](index_t r, index_t) {
    for (index_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (index_t part = r; part < parts; part += period) sum += partial[part * n + j];
      dtable(r, j) += sum;
    }
  });
}

}  // namespace rotoscale::nn::cpu
