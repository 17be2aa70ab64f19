// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A Llama-3-style decoder, forward and backward by hand, against nn::backend only. Query, key and value projections
// share one GEMM, as do gate and up (as Transformer Engine runs them); checkpoints hold them as separate tensors. The
// residual stream, norms, RoPE and attention are FP32; linear layers follow the recipe; the head is always BF16.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/llama/config.hpp"
#include "rotoscale/llama/rope_table.hpp"
#include "rotoscale/nn/linear.hpp"

namespace rotoscale::llama {

/// A trainable matrix (or vector: one row), with the slices of it that checkpoints name.
struct parameter {
  struct slice {
    std::string name;  ///< Hugging Face's
    index_t first_row = 0;
    index_t rows = 0;
  };
  std::vector<slice> slices;
  nn::tensor weight, gradient, m, v;
  index_t rows = 0, cols = 0;
  bool is_vector = false;    ///< shape [cols] in checkpoints, no weight decay
  bool scaled_init = false;  ///< writes into the residual stream: std / sqrt(2 layers)

  index_t size() const { return rows * cols; }
};

class model {
 public:
  model(nn::backend& ops, const model_config& config) : ops_(&ops), config_(config) {
    const index_t d = config.hidden_size, f = config.intermediate_size;
    const index_t q = config.query_size(), kv = config.key_value_size();
    parameters_.reserve(static_cast<std::size_t>(6 * config.num_hidden_layers + 3));
    add(config.vocab_size, d, {{"model.embed_tokens.weight"}});
    for (int i = 0; i < config.num_hidden_layers; ++i) {
      const std::string at = "model.layers." + std::to_string(i) + ".";
      const std::string attn = at + "self_attn.", mlp = at + "mlp.";
      add_vector(d, at + "input_layernorm.weight");
      add(q + 2 * kv, d,
          {{attn + "q_proj.weight", 0, q}, {attn + "k_proj.weight", q, kv}, {attn + "v_proj.weight", q + kv, kv}});
      add(d, q, {{attn + "o_proj.weight"}}).scaled_init = true;
      add_vector(d, at + "post_attention_layernorm.weight");
      add(2 * f, d, {{mlp + "gate_proj.weight", 0, f}, {mlp + "up_proj.weight", f, f}});
      add(d, f, {{mlp + "down_proj.weight"}}).scaled_init = true;
    }
    add_vector(d, "model.norm.weight");
    if (!config.tie_word_embeddings) add(config.vocab_size, d, {{"lm_head.weight"}});
    make_layers();
    head_recipe_.fprop.output = nn::number_format::fp32;  // logits go straight into the loss
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;

  const model_config& config() const { return config_; }
  std::vector<parameter>& parameters() { return parameters_; }
  const std::vector<parameter>& parameters() const { return parameters_; }
  index_t linear_count() const { return 4 * config_.num_hidden_layers + 1; }

  index_t parameter_count() const {
    index_t n = 0;
    for (const parameter& p : parameters_) n += p.size();
    return n;
  }

  /// Normal weights, unit norm gains, from a seed: the same on every machine up to the last place of std::log and cos.
  void initialize(std::uint64_t seed) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameter& p = parameters_[i];
      std::vector<float> host(static_cast<std::size_t>(p.size()), 1.0f);
      if (!p.is_vector) {
        const double std_dev =
            config_.initializer_range / (p.scaled_init ? std::sqrt(2.0 * config_.num_hidden_layers) : 1.0);
        const random_stream random = nn::stream_for(seed, nn::random_purpose::initial_weights, i);
        for (std::size_t j = 0; j < host.size(); ++j) {  // Box and Muller
          const double u = (random.word(2 * j) + 0.5) * 0x1p-32;
          const double angle = random.word(2 * j + 1) * (0x1p-32 * 2.0 * 3.14159265358979323846);
          host[j] = static_cast<float>(std_dev * std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
        }
      }
      p.weight.memory().copy_in(host);
    }
  }

