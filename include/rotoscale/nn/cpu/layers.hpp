// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The row-wise layers on the CPU, forward and backward by hand: RMSNorm, RoPE, SwiGLU, embedding, cross-entropy, AdamW.
// Every sum has a stated order (math.hpp); sums over tokens go in fixed chunks whose partial sums are added in order.
#pragma once

#include <cmath>
#include <vector>

#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/math.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::nn::cpu {

/// Rows that one task takes. Sums over tokens are partial sums of this many rows, so it is part of the contract.
inline constexpr index_t row_chunk = 64;

inline void embedding_forward(const std::int32_t* tokens, matrix<const float> table, matrix<float> y,
                              thread_pool& pool) {
  for_each_chunk(pool, y.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      for (index_t j = 0; j < y.extent(1); ++j) y(t, j) = table(tokens[t], j);
    }
  });
}

/// dtable[tokens[t]] += dy[t], t ascending; tasks own columns.
inline void embedding_backward(const std::int32_t* tokens, matrix<const float> dy, matrix<float> dtable,
                               thread_pool& pool) {
  for_each_chunk(pool, dy.extent(1), 16, [&](index_t first, index_t last) {
    for (index_t t = 0; t < dy.extent(0); ++t) {
      for (index_t j = first; j < last; ++j) dtable(tokens[t], j) += dy(t, j);
    }
  });
}

inline void rmsnorm_forward(matrix<const float> x, const float* weight, float eps, matrix<float> y, float* rstd,
                            thread_pool& pool) {
  const index_t d = x.extent(1);
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      const float* xt = &x(t, 0);
      float* yt = &y(t, 0);
      const float squares = ordered_sum(d, [&](index_t j, float sum) { return fma(xt[j], xt[j], sum); });
      const float mean = squares / static_cast<float>(d);
      const float r = 1.0f / std::sqrt(mean + eps);
      rstd[t] = r;
      for (index_t j = 0; j < d; ++j) yt[j] = xt[j] * r * weight[j];
    }
  });
}

/// dx_j += rstd (w_j dy_j - x_j rstd² mean(w dy x)); dweight_j += Σ_t dy_j x_j rstd.
inline void rmsnorm_backward(matrix<const float> dy, matrix<const float> x, const float* weight, const float* rstd,
                             matrix<float> dx, float* dweight, thread_pool& pool) {
  const index_t d = x.extent(1);
  const index_t chunks = (x.extent(0) + row_chunk - 1) / row_chunk;
  std::vector<float> partial(static_cast<std::size_t>(chunks * d));
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    float* dw = partial.data() + first / row_chunk * d;
    for (index_t t = first; t < last; ++t) {
      const float* xt = &x(t, 0);
      const float* dyt = &dy(t, 0);
      float* dxt = &dx(t, 0);
      const float r = rstd[t];
      const float dot = ordered_sum(d, [&](index_t j, float sum) { return fma(weight[j] * dyt[j], xt[j], sum); });
      const float pull = -(dot / static_cast<float>(d)) * r * r * r;
      for (index_t j = 0; j < d; ++j) {
        dxt[j] = fma(xt[j], pull, fma(weight[j] * dyt[j], r, dxt[j]));
        dw[j] = fma(dyt[j] * xt[j], r, dw[j]);
      }
    }
  });
  for (index_t c = 0; c < chunks; ++c) {
    for (index_t j = 0; j < d; ++j) dweight[j] += partial[static_cast<std::size_t>(c * d + j)];
  }
}

/// Rotates the pairs (i, i + head_dim / 2) of every head by the angle of its position ("rotate half").
inline void rope(heads_view<float> x, const float* cosine, const float* sine, bool inverse, thread_pool& pool) {
  const index_t half = x.extent(3) / 2;
  const float direction = inverse ? -1.0f : 1.0f;
  pool.for_each(x.extent(0), [&](index_t b) {
    for (index_t t = 0; t < x.extent(1); ++t) {
      const float* c = cosine + t * half;
      const float* s = sine + t * half;
      for (index_t h = 0; h < x.extent(2); ++h) {
        float* v = &x(b, t, h, 0);
        for (index_t i = 0; i < half; ++i) {
          const float low = v[i];
          const float high = v[i + half];
          const float si = s[i] * direction;
          v[i] = fma(low, c[i], -(high * si));
          v[i + half] = fma(high, c[i], low * si);
        }
      }
    }
  });
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

inline void swiglu_forward(matrix<const float> gate, matrix<const float> up, matrix<float> h, thread_pool& pool) {
  for_each_chunk(pool, h.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      const float* g = &gate(t, 0);
      const float* u = &up(t, 0);
      float* out = &h(t, 0);
      for (index_t j = 0; j < h.extent(1); ++j) out[j] = g[j] * sigmoid(g[j]) * u[j];
    }
  });
}

/// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
inline void swiglu_backward(matrix<const float> dh, matrix<const float> gate, matrix<const float> up,
                            matrix<float> dgate, matrix<float> dup, thread_pool& pool) {
  for_each_chunk(pool, dh.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      const float* d = &dh(t, 0);
      const float* g = &gate(t, 0);
      const float* u = &up(t, 0);
      float* dg = &dgate(t, 0);
      float* du = &dup(t, 0);
      for (index_t j = 0; j < dh.extent(1); ++j) {
        const float s = sigmoid(g[j]);
        const float slope = s * fma(g[j], 1.0f - s, 1.0f);
        const float gj = g[j];
        dg[j] = d[j] * u[j] * slope;
        du[j] = d[j] * gj * s;
      }
    }
  });
}

inline void add(matrix<float> x, matrix<const float> y, thread_pool& pool) {
  for_each_chunk(pool, x.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      float* xt = &x(t, 0);
      const float* yt = &y(t, 0);
      for (index_t j = 0; j < x.extent(1); ++j) xt[j] += yt[j];
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

inline void cross_entropy(matrix<float> logits, const std::int32_t* targets, float* loss, float gradient_scale,
                          thread_pool& pool) {
  const index_t n = logits.extent(1);
  for_each_chunk(pool, logits.extent(0), row_chunk, [&](index_t first, index_t last) {
    for (index_t t = first; t < last; ++t) {
      float* z = &logits(t, 0);
      const std::int32_t target = targets[t];
      loss[t] = 0.0f;
      if (target == ignored_target) {
        if (gradient_scale != 0.0f) {
          for (index_t j = 0; j < n; ++j) z[j] = 0.0f;
        }
        continue;
      }
      const float shift = row_max(z, n);
      const float z_target = z[target];
      for (index_t j = 0; j < n; ++j) z[j] = exp(z[j] - shift);
      const float e_target = z[target];
      const float sum = ordered_sum(n, [&](index_t j, float s) { return s + z[j]; });
      loss[t] = log(sum) - (z_target - shift);
      if (gradient_scale != 0.0f) {
        const float factor = gradient_scale / sum;
        for (index_t j = 0; j < n; ++j) z[j] *= factor;
        z[target] = fma(e_target, factor, -gradient_scale);
      }
    }
  });
}

inline double sum_squares(const float* x, index_t n, thread_pool& pool) {
  constexpr index_t chunk = 4096;
  std::vector<float> partial(static_cast<std::size_t>((n + chunk - 1) / chunk));
  for_each_chunk(pool, n, chunk, [&](index_t first, index_t last) {
    partial[static_cast<std::size_t>(first / chunk)] =
        ordered_sum(last - first, [&](index_t j, float s) { return fma(x[first + j], x[first + j], s); });
  });
  double sum = 0.0;
  for (const float p : partial) sum += static_cast<double>(p);
  return sum;
}

inline void adamw(float* weight, const float* gradient, float* m, float* v, index_t n, const adamw_args& a,
                  thread_pool& pool) {
  const float keep = fma(-a.learning_rate, a.weight_decay, 1.0f);
  const float step = a.learning_rate / a.bias_correction1;
  const float root = 1.0f / std::sqrt(a.bias_correction2);
  const float new1 = 1.0f - a.beta1;
  const float new2 = 1.0f - a.beta2;
  for_each_chunk(pool, n, 16384, [&](index_t first, index_t last) {
    for (index_t i = first; i < last; ++i) {
      const float g = gradient[i] * a.gradient_scale;
      m[i] = fma(new1, fma(gradient[i], a.gradient_scale, -m[i]), m[i]);
      v[i] = fma(new2 * g, g, a.beta2 * v[i]);
      const float denominator = fma(std::sqrt(v[i]), root, a.epsilon);
      weight[i] = fma(-step, m[i] / denominator, weight[i] * keep);
    }
  });
}

}  // namespace rotoscale::nn::cpu
