// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A whole Llama-3-style model in double precision, on reference_layers.hpp: logits, loss, hand-written backpropagation,
// gradient clipping and AdamW. Parameters have Hugging Face's names, so that a checkpoint's tensors fit. Also the
// central difference for checking gradients. The operands of linear layers can be replaced: reference_recipe.hpp
// quantizes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference_layers.hpp"

namespace rotoscale::oracle {

using tensor_map = std::map<std::string, tensor>;

/// The relevant fields of Hugging Face's config.json, with the same names.
struct config {
  int vocab_size, hidden_size, intermediate_size, num_hidden_layers;
  int num_attention_heads, num_key_value_heads, head_dim;
  double rms_norm_eps, rope_theta;
  bool tie_word_embeddings = false;
  std::optional<oracle::rope_scaling> rope_scaling = {};
};

// --- Parameters ------------------------------------------------------------------------------------------------------

inline std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }

/// With tied embeddings, the embedding matrix is also the output head.
inline std::string head_name(const config& c) {
  return c.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
}

/// Every parameter's name and shape; a matrix is [out, in].
inline std::map<std::string, std::vector<int>> parameter_shapes(const config& c) {
  const int q_size = c.num_attention_heads * c.head_dim, kv_size = c.num_key_value_heads * c.head_dim;
  std::map<std::string, std::vector<int>> shapes;
  shapes["model.embed_tokens.weight"] = {c.vocab_size, c.hidden_size};
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    const std::string prefix = layer_prefix(layer);
    shapes[prefix + "input_layernorm.weight"] = {c.hidden_size};
    shapes[prefix + "self_attn.q_proj.weight"] = {q_size, c.hidden_size};
    shapes[prefix + "self_attn.k_proj.weight"] = {kv_size, c.hidden_size};
    shapes[prefix + "self_attn.v_proj.weight"] = {kv_size, c.hidden_size};
    shapes[prefix + "self_attn.o_proj.weight"] = {c.hidden_size, q_size};
    shapes[prefix + "post_attention_layernorm.weight"] = {c.hidden_size};
    shapes[prefix + "mlp.gate_proj.weight"] = {c.intermediate_size, c.hidden_size};
    shapes[prefix + "mlp.up_proj.weight"] = {c.intermediate_size, c.hidden_size};
    shapes[prefix + "mlp.down_proj.weight"] = {c.hidden_size, c.intermediate_size};
  }
  shapes["model.norm.weight"] = {c.hidden_size};
  shapes[head_name(c)] = {c.vocab_size, c.hidden_size};
  return shapes;
}

/// Rejects misspelt names and wrong shapes, which would look like numerical differences.
inline void check_inputs(const config& c, const tensor_map& params, const std::vector<int>& tokens, int B, int T) {
  const auto shapes = parameter_shapes(c);
  for (const auto& [name, shape] : shapes) {
    size_t size = 1;
    for (const int extent : shape) size *= static_cast<size_t>(extent);
    const auto found = params.find(name);
    if (found == params.end()) throw std::invalid_argument("oracle: no parameter " + name);
    if (found->second.size() != size) throw std::invalid_argument("oracle: wrong size of parameter " + name);
  }
  for (const auto& entry : params)
    if (!shapes.count(entry.first)) throw std::invalid_argument("oracle: unknown parameter " + entry.first);
  if (tokens.size() != static_cast<size_t>(B) * static_cast<size_t>(T))
    throw std::invalid_argument("oracle: there must be B*T tokens");
  for (const int token : tokens)
    if (token < 0 || token >= c.vocab_size) throw std::invalid_argument("oracle: token outside the vocabulary");
}

// --- Linear layers: one for query, key and value, one for gate and up
// -------------------------------------------------

/// The GEMMs of linear layer `number`: 4 · decoder layer + {0 qkv, 1 o, 2 gate and up, 3 down}, the head last.
struct linear_gemms {
  virtual ~linear_gemms() = default;
  virtual tensor forward(size_t, const tensor& x, const tensor& w, size_t in, size_t out) const {
    return linear(x, w, in, out);
  }
  virtual linear_gradients backward(size_t, const tensor& dy, const tensor& x, const tensor& w, size_t in,
                                    size_t out) const {
    return linear_backward(dy, x, w, in, out);
  }
};