  /// Makes room for passes over batch × seq tokens; a change of either allocates anew.
  void reserve(index_t batch, index_t seq) {
    if (batch == batch_ && seq == seq_) return;
    batch_ = batch;
    seq_ = seq;
    const index_t n = batch * seq, d = config_.hidden_size, f = config_.intermediate_size;
    const index_t q = config_.query_size(), qkv = q + 2 * config_.key_value_size();
    for (layer& l : layers_) {
      l.input = nn::tensor(*ops_, n, d);
      l.normed1 = nn::tensor(*ops_, n, d);
      l.rstd1 = nn::buffer<float>(*ops_, n);
      l.qkv = nn::tensor(*ops_, n, qkv);
      l.attended = nn::tensor(*ops_, n, q);
      l.lse = nn::buffer<float>(*ops_, n * config_.num_attention_heads);
      l.middle = nn::tensor(*ops_, n, d);
      l.normed2 = nn::tensor(*ops_, n, d);
      l.rstd2 = nn::buffer<float>(*ops_, n);
      l.gate_up = nn::tensor(*ops_, n, 2 * f);
      l.hidden = nn::tensor(*ops_, n, f);
    }
    last_ = nn::tensor(*ops_, n, d);
    normed_ = nn::tensor(*ops_, n, d);
    rstd_ = nn::buffer<float>(*ops_, n);
    logits_ = nn::tensor(*ops_, n, config_.vocab_size);
    losses_ = nn::buffer<float>(*ops_, n);
    tokens_ = nn::buffer<std::int32_t>(*ops_, n);
    targets_ = nn::buffer<std::int32_t>(*ops_, n);
    branch_ = nn::tensor(*ops_, n, d);
    d_residual_ = nn::tensor(*ops_, n, d);
    d_qkv_ = nn::tensor(*ops_, n, qkv);
    d_attended_ = nn::tensor(*ops_, n, q);
    d_gate_up_ = nn::tensor(*ops_, n, 2 * f);
    d_hidden_ = nn::tensor(*ops_, n, f);
    const rope_table table = make_rope_table(config_, seq);
    cosine_ = nn::buffer<float>(*ops_, static_cast<index_t>(table.cosine.size()));
    sine_ = nn::buffer<float>(*ops_, static_cast<index_t>(table.sine.size()));
    cosine_.copy_in(table.cosine);
    sine_.copy_in(table.sine);
  }

  /// Loss of each token in nats (0 where the target is nn::ignored_target). tokens and targets are batch × seq. With
  /// gradient_scale other than 0 a backward() may follow; gradients are those of gradient_scale * Σ losses.
  std::vector<float> forward(const nn::pass_context& context, const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets, float gradient_scale) {
    run_decoder(context, tokens);
    targets_.copy_in(targets);
    ops_->cross_entropy(logits_.view(), targets_.data(), losses_.data(), gradient_scale);
    return losses_.copy_out();
  }

  /// Logits [batch * seq, vocab] for sampling.
  std::vector<float> logits(const nn::pass_context& context, const std::vector<std::int32_t>& tokens) {
    run_decoder(context, tokens);
    return logits_.memory().copy_out();
  }

  /// Adds to every parameter's gradient; follows a forward() with a gradient scale, on the same context.
  void backward(const nn::pass_context& context);

  void zero_gradients() {
    for (parameter& p : parameters_) p.gradient.memory().fill_zero();
  }

 private:
  struct layer {
    parameter *norm1, *norm2;
    nn::linear qkv_proj, o_proj, gate_up_proj, down_proj;
    nn::tensor input, normed1, qkv, attended, middle, normed2, gate_up, hidden;
    nn::buffer<float> rstd1, lse, rstd2;
  };

  parameter& add(index_t rows, index_t cols, std::vector<parameter::slice> slices) {
    if (slices.size() == 1) slices[0].rows = rows;
    parameter& p = parameters_.emplace_back();
    p.slices = std::move(slices);
    p.rows = rows;
    p.cols = cols;
    for (nn::tensor* t : {&p.weight, &p.gradient, &p.m, &p.v}) *t = nn::tensor(*ops_, rows, cols);
    return p;
  }
  void add_vector(index_t cols, std::string name) { add(1, cols, {{std::move(name)}}).is_vector = true; }

