// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Grouped-query attention: norm, projection to queries, keys and values, RoPE, attention, output projection.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "rotoscale/nn/blocks/bias.hpp"
#include "rotoscale/nn/blocks/kv_cache.hpp"
#include "rotoscale/nn/blocks/norm.hpp"
#include "rotoscale/nn/blocks/rotary.hpp"

namespace rotoscale::nn {

/// Keys that a query sees.
enum class attention_mask {
  causal,   ///< up to its own position
  document  ///< the same within its document
};

/// Shape of an attention block.
struct attention_shape {
  index_t heads = 1;                               ///< H
  index_t kv_heads = 1;                            ///< G
  index_t head_dim = 1;                            ///< d
  attention_mask mask = attention_mask::document;  ///< keys that a query sees

  /// Width of all query heads.
  index_t query() const { return heads * head_dim; }
  /// Width of all key heads, and of all value heads.
  index_t key() const { return kv_heads * head_dim; }
};

/// Names and initial values of a linear layer's weight, and the name of its bias.
struct linear_parameter {
  std::vector<parameter::slice> slices;  ///< in files
  initial_distribution initial;          ///< of all slices
  std::string bias = {};                 ///< empty: none
};

/// An attention block. B T: tokens of a pass, D: features of the stream.
class attention final : public block {
 public:
  /// `rope`: null without a rotary embedding.
  attention(residual_stream& stream, norm entry, attention_shape shape, linear_parameter qkv, linear_parameter o,
            const rotary* rope)
      : norm_(std::move(entry)),
        stream_(&stream),
        shape_(shape),
        qkv_bias_(qkv.bias),
        o_bias_(o.bias),
        names_{std::move(qkv), std::move(o)},
        rope_(rope) {
    norm_.close_with(o_bias_);
  }
  /// Norm at its entry.
  const norm& entry() const { return norm_; }
  /// Contract under which attention runs.
  const attention_contract& contract() const { return contract_; }

  void parameters(parameter_list& list) override {
    const index_t d = stream_->features(), q = shape_.query();
    norm_.parameters(list);
    numbers_[0] = list.add_linear(q + 2 * shape_.key(), d, names_[0].slices, names_[0].initial);
    qkv_bias_.parameters(list, q + 2 * shape_.key());
    numbers_[1] = list.add_linear(d, q, names_[1].slices, names_[1].initial);
    o_bias_.parameters(list, d);
  }
  void make(linear_maker& maker) override {
    contract_ = maker.attention(shape_.head_dim);
    qkv_ = maker.make(numbers_[0]);
    o_ = maker.make(numbers_[1]);
    batch_ = maker.options.batch;
    sequence_ = maker.options.sequence;
    recompute_ = maker.options.recompute;
    saved_.clear();
  }
  void lay_out(const layout& at) override {
    const index_t q = shape_.query(), made = q + 2 * shape_.key();
    if (at.phase == layout_phase::weights) {
      norm_.bind(at);
      qkv_.w = at.weights(numbers_[0]);
      o_.w = at.weights(numbers_[1]);
      qkv_bias_.bind(at);
      o_bias_.bind(at);
    }
    cache_.lay_out(at, shape_.key());
    norm_.lay_out_entry(at, saved_);
    norm_.lay_out_result(at, qkv_, recompute_part::attention);
    if (at.phase == layout_phase::scratch) {
      shared_made_ = at.shared(made);
      shared_attended_ = at.shared(q);
    }
    at.take(at.is_recomputed(recompute_part::attention), [&] {
      qkv_.lay_out_adapters(at.ops, at.memory);
      made_ = saved_.keep(at, shared_made_);
      const bool is_operand = at.options.training && o_.keeps_source(at.ops, tensor_role::x);
      attended_ = is_operand ? at.made_for(o_, shared_attended_) : saved_.keep(at, shared_attended_);
      lse_ = at.numbers(memory_category::activations, shape_.heads);
      o_.lay_out(at.ops, at.memory, at.inputs(), tensor_role::x, attended_);
      o_.lay_out_adapters(at.ops, at.memory);
    });
    if (at.phase == layout_phase::backward) lay_out_backward(at);
  }
  void require(workspace_bound& most) const override {
    const tensor_view q = dense_tensor(nullptr, dtype::fp32, {1, most.tokens, shape_.heads, shape_.head_dim}),
                      k = dense_tensor(nullptr, dtype::fp32, {1, most.positions, shape_.kv_heads, shape_.head_dim});
    most.add<op::attention_backward>({q, k, k, q, nullptr, q, {}, contract_, nullptr}, {q, k, k});
    most.add_rows(std::max(stream_->features(), qkv_.shape().out));
    norm_.require(most);
    qkv_bias_.require(most, qkv_.shape().out);
    o_bias_.require(most, stream_->features());
  }

