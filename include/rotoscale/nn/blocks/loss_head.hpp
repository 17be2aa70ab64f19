// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Output head and loss: last norm, logits and cross entropy by chunks of tokens. In the forward pass of a training step
// the head also computes its gradients, so that no logits are saved.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/blocks/head_loss.hpp"
#include "rotoscale/nn/blocks/norm.hpp"

namespace rotoscale::nn {

/// Logits of the next token, and their loss. B T: tokens of a pass, D: features, V: vocabulary.
class loss_head final : public block {
 public:
  /// `name` of the weight, (V, D). A tied head names the embedding.
  loss_head(residual_stream& stream, norm entry, index_t vocabulary, std::string name, initial_distribution initial,
            bool tied)
      : norm_(std::move(entry)),
        stream_(&stream),
        vocabulary_(vocabulary),
        name_(std::move(name)),
        initial_(initial),
        tied_(tied) {}

  /// The linear layer.
  const adapted_linear& layer() const { return head_; }
  /// Loss of each token, (B T), after a forward pass.
  float* loss() const { return loss_; }

  void parameters(parameter_list& list) override {
    norm_.parameters(list);
    number_ = tied_ ? list.find(name_) : list.add(vocabulary_, stream_->features(), {{name_}}, initial_);
  }
  void make(linear_maker& maker) override {
    head_ = maker.make(number_, *maker.head, std::min(maker.options.tokens(), maker.options.head_chunk));
  }
  void lay_out(const layout& at) override {
    if (at.phase == layout_phase::weights) {
      norm_.bind(at);
      head_.w = at.weights(number_);
    }
    if (at.phase == layout_phase::fixed) loss_ = at.numbers(memory_category::workspace);
    norm_.lay_out_last(at);
    if (at.phase == layout_phase::loss) lay_out_chunks(at);
  }
  void require(workspace_bound& most) const override {
    most.add_rows(stream_->features());
    most.add<op::cross_entropy>({}, {most.extents(most.tokens, vocabulary_), nullptr});
    most.add<op::sum_losses>({nullptr, most.tokens}, {nullptr});
    norm_.require(most);
  }

  /// The last value of the stream, normalized: (B T, D).
  void join(const pass& p) const { norm_.join(p, {}); }
  void forward(const pass& p) override {
    join(p);
    const head_args a = arguments(p);
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      head_chunk_loss(*p.ops, p.queue, a, i, p.state);
      if (p.observe && i == 0) observe(p, a);
    }
    p.ops->sum_losses(p.queue, {loss_, norm_.y.extent(0)}, {p.state});
  }
  void backward(const pass& p) override {
    stream_->clear_gradient(p);
    norm_.backward(p);
  }
  /// After join(): calls use(logits) for the tokens [first, first + count) in order, a chunk (tokens, V) at a time. The
  /// next chunk overwrites it.
  template <class Use>
  void logits(const pass& p, index_t first, index_t count, const Use& use) const {
    const head_args a = arguments(p);
    for (const head_chunk& chunk : chunks_) {
      const index_t from = std::max(first, chunk.first), to = std::min(first + count, chunk.first + chunk.count);
      if (from >= to) continue;
      const tensor_view all = head_chunk_logits(*p.ops, p.queue, a, chunk, false, p.state);
      use(const_tensor_view(all.part(0, from - chunk.first, to - from)));
    }
  }
  /// x and dy are those of the first chunk, which is observed.
  std::vector<linear_use> linears() override {
    if (chunks_.empty()) return {{&head_, {}, {}}};
    return {{&head_, norm_.y.part(0, 0, chunks_[0].count), logits_.part(0, 0, chunks_[0].count)}};
  }

 private:
  /// Chunks share memory for their operands.
  void lay_out_chunks(const layout& at) {
    constexpr memory_category scratch = memory_category::workspace;
    const index_t n = at.options.tokens(), chunk = head_.shape().tokens;
    chunks_.clear();
    x_.clear();
    dlogits_.clear();
    logits_ = at.memory.tensor(scratch, dtype::fp32, chunk, vocabulary_);
    const auto make = [&](tensor_role tensor, const_tensor_view source) {
      operand_request r = head_.request(tensor);
      r.source = source.type;
      r.rows = source.extent(0);
      r.part = static_cast<index_t>(chunks_.size());
      return take_operands(at.ops, at.memory, scratch, r, source);
    };
    const std::size_t mark = at.memory.mark(scratch);
    for (index_t first = 0; first < n; first += chunk) {
      const index_t count = std::min(chunk, n - first);
      at.memory.rewind(scratch, mark);
      x_.push_back(make(tensor_role::x, norm_.y.part(0, first, count)));
      if (at.options.training) dlogits_.push_back(make(tensor_role::dy, logits_.part(0, 0, count)));
      chunks_.push_back({x_.back().get(), first, count});
    }
  }
  head_args arguments(const pass& p) const {
    head_args a;
    a.x = norm_.y;
    a.chunks = chunks_;
    a.w = head_.weights();
    for (const gemm_kind g : {gemm_kind::fprop, gemm_kind::dgrad, gemm_kind::wgrad}) {
      a.contracts[static_cast<int>(g)] = &head_.contract(g);
    }
    a.logits = logits_;
    a.dlogits = dlogits_;
    a.targets = p.targets;
    a.loss = loss_;
    a.gradients = p.training;
    a.dx = stream_->branch;
    a.dw = head_.w.gradient;
    a.dx_output = head_.current().dgrad.output;
    a.x_scaling = head_.scaling(p, tensor_role::x, p.training);
    a.dlogits_scaling = head_.scaling(p, tensor_role::dy, true);
    a.keeps_dlogits = p.observe;
    return a;
  }
  void observe(const pass& p, const head_args& a) const {
    const const_tensor_view x = a.x.part(0, 0, chunks_[0].count), dy = a.logits.part(0, 0, chunks_[0].count);
    p.probe->observe(p, head_, tensor_role::x, chunks_[0].x, x);
    p.probe->observe(p, head_, tensor_role::w, a.w, head_.w.values);
    p.probe->observe(p, head_, tensor_role::dy, dlogits_[0].get(), dy);
    p.probe->multiply(p, head_, x, dy);
    p.probe->compare(p, head_);
  }

  norm norm_;
  residual_stream* stream_;
  index_t vocabulary_;
  std::string name_;
  initial_distribution initial_;
  bool tied_;
  std::size_t number_ = 0;
  adapted_linear head_;
  std::vector<std::unique_ptr<operand_set>> x_, dlogits_;
  std::vector<head_chunk> chunks_;
  tensor_view logits_;
  float* loss_ = nullptr;
};

}  // namespace rotoscale::nn