  void make_layers() {
    scratch_.resize(2);
    index_t id = 0;
    const auto make_linear = [&](parameter& p) {
      nn::linear made(id++, p.weight.view(), p.gradient.view());
      made.share_scratch(scratch_);
      return made;
    };
    layers_.resize(static_cast<std::size_t>(config_.num_hidden_layers));
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      parameter* p = &parameters_[1 + 6 * i];
      layers_[i].norm1 = &p[0];
      layers_[i].qkv_proj = make_linear(p[1]);
      layers_[i].o_proj = make_linear(p[2]);
      layers_[i].norm2 = &p[3];
      layers_[i].gate_up_proj = make_linear(p[4]);
      layers_[i].down_proj = make_linear(p[5]);
    }
    norm_ = &parameters_[1 + 6 * layers_.size()];
    head_ = make_linear(config_.tie_word_embeddings ? parameters_.front() : parameters_.back());
  }

  matrix<float> columns(const nn::tensor& t, index_t first, index_t count) const {
    return submatrix(t.view(), 0, first, t.view().extent(0), count);
  }
  nn::heads_view<float> heads(const nn::tensor& t, index_t first_column, index_t count) const {
    const index_t width = t.view().extent(1), dim = config_.head_size();
    return {t.data() + first_column, {batch_, seq_, count, dim}, {seq_ * width, width, dim, 1}};
  }
  nn::heads_view<float> queries(const nn::tensor& t) const { return heads(t, 0, config_.num_attention_heads); }
  nn::heads_view<float> keys(const nn::tensor& t) const {
    return heads(t, config_.query_size(), config_.num_key_value_heads);
  }
  nn::heads_view<float> values(const nn::tensor& t) const {
    return heads(t, config_.query_size() + config_.key_value_size(), config_.num_key_value_heads);
  }
  float epsilon() const { return static_cast<float>(config_.rms_norm_eps); }

  /// The recipe of decoder layer i: layers at the ends may be left in BF16.
  nn::pass_context context_of(const nn::pass_context& c, std::size_t i) const {
    nn::pass_context own = c;
    const auto depth = static_cast<int>(i);
    const bool exempt =
        depth < c.current->bf16_first_layers || depth >= config_.num_hidden_layers - c.current->bf16_last_layers;
    if (exempt) own.current = &exempt_recipe_;
    return own;
  }
  nn::pass_context head_context(const nn::pass_context& c) const {
    nn::pass_context own = c;
    own.current = nn::is_all_fp32(*c.current) ? &fp32_head_recipe_ : &head_recipe_;
    return own;
  }

  void run_decoder(const nn::pass_context& context, const std::vector<std::int32_t>& tokens);
  void forward_layer(const nn::pass_context& c, layer& l, matrix<float> output);
  void backward_layer(const nn::pass_context& c, layer& l);

  nn::backend* ops_;
  model_config config_;
  std::vector<parameter> parameters_;
  std::vector<layer> layers_;
  parameter* norm_ = nullptr;
  nn::linear head_;
  const nn::recipe exempt_recipe_ = nn::presets::uniform("bf16", nn::number_format::bf16, nn::number_format::bf16);
  const nn::recipe fp32_head_recipe_ = nn::presets::uniform("fp32", nn::number_format::fp32, nn::number_format::fp32);
  nn::recipe head_recipe_ = exempt_recipe_;
  std::vector<nn::operand> scratch_;

  index_t batch_ = 0, seq_ = 0;
  nn::tensor last_, normed_, logits_, branch_;
  nn::tensor d_residual_, d_qkv_, d_attended_, d_gate_up_, d_hidden_;
  nn::buffer<float> rstd_, losses_, cosine_, sine_;
  nn::buffer<std::int32_t> tokens_, targets_;
};

