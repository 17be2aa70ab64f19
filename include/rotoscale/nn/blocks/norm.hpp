// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The residual stream, and the norm at the entry of a block. A block leaves its result as the stream's branch. The next
// norm adds it to the stream, normalizes the sum and quantizes the result in one operation.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/blocks/bias.hpp"

namespace rotoscale::nn {

/// The residual stream of a model, (tokens, features), with scratch memory that its blocks share.
class residual_stream {
 public:
  /// A stream without memory.
  explicit residual_stream(index_t features) : features_(features) {}

  tensor_view normed;     ///< result of a norm; the last norm's until the backward pass
  tensor_view branch;     ///< result of a block; in the backward pass the gradient of a norm's result
  tensor_view d;          ///< gradient of the stream
  float* rstd = nullptr;  ///< of the last norm; free in the backward pass of layers
  float* mean = nullptr;  ///< the same of LayerNorm

  /// Width.
  index_t features() const { return features_; }
  /// Value at the entry of group i.
  const tensor_view& entry(std::size_t i) const { return entries_[i]; }

  /// Takes memory of the forward pass, before all blocks. `groups` values are saved, or two alternate.
  void lay_out(const layout& at, std::size_t groups) {
    normed = at.tensor(memory_category::workspace, features_);
    branch = at.tensor(memory_category::workspace, features_);
    rstd = at.numbers(memory_category::activations);
    if (has_means_) mean = at.numbers(memory_category::activations);
    const auto own = [&] { return at.tensor(memory_category::activations, features_); };
    entries_ = {own(), own()};
    for (std::size_t i = 2; i < groups; ++i) {
      entries_.push_back(at.options.training && !at.packs() ? own() : entries_[i % 2]);
    }
  }
  /// Takes memory of the backward pass.
  void lay_out_backward(const layout& at) { d = at.tensor(memory_category::workspace, features_); }

  /// Norms of the stream are LayerNorm.
  void keep_means() { has_means_ = true; }
  /// Clears the gradient.
  void clear_gradient(const pass& p) const {
    p.ops->fill_zero(p.queue, d.data, static_cast<std::size_t>(d.size() * size_of(d.type)));
  }
  /// Packs these tensors when the next group begins. Until then the block's last operation may write them.
  void pack_later(const pass& p, const saved_activations& what) {
    if (p.training) deferred_.push_back(&what);
  }
  /// Packs all deferred tensors.
  void pack(const pass& p) {
    for (const saved_activations* what : std::exchange(deferred_, {})) what->pack(p);
  }

 private:
  index_t features_;
  bool has_means_ = false;
  std::vector<tensor_view> entries_;
  std::vector<const saved_activations*> deferred_;
};

/// Norm at the entry of a block: x = stream + branch, y = x · rstd · gain. With a bias, y = (x - mean) · rstd · gain +
/// bias.
class norm {
 public:
  /// At the entry of group `group`; `inner`: within the group, after its first block. `before`: the norm before this
  /// one on the stream; null: the stream has no branch yet.
  norm(residual_stream& stream, const norm* before, std::size_t group, bool inner, std::string name, double epsilon,
       std::string bias = {})
      : stream_(&stream),
        before_(before),
        group_(group),
        inner_(inner),
        name_(std::move(name)),
        epsilon_(static_cast<float>(epsilon)),
        bias_name_(std::move(bias)) {
    if (!bias_name_.empty()) stream.keep_means();
  }

  tensor_view x;  ///< (tokens, features): value of the stream
  tensor_view y;  ///< (tokens, features): the norm, which is not saved if its operands are

  /// The block's result ends with this bias. The next norm computes its gradient.
  void close_with(const bias& last) { last_ = &last; }