inline tensor joined(std::initializer_list<const tensor*> rows) {
  tensor all;
  for (const tensor* t : rows) all.insert(all.end(), t->begin(), t->end());
  return all;
}

/// Columns [first, first + count) of x[n, width].
inline tensor columns(const tensor& x, size_t width, size_t first, size_t count) {
  tensor part;
  for (size_t r = 0; r < x.size() / width; ++r)
    for (size_t i = first; i < first + count; ++i) part.push_back(x[r * width + i]);
  return part;
}

/// Concatenates matrices of n rows along columns.
inline tensor side_by_side(size_t n, std::initializer_list<const tensor*> parts) {
  tensor all;
  for (size_t r = 0; r < n; ++r)
    for (const tensor* t : parts)
      for (size_t i = 0; i < t->size() / n; ++i) all.push_back((*t)[r * (t->size() / n) + i]);
  return all;
}

inline tensor part_of(const tensor& x, size_t first, size_t count) { return tensor(&x[first], &x[first] + count); }

// --- One decoder layer: middle = input + attention(norm(input)), output = middle + mlp(norm(middle)) -----------------

/// The sizes of the layers.
struct dimensions {
  size_t vocab, hidden, inner, q_size, kv_size;
  attention_shape heads;
  tensor frequencies;

  dimensions(const config& c, int B, int T)
      : vocab(c.vocab_size),
        hidden(c.hidden_size),
        inner(c.intermediate_size),
        q_size(c.num_attention_heads * c.head_dim),
        kv_size(c.num_key_value_heads * c.head_dim),
        heads{static_cast<size_t>(B), static_cast<size_t>(T), static_cast<size_t>(c.num_attention_heads),
              static_cast<size_t>(c.num_key_value_heads), static_cast<size_t>(c.head_dim)},
        frequencies(rope_frequencies(heads.head_dim, c.rope_theta, c.rope_scaling)) {}
};

inline tensor add(tensor x, const tensor& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}

/// Saved activations; q and k are after RoPE.
struct layer_activations {
  tensor input, attention_input, q, k, v, attended;
  tensor middle, mlp_input, gate, up, activated;
  tensor output;
};

inline layer_activations layer_forward(const config& c, const dimensions& n, const tensor_map& params,
                                       const linear_gemms& gemms, size_t layer, const tensor& input) {
  const std::string prefix = layer_prefix(static_cast<int>(layer));
  const auto weight = [&](const char* name) -> const tensor& { return params.at(prefix + name + ".weight"); };
  const size_t T = n.heads.seq, D = n.heads.head_dim;
  layer_activations a;
  a.input = input;
  a.attention_input = rmsnorm(a.input, weight("input_layernorm"), c.rms_norm_eps);
  const size_t qkv_size = n.q_size + 2 * n.kv_size;
  const tensor qkv_weight =
      joined({&weight("self_attn.q_proj"), &weight("self_attn.k_proj"), &weight("self_attn.v_proj")});
  const tensor qkv = gemms.forward(4 * layer, a.attention_input, qkv_weight, n.hidden, qkv_size);
  a.q = columns(qkv, qkv_size, 0, n.q_size);
  a.k = columns(qkv, qkv_size, n.q_size, n.kv_size);
  a.v = columns(qkv, qkv_size, n.q_size + n.kv_size, n.kv_size);
  a.q = rope(a.q, T, n.heads.heads, D, n.frequencies);
  a.k = rope(a.k, T, n.heads.kv_heads, D, n.frequencies);
  a.attended = attention(a.q, a.k, a.v, n.heads);
  a.middle = add(a.input, gemms.forward(4 * layer + 1, a.attended, weight("self_attn.o_proj"), n.q_size, n.hidden));

  a.mlp_input = rmsnorm(a.middle, weight("post_attention_layernorm"), c.rms_norm_eps);
  const tensor gate_up_weight = joined({&weight("mlp.gate_proj"), &weight("mlp.up_proj")});
  const tensor gate_up = gemms.forward(4 * layer + 2, a.mlp_input, gate_up_weight, n.hidden, 2 * n.inner);
  a.gate = columns(gate_up, 2 * n.inner, 0, n.inner);
  a.up = columns(gate_up, 2 * n.inner, n.inner, n.inner);
  a.activated = swiglu(a.gate, a.up);
  a.output = add(a.middle, gemms.forward(4 * layer + 3, a.activated, weight("mlp.down_proj"), n.inner, n.hidden));
  return a;
}