inline void model::forward_layer(const nn::pass_context& c, layer& l, matrix<float> output) {
  const index_t f = config_.intermediate_size;
  // Attention: middle = input + o_proj(attention(norm(input))).
  ops_->rmsnorm_forward(l.input.view(), l.norm1->weight.data(), epsilon(), l.normed1.view(), l.rstd1.data());
  l.qkv_proj.forward(c, l.normed1.view(), l.qkv.view());
  ops_->rope(queries(l.qkv), cosine_.data(), sine_.data(), false);
  ops_->rope(keys(l.qkv), cosine_.data(), sine_.data(), false);
  ops_->attention_forward(queries(l.qkv), keys(l.qkv), values(l.qkv), queries(l.attended), l.lse.data());
  l.o_proj.forward(c, l.attended.view(), l.middle.view());
  ops_->add(l.middle.view(), l.input.view());
  // MLP: output = middle + down_proj(swiglu(norm(middle))).
  ops_->rmsnorm_forward(l.middle.view(), l.norm2->weight.data(), epsilon(), l.normed2.view(), l.rstd2.data());
  l.gate_up_proj.forward(c, l.normed2.view(), l.gate_up.view());
  ops_->swiglu_forward(columns(l.gate_up, 0, f), columns(l.gate_up, f, f), l.hidden.view());
  l.down_proj.forward(c, l.hidden.view(), output);
  ops_->add(output, l.middle.view());
}

inline void model::run_decoder(const nn::pass_context& context, const std::vector<std::int32_t>& tokens) {
  ROTOSCALE_ASSERT(static_cast<index_t>(tokens.size()) == batch_ * seq_);
  tokens_.copy_in(tokens);
  ops_->embedding_forward(tokens_.data(), parameters_.front().weight.view(), layers_.front().input.view());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const bool is_last = i + 1 == layers_.size();
    forward_layer(context_of(context, i), layers_[i], is_last ? last_.view() : layers_[i + 1].input.view());
  }
  ops_->rmsnorm_forward(last_.view(), norm_->weight.data(), epsilon(), normed_.view(), rstd_.data());
  head_.forward(head_context(context), normed_.view(), logits_.view());
}

inline void model::backward_layer(const nn::pass_context& c, layer& l) {
  const index_t f = config_.intermediate_size;
  const matrix<float> d = d_residual_.view();
  // MLP. d is the gradient of the layer's output, and of `middle` through the residual.
  l.down_proj.backward(c, l.hidden.view(), d, d_hidden_.view());
  ops_->swiglu_backward(d_hidden_.view(), columns(l.gate_up, 0, f), columns(l.gate_up, f, f), columns(d_gate_up_, 0, f),
                        columns(d_gate_up_, f, f));
  l.gate_up_proj.backward(c, l.normed2.view(), d_gate_up_.view(), branch_.view());
  ops_->rmsnorm_backward(branch_.view(), l.middle.view(), l.norm2->weight.data(), l.rstd2.data(), d,
                         l.norm2->gradient.data());
  // Attention.
  l.o_proj.backward(c, l.attended.view(), d, d_attended_.view());
  ops_->attention_backward(queries(l.qkv), keys(l.qkv), values(l.qkv), queries(l.attended), l.lse.data(),
                           queries(d_attended_), queries(d_qkv_), keys(d_qkv_), values(d_qkv_));
  ops_->rope(queries(d_qkv_), cosine_.data(), sine_.data(), true);
  ops_->rope(keys(d_qkv_), cosine_.data(), sine_.data(), true);
  l.qkv_proj.backward(c, l.normed1.view(), d_qkv_.view(), branch_.view());
  ops_->rmsnorm_backward(branch_.view(), l.input.view(), l.norm1->weight.data(), l.rstd1.data(), d,
                         l.norm1->gradient.data());
}

inline void model::backward(const nn::pass_context& context) {
  head_.backward(head_context(context), normed_.view(), logits_.view(), branch_.view());
  d_residual_.memory().fill_zero();
  ops_->rmsnorm_backward(branch_.view(), last_.view(), norm_->weight.data(), rstd_.data(), d_residual_.view(),
                         norm_->gradient.data());
  for (std::size_t i = layers_.size(); i-- > 0;) backward_layer(context_of(context, i), layers_[i]);
  ops_->embedding_backward(tokens_.data(), d_residual_.view(), parameters_.front().gradient.view());
}

}  // namespace rotoscale::llama
