// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Forward and backward pass of a model: a fixed list of operations, so that graphs can record it.
#pragma once

#include "rotoscale/llama/model_cache.hpp"
#include "rotoscale/llama/model_class.hpp"
#include "rotoscale/llama/model_head.hpp"
#include "rotoscale/llama/model_layout.hpp"
#include "rotoscale/llama/model_statistics.hpp"

namespace rotoscale::llama {

inline std::vector<float> model::download(nn::queue q, const float* from, index_t count) const {
  std::vector<float> host(static_cast<std::size_t>(count));
  ops_->download(q, host.data(), from, host.size() * sizeof(float));
  ops_->synchronize(q);
  return host;
}

inline std::vector<float> model::values(nn::queue q, std::size_t number, index_t first_row, index_t rows) const {
  const parameter& p = parameters_[number];
  if (source(number).empty()) throw std::logic_error(p.name() + ": only its quantized operands are kept");
  return download(q, gain(number) + first_row * p.cols, rows * p.cols);
}

inline void model::load(const nn::pass& p, std::size_t number, index_t first, std::span<const float> values) {
  parameter& into = parameters_[number];
  const index_t end = first + static_cast<index_t>(values.size());
  ROTOSCALE_ASSERT(first >= 0 && end <= into.size());
  const bool kept = !sources_[number].empty();
  float* const at = kept ? const_cast<float*>(gain(number)) : staging_;
  ops_->upload(p.queue, at + first, values.data(), values.size_bytes());
  if (end == into.size()) ++into.version;
  if (end == into.size() && !kept) {
    std::size_t i = 0;
    for_each_linear([&](const nn::linear& l, std::size_t own) {
      if (own == number) {
        quantize_weight(p, i, l, dense(staging_, into));
        prepared_[i] = {into.version, true};
      }
      ++i;
    });
  }
  ops_->synchronize(p.queue);
}

inline void model::release_weights() {
  for_each_linear([](nn::linear& l, std::size_t) { l.release_weights(); });
}

inline void model::void_weights() {
  for (std::size_t i = 0; i < weights_.size(); ++i) prepared_[i].valid &= !weights_[i].has_source;
}

/// A frozen weight is quantized once, so its FP8 scale is not delayed. Without a backward pass, scales are those of the
/// training run.
inline void model::quantize_weight(const nn::pass& p, std::size_t i, const nn::linear& l,
                                   nn::const_tensor_view source) const {
  const bool frozen_fp8 = options_.training && !l.shape().trains && weights_[i].request.has_fp8();
  if (!frozen_fp8) return l.quantize_weights(p, source);
  nn::quantize_frozen(p, *l.weights(), source, scales_.entry(l.shape().layer, nn::tensor_role::w), weights_[i].fp8);
}

inline void model::requantize(const nn::pass& p) {
  std::size_t i = 0;
  for_each_linear([&](const nn::linear& l, std::size_t number) {
    const parameter& w = parameters_[number];
    prepared& now = prepared_[i++];
    if (now.valid && now.version == w.version) return;
    if (sources_[number].empty()) {
      throw std::logic_error(w.name() + ": must be loaded again, only its operands of another recipe were kept");
    }
    quantize_weight(p, static_cast<std::size_t>(&now - prepared_.data()), l, sources_[number]);
    now = {w.version, true};
  });
}

inline nn::attention_tensors model::attention_of(const nn::pass& p, const layer& l) const {
  const index_t q = config_.query_size(), kv = config_.key_value_size(), dim = config_.head_size();
  const auto part = [&](const nn::tensor_view& x, index_t first, index_t heads) {
    return nn::as_heads(x.part(1, first, heads * dim), options_.batch, heads, dim);
  };
  const bool kept = options_.cache != 0;
  const nn::tensor_view from = kept ? l.cache.part(0, 0, p.past + options_.sequence) : l.qkv_out;
  return {part(l.qkv_out, 0, config_.num_attention_heads),
          part(from, kept ? 0 : q, config_.num_key_value_heads),
          part(from, kept ? kv : q + kv, config_.num_key_value_heads),
          part(l.attended, 0, config_.num_attention_heads),
          l.lse,
          starts_};
}

/// From the normed and quantized input to the quantized input of the output projection.
inline void model::run_attention(const nn::pass& p, const layer& l) const {
  observe_inputs(p, l.qkv, l.numbers.qkv, l.normed1);
  l.qkv.forward(p, l.normed1, l.qkv_out);
  const index_t q = config_.query_size(), kv = config_.key_value_size(), dim = config_.head_size();
  const auto heads = [&](index_t first, index_t count) {
    return nn::as_heads(l.qkv_out.part(1, first, count), options_.batch, count / dim, dim);
  };
  const index_t place = p.past * dim / 2;
  ops_->rope_both(p.queue, {cosine_ + place, sine_ + place, false}, {heads(0, q), heads(q, kv)});
  if (options_.cache != 0) keep_keys(p, l);
  const nn::attention_tensors t = attention_of(p, l);
  ops_->attention_forward(p.queue, {t.q, t.k, t.v, t.starts, attention_, p.state}, {t.o, t.lse});
  ops_->quantize(p.queue, {l.attended, p.state}, {l.o.input_target(p)});
}

/// middle = branch + input, its norm, and the norm's operands.
inline void model::join_attention(const nn::pass& p, const layer& l) const {
  ops_->residual_norm(p.queue, {branch_, l.input, gain(l.numbers.norm2), epsilon(), p.state},
                      {l.middle, l.normed2, l.rstd2, l.gate_up.input_target(p)});
}

/// From the normed and quantized stream to the quantized input of the down projection.
inline void model::run_mlp(const nn::pass& p, const layer& l) const {
  observe_inputs(p, l.gate_up, l.numbers.gate_up, l.normed2);
  l.gate_up.forward(p, l.normed2, l.gate_up_out);
  ops_->activation_quantize(p.queue, {l.gate_up_out, nn::activation::swiglu, p.state},
                            {l.hidden, l.down.input_target(p)});
}

/// From the normed and quantized input to the residual stream after the layer, normed for the next layer.
inline void model::forward_layer(const nn::pass& p, layer& l, const float* next_gain, nn::tensor_view output,
                                 nn::tensor_view normed, float* rstd, const nn::quantize_target& to) {
  // middle = input + o(attention(norm(input))).
  run_attention(p, l);
  observe_inputs(p, l.o, l.numbers.o, l.attended);
  l.o.forward(p, l.attended, branch_);
  join_attention(p, l);
  // output = middle + down(swiglu(norm(middle))).
  run_mlp(p, l);
  observe_inputs(p, l.down, l.numbers.down, l.hidden);
  l.down.forward(p, l.hidden, branch_);
  ops_->residual_norm(p.queue, {branch_, l.middle, next_gain, epsilon(), p.state}, {output, normed, rstd, to});
  if (!p.training) return;
  for (const auto& x : l.packed) ops_->quantize(p.queue, {x.whole, p.state}, {{x.set.get(), true, false, {}}});
}

/// Unpacks or recomputes activations that the forward pass did not save. Recording amax again does not change it.
inline void model::restore_layer(nn::pass p, const layer& l) const {
  p.observe = false;
  for (const auto& x : l.packed) ops_->dequantize(p.queue, {{x.set.get(), nn::operand_form::row}}, {x.whole});
  const auto norm = [&](nn::const_tensor_view x, std::size_t number, nn::tensor_view y, float* rstd,
                        const nn::linear& consumer) {
    ops_->residual_norm(p.queue, {x, {}, gain(number), epsilon(), p.state}, {{}, y, rstd, consumer.input_target(p)});
  };
  const bool made_again = options_.recompute == recompute_part::elementwise;
  // Adapters keep tensors made from x. The product of their layer is not needed.
  if (made_again || recomputes(recompute_part::attention)) {
    norm(l.input, l.numbers.norm1, l.normed1, l.rstd1, l.qkv);
  }
  if (recomputes(recompute_part::attention)) {
    run_attention(p, l);
    if (options_.recompute == recompute_part::attention) l.o.forward_adapters(p, l.attended, branch_);
  }
  if (options_.recompute == recompute_part::layer) {
    l.o.forward(p, l.attended, branch_);
    join_attention(p, l);
  }
  if (made_again || options_.recompute == recompute_part::mlp) {
    norm(l.middle, l.numbers.norm2, l.normed2, l.rstd2, l.gate_up);
  }
  if (made_again)
    ops_->activation_quantize(p.queue, {l.gate_up_out, nn::activation::swiglu, p.state},
                              {l.hidden, l.down.input_target(p)});
  if (recomputes(recompute_part::mlp)) {
    run_mlp(p, l);
    l.down.forward_adapters(p, l.hidden, branch_);
  }
}

inline void model::run_decoder(const nn::pass& p, const nn::token_source& tokens) {
  layer& first = layers_.front();
  ops_->embedding_forward(p.queue, {tokens, source(parameters_.embedding()), p.state}, {first.input});
  ops_->residual_norm(p.queue, {first.input, {}, gain(first.numbers.norm1), epsilon(), p.state},
                      {{}, first.normed1, first.rstd1, first.qkv.input_target(p)});
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (i + 1 < layers_.size()) {
      layer& next = layers_[i + 1];
      forward_layer(p, layers_[i], gain(next.numbers.norm1), next.input, next.normed1, next.rstd1,
                    next.qkv.input_target(p));
    } else {
      forward_layer(p, layers_[i], gain(parameters_.norm()), last_, normed_, rstd_, {});
    }
  }
}

