// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A whole GPT-2 in double precision, on reference_layers.hpp: logits, loss and hand-written backpropagation. Parameters
// have the names and shapes of transformers' GPT2LMHeadModel: the matrices of Conv1D layers are [in, out].
#pragma once

#include "reference_llama.hpp"

namespace rotoscale::oracle::gpt2 {

/// The relevant fields of Hugging Face's config.json, with the same names. n_inner is 4 n_embd.
struct config {
  int vocab_size, n_positions, n_embd, n_layer, n_head;
  double layer_norm_epsilon = 1e-5;
};

inline std::string layer_prefix(int layer) { return "transformer.h." + std::to_string(layer) + "."; }

/// Every parameter's name and shape.
inline std::map<std::string, std::vector<int>> parameter_shapes(const config& c) {
  const int d = c.n_embd;
  std::map<std::string, std::vector<int>> shapes;
  shapes["transformer.wte.weight"] = {c.vocab_size, d};
  shapes["transformer.wpe.weight"] = {c.n_positions, d};
  const auto norm = [&](const std::string& name) { shapes[name + ".weight"] = shapes[name + ".bias"] = {d}; };
  const auto conv = [&](const std::string& name, int in, int out) {
    shapes[name + ".weight"] = {in, out};
    shapes[name + ".bias"] = {out};
  };
  for (int layer = 0; layer < c.n_layer; ++layer) {
    const std::string prefix = layer_prefix(layer);
    norm(prefix + "ln_1");
    conv(prefix + "attn.c_attn", d, 3 * d);
    conv(prefix + "attn.c_proj", d, d);
    norm(prefix + "ln_2");
    conv(prefix + "mlp.c_fc", d, 4 * d);
    conv(prefix + "mlp.c_proj", 4 * d, d);
  }
  norm("transformer.ln_f");
  return shapes;
}

/// [out, in] of a matrix [in, out].
inline tensor transposed(const tensor& w, size_t in, size_t out) {
  tensor t(w.size());
  for (size_t i = 0; i < in; ++i)
    for (size_t o = 0; o < out; ++o) t[o * in + i] = w[i * out + o];
  return t;
}

/// y[n,out] = x[n,in] · w[in,out] + b.
inline tensor conv1d(const tensor_map& params, const std::string& name, const tensor& x, size_t in, size_t out) {
  const tensor w = transposed(params.at(name + ".weight"), in, out);
  return add_table(linear(x, w, in, out), params.at(name + ".bias"));
}

/// Stores the gradients of weight and bias, and returns the gradient of x.
inline tensor conv1d_backward(const tensor_map& params, const std::string& name, const tensor& dy, const tensor& x,
                              size_t in, size_t out, tensor_map& grads) {
  const auto d = linear_backward(dy, x, transposed(params.at(name + ".weight"), in, out), in, out);
  grads[name + ".weight"] = transposed(d.w, out, in);
  grads[name + ".bias"] = table_backward(dy, out);
  return d.x;
}

inline tensor norm(const config& c, const tensor_map& params, const std::string& name, const tensor& x) {
  return layernorm(x, params.at(name + ".weight"), params.at(name + ".bias"), c.layer_norm_epsilon);
}

inline tensor norm_backward(const config& c, const tensor_map& params, const std::string& name, const tensor& dy,
                            const tensor& x, tensor_map& grads) {
  auto d = layernorm_backward(dy, x, params.at(name + ".weight"), c.layer_norm_epsilon);
  grads[name + ".weight"] = d.weight;
  grads[name + ".bias"] = d.bias;
  return d.x;
}

/// Saved activations of a layer.
struct layer_activations {
  tensor input, attention_input, q, k, v, attended;
  tensor middle, mlp_input, inner, activated;
  tensor output;
};

struct activations {
  std::vector<layer_activations> layers;
  tensor last, normed, logits;
};

inline attention_shape heads_of(const config& c, int B, int T) {
  const auto heads = static_cast<size_t>(c.n_head);
  return {static_cast<size_t>(B), static_cast<size_t>(T), heads, heads, static_cast<size_t>(c.n_embd) / heads};
}

/// middle = input + attention(ln_1(input)), output = middle + mlp(ln_2(middle)).
inline layer_activations layer_forward(const config& c, const tensor_map& params, int layer, const tensor& input, int B,
                                       int T) {
  const std::string at = layer_prefix(layer);
  const auto d = static_cast<size_t>(c.n_embd);
  layer_activations a;
  a.input = input;
  a.attention_input = norm(c, params, at + "ln_1", a.input);
  const tensor qkv = conv1d(params, at + "attn.c_attn", a.attention_input, d, 3 * d);
  a.q = columns(qkv, 3 * d, 0, d);
  a.k = columns(qkv, 3 * d, d, d);
  a.v = columns(qkv, 3 * d, 2 * d, d);
  a.attended = attention(a.q, a.k, a.v, heads_of(c, B, T));
  a.middle = add(a.input, conv1d(params, at + "attn.c_proj", a.attended, d, d));
  a.mlp_input = norm(c, params, at + "ln_2", a.middle);
  a.inner = conv1d(params, at + "mlp.c_fc", a.mlp_input, d, 4 * d);
  a.activated = gelu_tanh(a.inner);
  a.output = add(a.middle, conv1d(params, at + "mlp.c_proj", a.activated, 4 * d, d));
  return a;
}

/// Stores the layer's parameter gradients and returns the gradient with respect to its input.
inline tensor layer_backward(const config& c, const tensor_map& params, int layer, const layer_activations& a,
                             const tensor& doutput, int B, int T, tensor_map& grads) {
  const std::string at = layer_prefix(layer);
  const auto d = static_cast<size_t>(c.n_embd);
  const tensor dactivated = conv1d_backward(params, at + "mlp.c_proj", doutput, a.activated, 4 * d, d, grads);
  const tensor dinner = gelu_tanh_backward(dactivated, a.inner);
  const tensor dmlp = conv1d_backward(params, at + "mlp.c_fc", dinner, a.mlp_input, d, 4 * d, grads);
  const tensor dmiddle = add(doutput, norm_backward(c, params, at + "ln_2", dmlp, a.middle, grads));
  const tensor dattended = conv1d_backward(params, at + "attn.c_proj", dmiddle, a.attended, d, d, grads);
  const auto dheads = attention_backward(dattended, a.q, a.k, a.v, heads_of(c, B, T));
  const tensor dqkv = side_by_side(a.input.size() / d, {&dheads.q, &dheads.k, &dheads.v});
  const tensor dattention = conv1d_backward(params, at + "attn.c_attn", dqkv, a.attention_input, d, 3 * d, grads);
  return add(dmiddle, norm_backward(c, params, at + "ln_1", dattention, a.input, grads));
}

/// The rows of wpe for a sequence of T.
inline tensor positions(const config& c, const tensor_map& params, int T) {
  return part_of(params.at("transformer.wpe.weight"), 0, static_cast<size_t>(T * c.n_embd));
}

inline activations forward(const config& c, const tensor_map& params, const std::vector<int>& tokens, int B, int T) {
  const auto d = static_cast<size_t>(c.n_embd), vocab = static_cast<size_t>(c.vocab_size);
  const tensor& wte = params.at("transformer.wte.weight");
  activations a;
  a.last = add_table(embedding(tokens, wte, d), positions(c, params, T));
  for (int layer = 0; layer < c.n_layer; ++layer) {
    a.layers.push_back(layer_forward(c, params, layer, a.last, B, T));
    a.last = a.layers.back().output;
  }
  a.normed = norm(c, params, "transformer.ln_f", a.last);
  a.logits = linear(a.normed, wte, d, vocab);
  return a;
}

/// Row t of the logits is scored against targets[t]. Targets are not shifted here.
inline double loss(const config& c, const tensor_map& params, const std::vector<int>& tokens,
                   const std::vector<int>& targets, int B, int T) {
  return cross_entropy(forward(c, params, tokens, B, T).logits, targets, static_cast<size_t>(c.vocab_size));
}

/// The gradient of loss() with respect to every parameter.
inline tensor_map gradients(const config& c, const tensor_map& params, const std::vector<int>& tokens,
                            const std::vector<int>& targets, int B, int T) {
  const auto d = static_cast<size_t>(c.n_embd), vocab = static_cast<size_t>(c.vocab_size);
  const activations a = forward(c, params, tokens, B, T);
  tensor_map grads;
  const tensor dlogits = cross_entropy_backward(a.logits, targets, vocab);
  const auto head = linear_backward(dlogits, a.normed, params.at("transformer.wte.weight"), d, vocab);
  tensor dx = norm_backward(c, params, "transformer.ln_f", head.x, a.last, grads);
  for (int layer = c.n_layer - 1; layer >= 0; --layer) {
    dx = layer_backward(c, params, layer, a.layers[static_cast<size_t>(layer)], dx, B, T, grads);
  }
  grads["transformer.wte.weight"] = add(head.w, embedding_backward(dx, tokens, vocab, d));
  tensor wpe = table_backward(dx, static_cast<size_t>(T) * d);
  wpe.resize(static_cast<size_t>(c.n_positions) * d, 0.0);
  grads["transformer.wpe.weight"] = wpe;
  return grads;
}

}  // namespace rotoscale::oracle::gpt2