  void forward(const pass& p) override {
    norm_.join(p, qkv_.input_target(p));  // 1. norm(x): (B T, D)
    attend(p);                            // 2. to 5.
    project(p);                           // 6. branch: (B T, D)
    stream_->pack_later(p, saved_);
  }
  void recompute(const pass& p) override {
    const bool again = recompute_ == recompute_part::attention || recompute_ == recompute_part::layer;
    if (again || recompute_ == recompute_part::elementwise) norm_.again(p, qkv_.input_target(p));
    if (again) attend(p);
    // Adapters save tensors made from x. The product of their layer is not needed.
    if (recompute_ == recompute_part::attention) o_.forward_adapters(p, attended_, stream_->branch);
    if (recompute_ == recompute_part::layer) project(p);
  }
  void backward(const pass& p) override {
    const tensor_view d = stream_->d;  // (B T, D)
    p.ops->quantize(p.queue, {d, p.state}, {o_.gradient_target(p)});
    o_.backward(p, attended_, d, d_attended_);  // 6. d_attended: (B T, H d)
    const index_t q = shape_.query(), kv = shape_.key();
    const tensor_view dq = heads(d_made_, 0, q), dk = heads(d_made_, q, kv), dv = heads(d_made_, q + kv, kv);
    p.ops->attention_backward(p.queue,  // 5. d_made: (B T, (H + 2 G) d)
                              {heads(made_, 0, q), keys(p), values(p), heads(attended_, 0, q), lse_,
                               heads(d_attended_, 0, q), starts(p), contract_, p.state},
                              {dq, dk, dv});
    if (rope_ != nullptr) rope_->rotate(p, dq, dk, true);  // 3.
    qkv_bias_.backward(p, d_made_);
    p.ops->quantize(p.queue, {d_made_, p.state}, {qkv_.gradient_target(p)});
    norm_.observe(p);
    qkv_.backward(p, norm_.y, d_made_, stream_->branch);  // 2.
    norm_.backward(p);                                    // 1.
  }
  const saved_activations& saved() const override { return saved_; }
  std::vector<linear_use> linears() override { return {{&qkv_, norm_.y, d_made_}, {&o_, attended_, stream_->d}}; }

 private:
  /// Columns [first, first + width) of x as heads, (B, T, width / d, d).
  tensor_view heads(const tensor_view& x, index_t first, index_t width) const {
    return as_heads(x.part(1, first, width), batch_, width / shape_.head_dim, shape_.head_dim);
  }
  tensor_view keys(const pass& p) const {
    return cache_.is_used() ? heads(cache_.first(p.past + sequence_), 0, shape_.key())
                            : heads(made_, shape_.query(), shape_.key());
  }
  tensor_view values(const pass& p) const {
    return cache_.is_used() ? heads(cache_.first(p.past + sequence_), shape_.key(), shape_.key())
                            : heads(made_, shape_.query() + shape_.key(), shape_.key());
  }
  token_source starts(const pass& p) const {
    return shape_.mask == attention_mask::document ? p.starts : token_source{};
  }
  void project(const pass& p) const { o_.forward(p, attended_, stream_->branch, o_bias_.values()); }
  void attend(const pass& p) const {
    const index_t q = shape_.query(), kv = shape_.key();
    qkv_.forward(p, norm_.y, made_, qkv_bias_.values());  // 2. made: (B T, (H + 2 G) d)
    if (rope_ != nullptr) rope_->rotate(p, heads(made_, 0, q), heads(made_, q, kv), false);  // 3. q, k
    if (cache_.is_used()) cache_.keep(p, made_.part(1, q, 2 * kv));                          // 4. k, v
    p.ops->attention_forward(p.queue,                                                        // 5. attended: (B T, H d)
                             {heads(made_, 0, q), keys(p), values(p), starts(p), contract_, p.state},
                             {heads(attended_, 0, q), lse_});
    p.ops->quantize(p.queue, {attended_, p.state}, {o_.input_target(p)});
  }
  void lay_out_backward(const layout& at) {
    constexpr memory_category scratch = memory_category::workspace;
    d_attended_ = at.tensor(scratch, shape_.query());
    d_made_ = at.tensor(scratch, shape_.query() + 2 * shape_.key());
    lay_out_gradients(at, {{&o_, attended_, stream_->d}, {&qkv_, norm_.y, d_made_}});
  }

  norm norm_;
  residual_stream* stream_;
  attention_shape shape_;
  bias qkv_bias_, o_bias_;
  linear_parameter names_[2];  ///< qkv, o
  std::size_t numbers_[2] = {};
  const rotary* rope_;
  attention_contract contract_;
  adapted_linear qkv_, o_;
  kv_cache cache_;
  saved_activations saved_;
  index_t batch_ = 1, sequence_ = 1;
  recompute_part recompute_ = recompute_part::none;
  tensor_view made_, attended_, shared_made_, shared_attended_, d_made_, d_attended_;
  float* lse_ = nullptr;
};

}  // namespace rotoscale::nn