  /// Adds gain and bias.
  void parameters(parameter_list& list) {
    gain_.number = list.add_vector(stream_->features(), name_, 1.0);
    if (!bias_name_.empty()) bias_.number = list.add_vector(stream_->features(), bias_name_, 0.0);
  }
  /// Binds gain and bias.
  void bind(const layout& at) {
    gain_ = at.weights(gain_.number);
    if (!bias_name_.empty()) bias_ = at.weights(bias_.number);
  }
  /// Adds the workspace of its operations.
  void require(workspace_bound& most) const {
    const tensor_view all = most.extents(most.tokens, stream_->features());
    const float* const mean = bias_name_.empty() ? nullptr : &epsilon_;  // any address: LayerNorm
    most.add<op::norm_backward>({all, all, nullptr, nullptr, mean}, {all, nullptr});
    if (mean == nullptr) return;
    const tensor_view dtable = most.extents(1, stream_->features());
    most.add<op::norm_backward>({all, all, nullptr, nullptr, mean}, {all, nullptr, nullptr, dtable});
  }
  /// Takes x at the beginning of a block's saved tensors.
  void lay_out_entry(const layout& at, saved_activations& saved) {
    if (inner_) {
      if (at.phase == layout_phase::scratch) shared_x_ = at.shared(stream_->features());
      const bool recomputed = !at.options.training || at.options.recompute == recompute_part::layer;
      at.take(recomputed, [&] { x = saved.keep(at, shared_x_); });
    } else if (at.phase == layout_phase::saved) {
      x = stream_->entry(group_);
      if (at.packs()) saved.pack_of(at, x);
    }
  }
  /// Takes y and the operands that `consumer` makes of it.
  void lay_out_result(const layout& at, linear& consumer, recompute_part part) {
    at.take(at.is_recomputed(recompute_part::elementwise) || at.is_recomputed(part), [&] {
      y = at.made_for(consumer, stream_->normed);
      consumer.lay_out(at.ops, at.memory, at.inputs(), tensor_role::x, y);
    });
    at.take(at.is_recomputed(part), [&] {
      rstd_ = at.numbers(memory_category::activations);
      if (!bias_name_.empty()) mean_ = at.numbers(memory_category::activations);
    });
  }
  /// The last norm of the stream: its result is shared memory.
  void lay_out_last(const layout& at) {
    if (at.phase != layout_phase::saved) return;
    x = stream_->entry(group_);
    y = stream_->normed;
    rstd_ = stream_->rstd;
    mean_ = stream_->mean;
  }

  /// Adds the branch to the stream, normalizes the sum and quantizes it.
  void join(const pass& p, const quantize_target& to) const {
    if (before_ == nullptr) {
      again(p, to);
    } else {
      p.ops->residual_norm(p.queue, {stream_->branch, before_->x, gain(), epsilon_, p.state, bias()},
                           {x, y, rstd_, to, mean_});
    }
    if (!inner_) stream_->pack(p);
  }
  /// Normalizes the saved x.
  void again(const pass& p, const quantize_target& to) const {
    p.ops->residual_norm(p.queue, {x, {}, gain(), epsilon_, p.state, bias()}, {{}, y, rstd_, to, mean_});
  }
  /// Recomputes y for statistics if only its operands were saved. Uses the last norm's mean and rstd as scratch: the
  /// backward pass still reads this norm's, and an x saved in 8 bits would change them.
  void observe(const pass& p) const {
    if (!p.observe || y.data != stream_->normed.data) return;
    p.ops->norm_forward(p.queue, {x, gain(), epsilon_, bias()}, {y, stream_->rstd, stream_->mean});
  }
  /// Backward pass from the gradient of y, which is in the stream's branch. Adds to the gradient of the stream: the
  /// gradient of the previous block's result, and so of its bias.
  void backward(const pass& p) const {
    const tensor_view d = stream_->d;
    auto *const dgain = static_cast<float*>(gain_.gradient.data), *const dbias =
                                                                      static_cast<float*>(bias_.gradient.data);
    const class bias* const last = before_ != nullptr ? before_->last_ : nullptr;
    const bool adds = last != nullptr && last->trains() && mean_ != nullptr && dgain != nullptr;
    p.ops->norm_backward(p.queue, {stream_->branch, x, gain(), rstd_, mean_},
                         {d, dgain, dbias, adds ? last->gradient() : tensor_view{}});
    if (last != nullptr && !adds) last->backward(p, d);
  }

 private:
  const float* gain() const { return static_cast<const float*>(gain_.values.data); }
  /// Null: RMSNorm.
  const float* bias() const { return static_cast<const float*>(bias_.values.data); }

  residual_stream* stream_;
  const norm* before_;
  const class bias* last_ = nullptr;  ///< of the block
  std::size_t group_;
  bool inner_;
  std::string name_;
  float epsilon_;
  std::string bias_name_;
  weight gain_, bias_;
  float *rstd_ = nullptr, *mean_ = nullptr;
  tensor_view shared_x_;
};

}  // namespace rotoscale::nn
