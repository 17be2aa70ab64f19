// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Output head and loss: last norm, logits and cross entropy by chunks of tokens. The logits of all tokens are never in
// memory at once. In the forward pass of a training step the head also computes its gradients.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
  /// Number of its weight among the parameters.
  std::size_t number() const { return number_; }
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
    for (const head_chunk& chunk : chunks_) {
      chunk_loss(p, chunk);
      if (p.observe && chunk.first == 0) observe(p, chunk);
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
    for (const head_chunk& chunk : chunks_) {
      const index_t from = std::max(first, chunk.first), to = std::min(first + count, chunk.first + chunk.count);
      if (from >= to) continue;
      const tensor_view all = chunk_logits(p, chunk, false);
      use(const_tensor_view(all.part(0, from - chunk.first, to - from)));
    }
  }
  /// The first chunk's x and dy, which are observed.
  std::vector<linear_use> linears() override {
    if (chunks_.empty()) return {{&head_, {}, {}}};
    return {{&head_, x_of(chunks_[0]), logits_of(chunks_[0])}};
  }

 private:
  /// One chunk of tokens, with operands of its rows of x and of its logits' gradients.
  struct head_chunk {
    std::unique_ptr<operand_set> x, dlogits;
    index_t first = 0, count = 0;
  };

  /// Chunks share memory for their operands.
  void lay_out_chunks(const layout& at) {
    constexpr memory_category scratch = memory_category::workspace;
    const index_t n = at.options.tokens(), chunk = head_.shape().tokens;
    chunks_.clear();
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
      auto x = make(tensor_role::x, norm_.y.part(0, first, count));
      auto dlogits = at.options.training ? make(tensor_role::dy, logits_.part(0, 0, count)) : nullptr;
      chunks_.push_back({std::move(x), std::move(dlogits), first, count});
    }
  }
  /// Rows of x and of the logits.
  tensor_view x_of(const head_chunk& chunk) const { return norm_.y.part(0, chunk.first, chunk.count); }
  tensor_view logits_of(const head_chunk& chunk) const { return logits_.part(0, 0, chunk.count); }

  /// Logits of a chunk. With `wgrad`, x also has its column form.
  tensor_view chunk_logits(const pass& p, const head_chunk& chunk, bool wgrad) const {
    const scaling_ref scaling = head_.scaling(p, tensor_role::x, p.training);
    p.ops->quantize(p.queue, {x_of(chunk), p.state}, {{chunk.x.get(), true, wgrad, scaling}});
    multiply(p, {chunk.x.get(), operand_form::row}, {head_.weights(), operand_form::row}, gemm_kind::fprop,
             operand_format::fp32, logits_of(chunk));
    return logits_of(chunk);
  }
  /// Logits, losses and in training the gradients of x and w.
  void chunk_loss(const pass& p, const head_chunk& chunk) const {
    const bool wgrad = p.training && !head_.w.gradient.empty();
    const tensor_view logits = chunk_logits(p, chunk, wgrad);
    float* const loss = loss_ + chunk.first;
    if (!p.training) return p.ops->cross_entropy(p.queue, {p.targets, chunk.first, false, p.state}, {logits, loss});
    operand_set* const d = chunk.dlogits.get();
    const bool keeps = p.observe || p.ops->layout_operands(d->request()).reads_source;
    p.ops->cross_entropy_quantize(p.queue, {p.targets, chunk.first, p.state},
                                  {logits, loss, {d, true, wgrad, head_.scaling(p, tensor_role::dy, true), keeps}});
    multiply(p, {d, operand_form::row}, {head_.weights(), operand_form::column}, gemm_kind::dgrad,
             head_.current().dgrad.output, stream_->branch.part(0, chunk.first, chunk.count));
    if (!wgrad) return;
    multiply(p, {d, operand_form::column}, {chunk.x.get(), operand_form::column}, gemm_kind::wgrad,
             operand_format::fp32, head_.w.gradient);
  }
  /// Gradients of w are added.
  void multiply(const pass& p, operand a, operand b, gemm_kind kind, operand_format output, tensor_view c) const {
    p.ops->gemm(p.queue, {a, b, head_.contract(kind), output, kind == gemm_kind::wgrad}, {c});
  }
  void observe(const pass& p, const head_chunk& chunk) const {
    const const_tensor_view x = x_of(chunk), dy = logits_of(chunk);
    p.probe->observe(p, head_, tensor_role::x, chunk.x.get(), x);
    p.probe->observe(p, head_, tensor_role::w, head_.weights(), head_.w.values);
    p.probe->observe(p, head_, tensor_role::dy, chunk.dlogits.get(), dy);
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
  std::vector<head_chunk> chunks_;
  tensor_view logits_;
  float* loss_ = nullptr;
};

}  // namespace rotoscale::nn
