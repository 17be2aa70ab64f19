// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Norms and biases on the CPU, forward and backward. Sums over tokens go in fixed chunks whose partial sums are added
// in order. Rows are FP32 or BF16 in memory and FP32 in between.
#pragma once

#include <algorithm>

#include "rotoscale/nn/cpu/storage.hpp"
#include "rotoscale/nn/operations.hpp"
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

/// Sum and norm, without the quantizer. An empty branch means sum = x.
inline void compute(const op::residual_norm::in& i, const op::residual_norm::out& o, thread_pool& pool) {
  with_storage(i.x.type, [&](auto stored) {
    using T = decltype(stored);
    const bool adds = !i.branch.empty();
    const auto x = as_matrix<const T>(i.x), branch = as_matrix<const T>(adds ? i.branch : i.x);
    const auto y = as_matrix<T>(o.y), sum = as_matrix<T>(adds ? o.sum : o.y);
    const index_t d = x.extent(1);
    for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
      const row_scratch room(4, d);
      for (index_t t = first; t < last; ++t) {
        if (adds) add_row(&x(t, 0), &branch(t, 0), &sum(t, 0), d, room);
        const float* const row = adds ? read_row(&sum(t, 0), d, room[2]) : read_row(&x(t, 0), d, room[0]);
        float* const to = target_row(&y(t, 0), room[3]);
        if (i.bias == nullptr) {
          o.rstd[t] = rmsnorm_row(row, i.gain, i.epsilon, d, to);
        } else {
          layernorm_row(row, i.gain, i.bias, i.epsilon, d, to, o.mean[t], o.rstd[t]);
        }
        write_row(to, d, &y(t, 0));
      }
    });
  });
}
inline void compute(const op::norm_forward::in& i, const op::norm_forward::out& o, thread_pool& pool) {
  compute(op::residual_norm::in{i.x, {}, i.gain, i.epsilon, nullptr, i.bias},
          op::residual_norm::out{{}, o.y, o.rstd, {}, o.mean}, pool);
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

inline void compute(const op::bias_forward::in& i, const op::bias_forward::out& o, thread_pool& pool) {
  const auto table = as_matrix<const float>(i.table);
  const index_t n = o.x.extent(1), period = table.extent(0);
  with_storage(o.x.type, [&](auto stored) {
    const auto x = as_matrix<decltype(stored)>(o.x);
    for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
      const row_scratch room(1, n);
      for (index_t t = first; t < last; ++t) {
        const float* bias = &table(t % period, 0);
        float* to = update_row(&x(t, 0), n, room[0]);
        for (index_t j = 0; j < n; ++j) to[j] += bias[j];
        write_row(to, n, &x(t, 0));
      }
    });
  });
}

/// Adds dy to the rows of the table's gradient: 64 terms of a row from +0, these sums in order.
inline void compute(const op::bias_backward::in& i, const op::bias_backward::out& o, thread_pool& pool) {
  const auto dtable = as_matrix<float>(o.dtable);
  const index_t n = i.dy.extent(1), rows = i.dy.extent(0), period = dtable.extent(0);
  const index_t parts = bias_partials(rows, 1, period);
  const auto partial = work<float>(parts * n);
  with_storage(i.dy.type, [&](auto stored) {
    const auto dy = as_matrix<const decltype(stored)>(i.dy);
    for_each_chunk(pool, parts, 1, [&](index_t part, index_t) {
      const row_scratch room(1, n);
      float* const sum = partial.data() + part * n;
      for (index_t j = 0; j < n; ++j) sum[j] = 0.0f;
      const index_t first = part / period * row_chunk * period + part % period;
      for (index_t t = first; t < std::min(rows, first + row_chunk * period); t += period) {
        const float* d = read_row(&dy(t, 0), n, room[0]);
        for (index_t j = 0; j < n; ++j) sum[j] += d[j];
      }
    });
  });
  for_each_chunk(pool, period, 1, [&](index_t r, index_t) {
    for (index_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (index_t part = r; part < parts; part += period) sum += partial[part * n + j];
      dtable(r, j) += sum;
    }
  });
}
inline room workspace(const op::bias_backward::in& i, const op::bias_backward::out& o) {
  return room_for<float>(bias_partials(i.dy.extent(0), i.dy.extent(1), o.dtable.extent(0)), row_bytes(i.dy.extent(1)));
}

