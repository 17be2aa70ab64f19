// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The layers of a Llama-3-style model in double precision, forward and backward, written from the formulas. Tests
// compare the FP32 layers with them, so they share no code with include/rotoscale. The code is plain loops over
// row-major vectors, one statement per formula.
//
// In comments, x[n,d] means n rows of d values. A function f_backward takes the gradient dy of a scalar with respect to
// f's result, and returns the gradients with respect to f's inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <vector>

namespace rotoscale::oracle {

using std::size_t;
using tensor = std::vector<double>;

inline constexpr int ignored_target = -100;

// --- Linear: y[n,out] = x[n,in] · w[out,in]ᵀ -------------------------------------------------------------------------

inline tensor linear(const tensor& x, const tensor& w, size_t in, size_t out) {
  const size_t n = x.size() / in;
  tensor y(n * out, 0.0);
  for (size_t r = 0; r < n; ++r)
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < in; ++i) y[r * out + o] += x[r * in + i] * w[o * in + i];
  return y;
}

struct linear_gradients {
  tensor x, w;
};

inline linear_gradients linear_backward(const tensor& dy, const tensor& x, const tensor& w, size_t in, size_t out) {
  const size_t n = x.size() / in;
  linear_gradients d{tensor(x.size(), 0.0), tensor(w.size(), 0.0)};
  for (size_t r = 0; r < n; ++r)
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < in; ++i) {
        d.x[r * in + i] += dy[r * out + o] * w[o * in + i];
        d.w[o * in + i] += dy[r * out + o] * x[r * in + i];
      }
  return d;
}

// --- RMSNorm: y = weight · x · s, s = 1 / sqrt(mean(x²) + eps), for each row of x[n,d]
// --------------------------------

inline double rms_scale(const tensor& x, size_t row, size_t d, double eps) {
  double sum = 0.0;
  for (size_t i = 0; i < d; ++i) sum += x[row * d + i] * x[row * d + i];
  return 1.0 / std::sqrt(sum / static_cast<double>(d) + eps);
}

inline tensor rmsnorm(const tensor& x, const tensor& weight, double eps) {
  const size_t d = weight.size(), n = x.size() / d;
  tensor y(x.size());
  for (size_t r = 0; r < n; ++r) {
    const double s = rms_scale(x, r, d, eps);
    for (size_t i = 0; i < d; ++i) y[r * d + i] = weight[i] * x[r * d + i] * s;
  }
  return y;
}

struct rmsnorm_gradients {
  tensor x, weight;
};

/// ds/dx_i = -s³ x_i / d, hence dx_i = s g_i - (s³ x_i / d) Σ_j g_j x_j with g = dy · weight.
inline rmsnorm_gradients rmsnorm_backward(const tensor& dy, const tensor& x, const tensor& weight, double eps) {
  const size_t d = weight.size(), n = x.size() / d;
  rmsnorm_gradients grad{tensor(x.size()), tensor(d, 0.0)};
  for (size_t r = 0; r < n; ++r) {
    const double s = rms_scale(x, r, d, eps);
    double dot = 0.0;
    for (size_t i = 0; i < d; ++i) dot += dy[r * d + i] * weight[i] * x[r * d + i];
    for (size_t i = 0; i < d; ++i) {
      const size_t at = r * d + i;
      grad.x[at] = s * dy[at] * weight[i] - s * s * s * x[at] * dot / static_cast<double>(d);
      grad.weight[i] += dy[at] * x[at] * s;
    }
  }
  return grad;
}

// --- LayerNorm: y = weight · n + bias, n = (x - mean) · s, s = 1 / sqrt(variance + eps), for each row of x[n,d]
// -------

struct row_moments {
  double mean, s;
};

inline row_moments moments(const tensor& x, size_t row, size_t d, double eps) {
  double sum = 0.0, squares = 0.0;
  for (size_t i = 0; i < d; ++i) sum += x[row * d + i];
  const double mean = sum / static_cast<double>(d);
  for (size_t i = 0; i < d; ++i) squares += (x[row * d + i] - mean) * (x[row * d + i] - mean);
  return {mean, 1.0 / std::sqrt(squares / static_cast<double>(d) + eps)};
}