inline nn::head_args model::head_arguments(const nn::pass& p, const nn::token_source& targets) const {
  nn::head_args a;
  a.x = normed_;
  a.chunks = head_chunks_;
  a.w = head_.weights();
  for (const nn::gemm_kind g : {nn::gemm_kind::fprop, nn::gemm_kind::dgrad, nn::gemm_kind::wgrad}) {
    a.contracts[static_cast<int>(g)] = &head_.contract(g);
  }
  a.logits = logits_;
  a.dlogits = head_dlogits_;
  a.targets = targets;
  a.loss = loss_;
  a.gradients = p.training;
  a.dx = branch_;
  a.dw = gradient(parameters_.head());
  a.dx_output = head_recipe_.dgrad.output;
  a.x_scaling = head_.scaling(p, nn::tensor_role::x, p.training);
  a.dlogits_scaling = head_.scaling(p, nn::tensor_role::dy, true);
  a.keeps_dlogits = p.observe;
  return a;
}

inline void model::forward(const nn::pass& p, const nn::token_source& tokens, const nn::token_source& targets) {
  if (p.observe) {
    ops_->fill_zero(p.queue, statistics_, static_cast<std::size_t>(observed_count()) * sizeof(linear_statistics));
  }
  run_decoder(p, tokens);
  if (p.observe) {
    observe_head_loss(p, head_arguments(p, targets));
  } else {
    nn::head_loss(*ops_, p.queue, head_arguments(p, targets), p.state);
  }
  if (p.training) fill_gradients(p.queue, lent_first_, lent_count_);
}