/// Stores the layer's parameter gradients and returns the gradient with respect to its input.
inline tensor layer_backward(const config& c, const dimensions& n, const tensor_map& params, const linear_gemms& gemms,
                             size_t layer, const layer_activations& a, const tensor& doutput, tensor_map& grads) {
  const std::string prefix = layer_prefix(static_cast<int>(layer));
  const auto weight = [&](const char* name) -> const tensor& { return params.at(prefix + name + ".weight"); };
  const auto grad = [&](const char* name) -> tensor& { return grads[prefix + name + ".weight"]; };
  const size_t T = n.heads.seq, D = n.heads.head_dim, tokens = n.heads.batch * T;

  const auto down = gemms.backward(4 * layer + 3, doutput, a.activated, weight("mlp.down_proj"), n.inner, n.hidden);
  const auto act = swiglu_backward(down.x, a.gate, a.up);
  const tensor gate_up_weight = joined({&weight("mlp.gate_proj"), &weight("mlp.up_proj")});
  const auto gate_up = gemms.backward(4 * layer + 2, side_by_side(tokens, {&act.gate, &act.up}), a.mlp_input,
                                      gate_up_weight, n.hidden, 2 * n.inner);
  const auto mlp_norm = rmsnorm_backward(gate_up.x, a.middle, weight("post_attention_layernorm"), c.rms_norm_eps);
  const tensor dmiddle = add(doutput, mlp_norm.x);

  const auto o = gemms.backward(4 * layer + 1, dmiddle, a.attended, weight("self_attn.o_proj"), n.q_size, n.hidden);
  const auto att = attention_backward(o.x, a.q, a.k, a.v, n.heads);
  const tensor dq = rope_backward(att.q, T, n.heads.heads, D, n.frequencies);
  const tensor dk = rope_backward(att.k, T, n.heads.kv_heads, D, n.frequencies);
  const tensor qkv_weight =
      joined({&weight("self_attn.q_proj"), &weight("self_attn.k_proj"), &weight("self_attn.v_proj")});
  const auto qkv = gemms.backward(4 * layer, side_by_side(tokens, {&dq, &dk, &att.v}), a.attention_input, qkv_weight,
                                  n.hidden, n.q_size + 2 * n.kv_size);
  const auto attention_norm = rmsnorm_backward(qkv.x, a.input, weight("input_layernorm"), c.rms_norm_eps);

  const size_t q_weights = n.q_size * n.hidden, kv_weights = n.kv_size * n.hidden, inner_weights = n.inner * n.hidden;
  grad("mlp.down_proj") = down.w;
  grad("mlp.gate_proj") = part_of(gate_up.w, 0, inner_weights);
  grad("mlp.up_proj") = part_of(gate_up.w, inner_weights, inner_weights);
  grad("post_attention_layernorm") = mlp_norm.weight;
  grad("self_attn.o_proj") = o.w;
  grad("self_attn.q_proj") = part_of(qkv.w, 0, q_weights);
  grad("self_attn.k_proj") = part_of(qkv.w, q_weights, kv_weights);
  grad("self_attn.v_proj") = part_of(qkv.w, q_weights + kv_weights, kv_weights);
  grad("input_layernorm") = attention_norm.weight;
  return add(dmiddle, attention_norm.x);
}

// --- The model -------------------------------------------------------------------------------------------------------

struct activations {
  tensor embedded;
  std::vector<layer_activations> layers;
  tensor last, normed, logits;
};

inline size_t head_number(const config& c) { return 4 * static_cast<size_t>(c.num_hidden_layers); }

inline activations forward(const config& c, const tensor_map& params, const std::vector<int>& tokens, int B, int T,
                           const linear_gemms& gemms = {}) {
  check_inputs(c, params, tokens, B, T);
  const dimensions n(c, B, T);
  activations a;
  a.embedded = embedding(tokens, params.at("model.embed_tokens.weight"), n.hidden);
  a.last = a.embedded;
  for (int layer = 0; layer < c.num_hidden_layers; ++layer) {
    a.layers.push_back(layer_forward(c, n, params, gemms, static_cast<size_t>(layer), a.last));
    a.last = a.layers.back().output;
  }
  a.normed = rmsnorm(a.last, params.at("model.norm.weight"), c.rms_norm_eps);
  a.logits = gemms.forward(head_number(c), a.normed, params.at(head_name(c)), n.hidden, n.vocab);
  return a;
}