inline tensor layernorm(const tensor& x, const tensor& weight, const tensor& bias, double eps) {
  const size_t d = weight.size(), n = x.size() / d;
  tensor y(x.size());
  for (size_t r = 0; r < n; ++r) {
    const row_moments m = moments(x, r, d, eps);
    for (size_t i = 0; i < d; ++i) y[r * d + i] = weight[i] * (x[r * d + i] - m.mean) * m.s + bias[i];
  }
  return y;
}

struct layernorm_gradients {
  tensor x, weight, bias;
};

/// dx_i = s (g_i - mean(g) - n_i mean(g n)) with g = dy · weight.
inline layernorm_gradients layernorm_backward(const tensor& dy, const tensor& x, const tensor& weight, double eps) {
  const size_t d = weight.size(), rows = x.size() / d;
  layernorm_gradients grad{tensor(x.size()), tensor(d, 0.0), tensor(d, 0.0)};
  for (size_t r = 0; r < rows; ++r) {
    const row_moments m = moments(x, r, d, eps);
    double g = 0.0, gn = 0.0;
    for (size_t i = 0; i < d; ++i) {
      const size_t at = r * d + i;
      const double n = (x[at] - m.mean) * m.s;
      g += dy[at] * weight[i] / static_cast<double>(d);
      gn += dy[at] * weight[i] * n / static_cast<double>(d);
      grad.weight[i] += dy[at] * n;
      grad.bias[i] += dy[at];
    }
    for (size_t i = 0; i < d; ++i) {
      const size_t at = r * d + i;
      grad.x[at] = m.s * (dy[at] * weight[i] - g - (x[at] - m.mean) * m.s * gn);
    }
  }
  return grad;
}

// --- Bias: row t mod (rows of the table) of table[r,d] is added to row t of x[n,d] -----------------------------------

inline tensor add_table(const tensor& x, const tensor& table) {
  tensor y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] + table[i % table.size()];
  return y;
}

inline tensor table_backward(const tensor& dy, size_t size) {
  tensor d(size, 0.0);
  for (size_t i = 0; i < dy.size(); ++i) d[i % size] += dy[i];
  return d;
}

// --- RoPE: in each head, the pair (i, i + D/2) turns by the angle position · frequency_i -----------------------------

/// config.json's "rope_scaling" with "rope_type": "llama3".
struct rope_scaling {
  double factor, low_freq_factor, high_freq_factor;
  double original_max_position_embeddings;
};

/// frequency_i = theta^(-2i/D). Llama 3 scaling depends on c = original length / wavelength, the turns of the pair in
/// the original context. A pair with c > high keeps the frequency, one with c < low divides it by `factor`, and the
/// interval between is linear in c.
inline tensor rope_frequencies(size_t head_dim, double theta, const std::optional<rope_scaling>& scaling = {}) {
  const double two_pi = 2.0 * std::acos(-1.0);
  tensor frequencies(head_dim / 2);
  for (size_t i = 0; i < head_dim / 2; ++i) {
    const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    frequencies[i] = plain;
    if (!scaling) continue;
    const double turns = scaling->original_max_position_embeddings * plain / two_pi;
    const double low = scaling->low_freq_factor, high = scaling->high_freq_factor;
    const double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequencies[i] = keep * plain + (1.0 - keep) * plain / scaling->factor;
  }
  return frequencies;
}

