// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Feed-forward block: norm, up projection, activation, down projection.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "rotoscale/nn/blocks/attention.hpp"

namespace rotoscale::nn {

/// A feed-forward block. B T: tokens of a pass, D: features of the stream, F: inner width, A F: width before the
/// activation.
class mlp final : public block {
 public:
  /// `entry`: norm before the block. `width`: F. `up`, `down`: linear layers to and from it.
  mlp(residual_stream& stream, norm entry, activation which, index_t width, linear_parameter up, linear_parameter down)
      : norm_(std::move(entry)),
        stream_(&stream),
        activation_(which),
        width_(width),
        up_bias_(up.bias),
        down_bias_(down.bias),
        names_{std::move(up), std::move(down)} {
    norm_.close_with(down_bias_);
  }
  /// Norm at its entry.
  const norm& entry() const { return norm_; }

  void parameters(parameter_list& list) override {
    norm_.parameters(list);
    numbers_[0] = list.add_linear(inputs(), stream_->features(), names_[0].slices, names_[0].initial);
    up_bias_.parameters(list, inputs());
    numbers_[1] = list.add_linear(stream_->features(), width_, names_[1].slices, names_[1].initial);
    down_bias_.parameters(list, stream_->features());
  }
  void make(linear_maker& maker) override {
    up_ = maker.make(numbers_[0]);
    down_ = maker.make(numbers_[1]);
    recompute_ = maker.options.recompute;
    saved_.clear();
  }
  void lay_out(const layout& at) override {
    if (at.phase == layout_phase::weights) {
      norm_.bind(at);
      up_.w = at.weights(numbers_[0]);
      down_.w = at.weights(numbers_[1]);
      up_bias_.bind(at);
      down_bias_.bind(at);
    }
    norm_.lay_out_entry(at, saved_);
    norm_.lay_out_result(at, up_, recompute_part::mlp);
    if (at.phase == layout_phase::scratch) {
      shared_hidden_ = at.tensor(memory_category::workspace, width_);
      shared_made_ = at.shared(inputs());
    }
    at.take(at.is_recomputed(recompute_part::mlp), [&] {
      up_.lay_out_adapters(at.ops, at.memory);
      made_ = saved_.keep(at, shared_made_);
      down_.lay_out_adapters(at.ops, at.memory);
    });
    at.take(at.is_recomputed(recompute_part::elementwise) || at.is_recomputed(recompute_part::mlp), [&] {
      hidden_ = at.made_for(down_, shared_hidden_);
      down_.lay_out(at.ops, at.memory, at.inputs(), tensor_role::x, hidden_);
    });
    if (at.phase == layout_phase::backward) {
      d_hidden_ = at.tensor(memory_category::workspace, width_);
      d_made_ = at.tensor(memory_category::workspace, inputs());
      lay_out_gradients(at, {{&down_, hidden_, stream_->d}, {&up_, norm_.y, d_made_}});
    }
  }
  void require(workspace_bound& most) const override {
    most.add_rows(std::max(stream_->features(), width_));
    norm_.require(most);
    up_bias_.require(most, inputs());
    down_bias_.require(most, stream_->features());
  }

  void forward(const pass& p) override {
    norm_.join(p, up_.input_target(p));                               // 1. norm(x): (B T, D)
    activate(p);                                                      // 2., 3.
    down_.forward(p, hidden_, stream_->branch, down_bias_.values());  // 4. branch: (B T, D)
    stream_->pack_later(p, saved_);
  }
  void recompute(const pass& p) override {
    if (recompute_ == recompute_part::layer) norm_.join(p, up_.input_target(p));
    const bool made_again = recompute_ == recompute_part::elementwise;
    if (made_again || recompute_ == recompute_part::mlp) norm_.again(p, up_.input_target(p));
    if (made_again) {
      p.ops->activation_quantize(p.queue, {made_, activation_, p.state}, {hidden_, down_.input_target(p)});
    }
    if (recompute_ != recompute_part::mlp && recompute_ != recompute_part::layer) return;
    activate(p);
    down_.forward_adapters(p, hidden_, stream_->branch);
  }
  void backward(const pass& p) override {
    const tensor_view d = stream_->d;  // (B T, D)
    p.ops->quantize(p.queue, {d, p.state}, {down_.gradient_target(p)});
    if (p.observe && is_shared()) p.ops->activation_forward(p.queue, {made_, activation_}, {observed_hidden()});
    down_.backward(p, observed_hidden(), d, d_hidden_);  // 4. d_hidden: (B T, F)
    quantize_target to = up_.gradient_target(p);
    to.keeps_source |= up_bias_.trains();
    p.ops->activation_backward_quantize(p.queue, {d_hidden_, made_, activation_, p.state},
                                        {d_made_, to, up_bias_.gradient()});  // 3. d_made: (B T, A F)
    norm_.observe(p);
    up_.backward(p, norm_.y, d_made_, stream_->branch);  // 2.
    norm_.backward(p);                                   // 1.
  }
  const saved_activations& saved() const override { return saved_; }
  std::vector<linear_use> linears() override {
    return {{&up_, norm_.y, d_made_}, {&down_, observed_hidden(), stream_->d}};
  }

 private:
  void activate(const pass& p) const {
    up_.forward(p, norm_.y, made_, up_bias_.values());  // 2. made: (B T, A F)
    p.ops->activation_quantize(p.queue, {made_, activation_, p.state},
                               {hidden_, down_.input_target(p)});  // 3. hidden: (B T, F)
  }
  /// Features before the activation.
  index_t inputs() const { return inputs_of(activation_) * width_; }
  bool is_shared() const { return hidden_.data == shared_hidden_.data; }
  /// Memory for `hidden` in an observed backward pass, in which the shared memory holds other tensors.
  tensor_view observed_hidden() const { return is_shared() ? d_hidden_ : hidden_; }

  norm norm_;
  residual_stream* stream_;
  activation activation_;
  index_t width_;
  bias up_bias_, down_bias_;
  linear_parameter names_[2];  ///< up, down
  std::size_t numbers_[2] = {};
  adapted_linear up_, down_;
  saved_activations saved_;
  recompute_part recompute_ = recompute_part::none;
  tensor_view made_, hidden_, shared_made_, shared_hidden_, d_made_, d_hidden_;
};

}  // namespace rotoscale::nn