/// One row of RMSNorm's gradients: `dx_j += rstd (w_j dy_j - x_j rstd² mean(w dy x))`, `dw_j += dy_j x_j rstd`.
inline void rmsnorm_gradient(const float* x, const float* dy, const float* gain, float rstd, index_t d, float* dx,
                             float* dw) {
  const float dot = ordered_sum(d, [&](index_t j, float sum) { return fma(gain[j] * dy[j], x[j], sum); });
  const float pull = rms_pull(dot, d, rstd);
  for (index_t j = 0; j < d; ++j) {
    dx[j] = rms_gradient(x[j], pull, gain[j], dy[j], rstd, dx[j]);
    dw[j] = fma(dy[j] * x[j], rstd, dw[j]);
  }
}
/// The same of LayerNorm. `unit` is scratch memory.
inline void layernorm_gradient(const float* x, const float* dy, const float* gain, float mean, float rstd, index_t d,
                               float* dx, float* dw, float* db, float* unit) {
  const auto n = static_cast<float>(d);
  for (index_t j = 0; j < d; ++j) unit[j] = layer_unit(x[j], mean, rstd);
  const float pulled = ordered_sum(d, [&](index_t j, float sum) { return fma(gain[j], dy[j], sum); }) / n;
  const float pull = ordered_sum(d, [&](index_t j, float sum) { return fma(gain[j] * dy[j], unit[j], sum); }) / n;
  for (index_t j = 0; j < d; ++j) {
    dx[j] = layer_gradient(unit[j], pulled, pull, gain[j], dy[j], rstd, dx[j]);
    dw[j] = fma(dy[j], unit[j], dw[j]);
    db[j] += dy[j];
  }
}

/// Adds to dx, and to the gradients of gain and bias: partial sums of 64 rows, added in order.
inline void norm_gradients(const op::norm_backward::in& i, const op::norm_backward::out& o, thread_pool& pool) {
  const index_t rows = i.x.extent(0), d = i.x.extent(1), chunks = (rows + row_chunk - 1) / row_chunk;
  const bool centred = i.mean != nullptr;
  const auto partial = work<float>(bias_partials(rows, centred ? 2 * d : d, 1));
  with_storage(i.x.type, [&](auto stored) {
    using T = decltype(stored);
    const auto dy = as_matrix<const T>(i.dy), x = as_matrix<const T>(i.x);
    const auto dx = as_matrix<T>(o.dx);
    for_each_chunk(pool, rows, row_chunk, [&](index_t first, index_t last) {
      const row_scratch room(4, d);
      float *const dw = partial.data() + first / row_chunk * d, *const db = dw + chunks * d;
      for (index_t j = 0; j < d; ++j) dw[j] = 0.0f;
      for (index_t j = 0; centred && j < d; ++j) db[j] = 0.0f;
      for (index_t t = first; t < last; ++t) {
        const float* xt = read_row(&x(t, 0), d, room[0]);
        const float* dyt = read_row(&dy(t, 0), d, room[1]);
        float* dxt = update_row(&dx(t, 0), d, room[2]);
        if (centred) {
          layernorm_gradient(xt, dyt, i.gain, i.mean[t], i.rstd[t], d, dxt, dw, db, room[3]);
        } else {
          rmsnorm_gradient(xt, dyt, i.gain, i.rstd[t], d, dxt, dw);
        }
        write_row(dxt, d, &dx(t, 0));
      }
    });
  });
  if (o.dgain != nullptr) add_parts(partial.data(), chunks, d, o.dgain, pool);
  if (o.dbias != nullptr) add_parts(partial.data() + chunks * d, chunks, d, o.dbias, pool);
}
inline void compute(const op::norm_backward::in& i, const op::norm_backward::out& o, thread_pool& pool) {
  norm_gradients(i, o, pool);
  if (!o.dtable.empty()) compute(op::bias_backward::in{o.dx}, {o.dtable}, pool);
}
inline room workspace(const op::norm_backward::in& i, const op::norm_backward::out&) {
  const index_t rows = i.x.extent(0), d = i.x.extent(1);
  return room_for<float>(bias_partials(rows, i.mean != nullptr ? 2 * d : d, 1), row_bytes(d));
}

}  // namespace rotoscale::nn::cpu