/// logits[B*T, vocab] of tokens[B*T].
inline tensor logits(const config& c, const tensor_map& params, const std::vector<int>& tokens, int B, int T) {
  return forward(c, params, tokens, B, T).logits;
}

/// Row t of the logits is scored against targets[t]. Targets are not shifted here.
inline double loss(const config& c, const tensor_map& params, const std::vector<int>& tokens,
                   const std::vector<int>& targets, int B, int T, const linear_gemms& gemms = {}) {
  return cross_entropy(forward(c, params, tokens, B, T, gemms).logits, targets, static_cast<size_t>(c.vocab_size));
}

/// The gradient of loss() with respect to every parameter.
inline tensor_map gradients(const config& c, const tensor_map& params, const std::vector<int>& tokens,
                            const std::vector<int>& targets, int B, int T, const linear_gemms& gemms = {}) {
  const activations a = forward(c, params, tokens, B, T, gemms);
  const dimensions n(c, B, T);
  tensor_map grads;
  const tensor dlogits = cross_entropy_backward(a.logits, targets, n.vocab);
  const auto head = gemms.backward(head_number(c), dlogits, a.normed, params.at(head_name(c)), n.hidden, n.vocab);
  const auto norm = rmsnorm_backward(head.x, a.last, params.at("model.norm.weight"), c.rms_norm_eps);
  grads["model.norm.weight"] = norm.weight;
  tensor dx = norm.x;
  for (int layer = c.num_hidden_layers - 1; layer >= 0; --layer)
    dx = layer_backward(c, n, params, gemms, static_cast<size_t>(layer), a.layers[static_cast<size_t>(layer)], dx,
                        grads);
  const tensor lookup = embedding_backward(dx, tokens, n.vocab, n.hidden);
  if (c.tie_word_embeddings) {
    grads["model.embed_tokens.weight"] = add(lookup, head.w);
  } else {
    grads["model.embed_tokens.weight"] = lookup;
    grads["lm_head.weight"] = head.w;
  }
  return grads;
}

// --- Optimizer, with PyTorch's semantics -----------------------------------------------------------------------------

/// torch.nn.utils.clip_grad_norm_: scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the
/// Euclidean norm of all gradients together. Returns the norm before clipping.
inline double clip_grad_norm(tensor_map& grads, double max_norm) {
  double sum = 0.0;
  for (const auto& entry : grads)
    for (const double g : entry.second) sum += g * g;
  const double norm = std::sqrt(sum);
  const double factor = std::min(1.0, max_norm / (norm + 1e-6));
  for (auto& entry : grads)
    for (double& g : entry.second) g *= factor;
  return norm;
}

struct adamw_options {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};

/// torch.optim.AdamW on one parameter. `step` counts from 1; the moments start at zero.
inline void adamw_step(tensor& param, const tensor& grad, tensor& first_moment, tensor& second_moment, int step,
                       const adamw_options& o) {
  const double correction1 = 1.0 - std::pow(o.beta1, step), correction2 = 1.0 - std::pow(o.beta2, step);
  for (size_t i = 0; i < param.size(); ++i) {
    double& m = first_moment[i];
    double& v = second_moment[i];
    m = o.beta1 * m + (1.0 - o.beta1) * grad[i];
    v = o.beta2 * v + (1.0 - o.beta2) * grad[i] * grad[i];
    param[i] *= 1.0 - o.lr * o.weight_decay;
    param[i] -= o.lr * (m / correction1) / (std::sqrt(v / correction2) + o.eps);
  }
}

// --- Checking gradients ----------------------------------------------------------------------------------------------

/// (f(x + h e_i) - f(x - h e_i)) / 2h. Restores x.
inline double central_difference(const std::function<double(std::vector<double>&)>& f, std::vector<double>& x, size_t i,
                                 double h) {
  const double centre = x[i], above = centre + h, below = centre - h;
  x[i] = above;
  const double f_above = f(x);
  x[i] = below;
  const double f_below = f(x);
  x[i] = centre;
  return (f_above - f_below) / (above - below);  // the actual step: the addition may round h
}

}  // namespace rotoscale::oracle
