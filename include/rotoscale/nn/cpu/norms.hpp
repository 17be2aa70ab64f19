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

/// Row of a sum: to = x + y. `room` has three rows.
template <class X, class Y, class S>
void add_row(const X* x, const Y* y, S* to, index_t n, const row_scratch& room) {
  const float *const a = read_row(x, n, room[0]), *const b = read_row(y, n, room[1]);
  float* const sum = target_row(to, room[2]);
  for (index_t j = 0; j < n; ++j) sum[j] = a[j] + b[j];
  write_row(sum, n, to);
}

/// One row of RMSNorm; returns rstd.
inline float rmsnorm_row(const float* x, const float* gain, float eps, index_t d, float* y) {
  const float squares = ordered_sum(d, [&](index_t j, float sum) { return fma(x[j], x[j], sum); });
  const float r = rms_reciprocal(squares, d, eps);
  for (index_t j = 0; j < d; ++j) y[j] = rms_normed(x[j], r, gain[j]);
  return r;
}

/// Norms of the rows of x, or with a branch of sum = x + branch. `normalize(row, to, t)` computes row t of y.
template <class T, class Normalize>
void norm_rows(matrix<const T> x, matrix<const T> branch, matrix<T> sum, matrix<T> y, thread_pool& pool,
               const Normalize& normalize) {
  const index_t d = x.extent(1);
  const bool adds = branch.data != nullptr;
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    const row_scratch room(4, d);
    for (index_t t = first; t < last; ++t) {
      if (adds) add_row(&x(t, 0), &branch(t, 0), &sum(t, 0), d, room);
      float* const to = target_row(&y(t, 0), room[3]);
      normalize(adds ? read_row(&sum(t, 0), d, room[2]) : read_row(&x(t, 0), d, room[0]), to, t);
      write_row(to, d, &y(t, 0));
    }
  });
}

/// RMSNorm of x, or with a branch of sum = x + branch.
template <class T>
void rmsnorm_forward(matrix<const T> x, matrix<const T> branch, const float* gain, float eps, matrix<T> sum,
                     matrix<T> y, float* rstd, thread_pool& pool) {
  norm_rows(x, branch, sum, y, pool, [&](const float* row, float* to, index_t t) {
    rstd[t] = rmsnorm_row(row, gain, eps, x.extent(1), to);
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

/// LayerNorm of x, or with a branch of sum = x + branch.
template <class T>
void layernorm_forward(matrix<const T> x, matrix<const T> branch, const float* gain, const float* bias, float eps,
                       matrix<T> sum, matrix<T> y, float* mean, float* rstd, thread_pool& pool) {
  norm_rows(x, branch, sum, y, pool, [&](const float* row, float* to, index_t t) {
    layernorm_row(row, gain, bias, eps, x.extent(1), to, mean[t], rstd[t]);
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