/// x[tokens, heads, D]. Tokens form sequences of `seq` rows; a token's position is its row in its sequence. direction
/// -1 rotates back.
inline tensor rope(const tensor& x, size_t seq, size_t heads, size_t head_dim, const tensor& frequencies,
                   double direction = 1.0) {
  const size_t half = head_dim / 2, tokens = x.size() / (heads * head_dim);
  tensor y(x.size());
  for (size_t t = 0; t < tokens; ++t)
    for (size_t h = 0; h < heads; ++h)
      for (size_t i = 0; i < half; ++i) {
        const double angle = direction * static_cast<double>(t % seq) * frequencies[i];
        const size_t a = (t * heads + h) * head_dim + i, b = a + half;
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
  return y;
}

/// The transpose of a rotation is its inverse.
inline tensor rope_backward(const tensor& dy, size_t seq, size_t heads, size_t head_dim, const tensor& frequencies) {
  return rope(dy, seq, heads, head_dim, frequencies, -1.0);
}

// --- Attention: causal, grouped queries. q[B,T,H,D], k and v[B,T,KV,D]; query head h reads k/v head h / (H / KV) -----

struct attention_shape {
  size_t batch, seq, heads, kv_heads, head_dim;

  size_t q_at(size_t b, size_t t, size_t h) const { return ((b * seq + t) * heads + h) * head_dim; }
  /// Offset of the key and value of query head h.
  size_t kv_at(size_t b, size_t t, size_t h) const {
    return ((b * seq + t) * kv_heads + h / (heads / kv_heads)) * head_dim;
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }
};

inline double dot(const tensor& x, size_t x_at, const tensor& y, size_t y_at, size_t length) {
  double sum = 0.0;
  for (size_t i = 0; i < length; ++i) sum += x[x_at + i] * y[y_at + i];
  return sum;
}

inline tensor softmax(tensor x) {
  const double largest = *std::max_element(x.begin(), x.end());
  for (double& value : x) value = std::exp(value - largest);
  double sum = 0.0;
  for (const double value : x) sum += value;
  for (double& value : x) value /= sum;
  return x;
}

/// Weights of the query at (b, t, h) for positions 0 … t.
inline tensor attention_weights(const tensor& q, const tensor& k, const attention_shape& n, size_t b, size_t t,
                                size_t h) {
  tensor scores(t + 1);
  for (size_t s = 0; s <= t; ++s) scores[s] = n.scale() * dot(q, n.q_at(b, t, h), k, n.kv_at(b, s, h), n.head_dim);
  return softmax(scores);
}

/// Adds the attention output of the query at (b, t, h) to y, which has q's layout.
inline void add_attention_row(const tensor& q, const tensor& k, const tensor& v, const attention_shape& n, size_t b,
                              size_t t, size_t h, tensor& y) {
  const tensor p = attention_weights(q, k, n, b, t, h);
  const size_t to = n.q_at(b, t, h);
  for (size_t s = 0; s <= t; ++s) {
    const size_t from = n.kv_at(b, s, h);  // has a division: once per row, not per element
    for (size_t i = 0; i < n.head_dim; ++i) y[to + i] += p[s] * v[from + i];
  }
}

inline tensor attention(const tensor& q, const tensor& k, const tensor& v, const attention_shape& n) {
  tensor y(q.size(), 0.0);
  for (size_t b = 0; b < n.batch; ++b)
    for (size_t h = 0; h < n.heads; ++h)
      for (size_t t = 0; t < n.seq; ++t) add_attention_row(q, k, v, n, b, t, h, y);
  return y;
}

struct attention_gradients {
  tensor q, k, v;
};

/// Softmax: dscore_s = p_s (dp_s - Σ_r p_r dp_r), where dp_s = dy · v_s.
inline attention_gradients attention_backward(const tensor& dy, const tensor& q, const tensor& k, const tensor& v,
                                              const attention_shape& n) {
  attention_gradients d{tensor(q.size(), 0.0), tensor(k.size(), 0.0), tensor(v.size(), 0.0)};
  for (size_t b = 0; b < n.batch; ++b)
    for (size_t h = 0; h < n.heads; ++h)
      for (size_t t = 0; t < n.seq; ++t) {
        const size_t q_at = n.q_at(b, t, h);
        const tensor p = attention_weights(q, k, n, b, t, h);
        tensor dp(t + 1);
        for (size_t s = 0; s <= t; ++s) dp[s] = dot(dy, q_at, v, n.kv_at(b, s, h), n.head_dim);
        const double mean_dp = dot(p, 0, dp, 0, t + 1);
        for (size_t s = 0; s <= t; ++s) {
          const size_t kv_at = n.kv_at(b, s, h);
          const double dscore = p[s] * (dp[s] - mean_dp);
          for (size_t i = 0; i < n.head_dim; ++i) {
            d.q[q_at + i] += n.scale() * dscore * k[kv_at + i];
            d.k[kv_at + i] += n.scale() * dscore * q[q_at + i];
            d.v[kv_at + i] += p[s] * dy[q_at + i];
          }
        }
      }
  return d;
}

// --- SwiGLU: y = silu(gate) · up, silu(x) = x · sigmoid(x) -----------------------------------------------------------

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

inline tensor swiglu(const tensor& gate, const tensor& up) {
  tensor y(gate.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  return y;
}

struct swiglu_gradients {
  tensor gate, up;
};

/// silu'(x) = sigmoid(x) + x · sigmoid(x) · (1 - sigmoid(x)).
inline swiglu_gradients swiglu_backward(const tensor& dy, const tensor& gate, const tensor& up) {
  swiglu_gradients d{tensor(dy.size()), tensor(dy.size())};
  for (size_t i = 0; i < dy.size(); ++i) {
    const double s = sigmoid(gate[i]);
    d.gate[i] = dy[i] * up[i] * (s + gate[i] * s * (1.0 - s));
    d.up[i] = dy[i] * gate[i] * s;
  }
  return d;
}

// --- GELU, tanh form: y = x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x³) ------------------------------------

inline double gelu_inner(double x) { return std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x); }

inline tensor gelu_tanh(const tensor& x) {
  tensor y(x.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = 0.5 * x[i] * (1.0 + std::tanh(gelu_inner(x[i])));
  return y;
}

/// dy/dx = (1 + tanh(u)) / 2 + x (1 - tanh²(u)) u' / 2.
inline tensor gelu_tanh_backward(const tensor& dy, const tensor& x) {
  tensor dx(x.size());
  for (size_t i = 0; i < dx.size(); ++i) {
    const double t = std::tanh(gelu_inner(x[i]));
    const double slope = std::sqrt(2.0 / std::acos(-1.0)) * (1.0 + 3.0 * 0.044715 * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1.0 + t) + 0.5 * x[i] * (1.0 - t * t) * slope);
  }
  return dx;
}

// --- Embedding: row t of the result is row tokens[t] of table[vocab,d] -----------------------------------------------

inline tensor embedding(const std::vector<int>& tokens, const tensor& table, size_t d) {
  tensor y(tokens.size() * d);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (size_t i = 0; i < d; ++i) y[t * d + i] = table[static_cast<size_t>(tokens[t]) * d + i];
  return y;
}

inline tensor embedding_backward(const tensor& dy, const std::vector<int>& tokens, size_t vocab, size_t d) {
  tensor dtable(vocab * d, 0.0);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (size_t i = 0; i < d; ++i) dtable[static_cast<size_t>(tokens[t]) * d + i] += dy[t * d + i];
  return dtable;
}

// --- Cross-entropy in nats of logits[n,vocab], the mean over targets != -100; NaN when there are none (as PyTorch) ---

inline double counted_targets(const std::vector<int>& targets) {
  const auto ignored = std::count(targets.begin(), targets.end(), ignored_target);
  return static_cast<double>(targets.size()) - static_cast<double>(ignored);
}

inline double cross_entropy(const tensor& logits, const std::vector<int>& targets, size_t vocab) {
  double sum = 0.0;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == ignored_target) continue;
    const double* row = &logits[t * vocab];
    const double largest = *std::max_element(row, row + vocab);
    double exponentials = 0.0;
    for (size_t i = 0; i < vocab; ++i) exponentials += std::exp(row[i] - largest);
    sum += largest + std::log(exponentials) - row[targets[t]];
  }
  return sum / counted_targets(targets);
}

/// Gradient with respect to the logits: (softmax - one_hot(target)) / count, and zero for ignored targets.
inline tensor cross_entropy_backward(const tensor& logits, const std::vector<int>& targets, size_t vocab) {
  const double count = counted_targets(targets);
  tensor d(logits.size(), 0.0);
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == ignored_target) continue;
    const tensor p = softmax(tensor(&logits[t * vocab], &logits[t * vocab] + vocab));
    for (size_t i = 0; i < vocab; ++i) d[t * vocab + i] = p[i] / count;
    d[t * vocab + static_cast<size_t>(targets[t])] -= 1.0 / count;
  }
  return d;
}

}  // namespace rotoscale::oracle