template <class Use>
void model::logits(const nn::pass& p, const nn::token_source& tokens, index_t first, index_t count, const Use& use) {
  run_decoder(p, tokens);
  for (const nn::head_chunk& chunk : head_chunks_) {
    const index_t from = std::max(first, chunk.first), to = std::min(first + count, chunk.first + chunk.count);
    if (from >= to) continue;
    const nn::scaling_ref scaling = head_.scaling(p, nn::tensor_role::x, false);
    ops_->quantize(p.queue, {normed_.part(0, chunk.first, chunk.count), p.state}, {{chunk.x, true, false, scaling}});
    const nn::tensor_view all = logits_.part(0, 0, chunk.count);
    ops_->gemm(p.queue,
               {{chunk.x, nn::operand_form::row},
                {head_.weights(), nn::operand_form::row},
                head_.contract(nn::gemm_kind::fprop),
                nn::operand_format::fp32,
                false},
               {all});
    use(nn::const_tensor_view(all.part(0, from - chunk.first, to - from)));
  }
}

/// Recomputes wgrad's x for statistics if only its operands were saved. Writes the last norm's rstd, which is free by
/// then: the backward pass still reads the layer's rstd, and an x saved in 8 bits gives another one.
inline void model::norm_again(const nn::pass& p, nn::const_tensor_view x, const float* gain, nn::tensor_view y) const {
  if (p.observe && y.data == normed_.data) ops_->rmsnorm_forward(p.queue, {x, gain, epsilon()}, {y, rstd_});
}

inline void model::backward_layer(const nn::pass& p, layer& l) {
  const nn::tensor_view d = d_residual_;
  restore_layer(p, l);
  // MLP. d (tokens, hidden): gradient of the layer's output, and of `middle` through the residual.
  ops_->quantize(p.queue, {d, p.state}, {l.down.gradient_target(p)});
  if (p.observe && l.hidden.data == hidden_.data)
    ops_->activation_forward(p.queue, {l.gate_up_out, nn::activation::swiglu}, {hidden_again(l)});
  backward_linear(p, l, layer_linear::down, hidden_again(l), d, d_hidden_);
  ops_->activation_backward_quantize(p.queue, {d_hidden_, l.gate_up_out, nn::activation::swiglu, p.state},
                                     {d_gate_up_, l.gate_up.gradient_target(p)});
  norm_again(p, l.middle, gain(l.numbers.norm2), l.normed2);
  backward_linear(p, l, layer_linear::gate_up, l.normed2, d_gate_up_, branch_);
  ops_->rmsnorm_backward(p.queue, {branch_, l.middle, gain(l.numbers.norm2), l.rstd2},
                         {d, gain_gradient(l.numbers.norm2)});
  // Attention.
  ops_->quantize(p.queue, {d, p.state}, {l.o.gradient_target(p)});
  backward_linear(p, l, layer_linear::o, l.attended, d, d_attended_);
  const index_t q = config_.query_size(), kv = config_.key_value_size(), dim = config_.head_size();
  const auto heads = [&](const nn::tensor_view& x, index_t first, index_t count) {
    return nn::as_heads(x.part(1, first, count), options_.batch, count / dim, dim);
  };
  const nn::attention_tensors t = attention_of(p, l);
  ops_->attention_backward(p.queue,
                           {t.q, t.k, t.v, t.o, t.lse, heads(d_attended_, 0, q), t.starts, attention_, p.state},
                           {heads(d_qkv_, 0, q), heads(d_qkv_, q, kv), heads(d_qkv_, q + kv, kv)});
  ops_->rope_both(p.queue, {cosine_, sine_, true}, {heads(d_qkv_, 0, q), heads(d_qkv_, q, kv)});
  ops_->quantize(p.queue, {d_qkv_, p.state}, {l.qkv.gradient_target(p)});
  norm_again(p, l.input, gain(l.numbers.norm1), l.normed1);
  backward_linear(p, l, layer_linear::qkv, l.normed1, d_qkv_, branch_);
  ops_->rmsnorm_backward(p.queue, {branch_, l.input, gain(l.numbers.norm1), l.rstd1},
                         {d, gain_gradient(l.numbers.norm1)});
}

inline void model::backward(const nn::pass& p, const nn::token_source& tokens, const gradients_ready& ready) {
  const auto tell = [&](std::size_t first, std::size_t last) {  // parameters [first, last) of the list
    index_t begin = -1, end = 0;
    for (std::size_t i = first; i < last; ++i) {
      const parameter& w = parameters_[i];
      if (!w.trains) continue;
      begin = begin < 0 ? w.offset : begin;
      end = w.offset + w.size();
    }
    if (ready && begin >= 0) ready(begin, end - begin);
  };
  ops_->fill_zero(p.queue, d_residual_.data, static_cast<std::size_t>(d_residual_.size() * size_of(stored_)));
  ops_->rmsnorm_backward(p.queue, {branch_, last_, gain(parameters_.norm()), rstd_},
                         {d_residual_, gain_gradient(parameters_.norm())});
  tell(parameters_.norm(), parameters_.base_count());
  for (std::size_t i = layers_.size(); i-- > 0;) {
    backward_layer(p, layers_[i]);
    tell(layers_[i].numbers.norm1, layers_[i].numbers.down + 1);
    tell(layers_[i].numbers.first_adapter, layers_[i].numbers.last_adapter);
  }
  const nn::tensor_view table = gradient(parameters_.embedding());
  if (!table.empty()) ops_->embedding_backward(p.queue, {tokens, d_residual_, p.state}, {table});
  tell(0, 1);
}

}  // namespace rotoscale::llama
