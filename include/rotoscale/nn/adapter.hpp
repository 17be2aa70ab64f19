// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A low-rank adapter beside a linear layer (Hu et al., arXiv:2106.09685): y += scale · dropout(x)·Aᵀ·Bᵀ, in high
// precision whatever the layer's own recipe is. It is two linear layers and a dropout. Query, key and value share x and
// so its dropped copy: the A of all parts are one matrix, and each part has a B for its rows of y.
#pragma once

#include <cmath>
#include <vector>

#include "rotoscale/nn/linear.hpp"

namespace rotoscale::nn {

/// Rows of the layer's output that one B adds to.
struct adapter_part {
  index_t first_row = 0;  ///< of the output features
  index_t rows = 0;       ///< of B
};

/// An adapter's shape and how it takes part.
struct adapter_shape {
  linear_shape base;                ///< of the layer that it stands beside; `trains` is the adapter's
  index_t rank = 0;                 ///< rows of each part's A, columns of its B
  double scale = 1.0;               ///< of what is added: alpha / rank
  double dropout = 0.0;             ///< probability, at x
  std::vector<adapter_part> parts;  ///< ascending
};

/// Where the gradients of an adapter's matrices go; empty where they do not train.
struct adapter_gradients {
  tensor_view a;               ///< [parts · rank, in]
  std::vector<tensor_view> b;  ///< each [rows, rank]
};

/// An adapter: its operands and what it keeps between the passes, no memory.
class adapter {
 public:
  /// Under recipe `r`, which must outlive it and have one format for all operands.
  adapter(const adapter_shape& shape, const linear_recipe& r) : shape_(shape) {
    const dtype own = stored(r);
    linear_shape a = shape.base;
    a.out = width();
    a.inputs = a.gradients = own;
    a_ = linear(a, r);
    for (const adapter_part& part : shape.parts) {
      linear_shape b = shape.base;
      b.in = shape.rank;
      b.out = part.rows;
      b.inputs = own;
      b_.emplace_back(b, r);
    }
    evaluation_ = {shape.base.layer, 0, static_cast<float>(shape.scale)};
    training_ = {shape.base.layer, static_cast<std::uint32_t>(std::llround(shape.dropout * 0x1p32)),
                 static_cast<float>(shape.scale / (1.0 - shape.dropout))};
  }

  /// Its shape.
  const adapter_shape& shape() const { return shape_; }
  /// dropout(x) to the low-rank tensor.
  linear& a() { return a_; }
  /// From there to each part's rows of y.
  std::vector<linear>& b() { return b_; }
  /// Columns of the low-rank tensor.
  index_t width() const { return static_cast<index_t>(shape_.parts.size()) * shape_.rank; }

  /// Asks the backend for the contracts of the GEMMs; false: it refuses one.
  bool agree(const backend& ops) {
    bool agreed = a_.agree(ops);
    for (linear& b : b_) agreed = b.agree(ops) && agreed;
    return agreed;
  }

  /// What the forward pass makes: kept for the backward pass if one follows, else gone when the adapter is done.
  void lay_out_forward(backend& ops, memory_cursor& memory) {
    constexpr memory_category scratch = memory_category::workspace;
    const bool backward = shape_.base.backward;
    const std::size_t mark = memory.mark(scratch);
    const auto made_for = [&](const linear& consumer, index_t cols) {
      const bool keep = backward && consumer.keeps_source(ops, tensor_role::x);
      return memory.tensor(keep ? memory_category::activations : scratch, stored(a_.current()), shape_.base.tokens,
                           cols);
    };
    const memory_category kept = backward ? memory_category::activations : scratch;
    dropped_ = made_for(a_, shape_.base.in);
    a_.lay_out(ops, memory, kept, tensor_role::x, dropped_);
    low_ = made_for(b_.front(), width());
    for (std::size_t i = 0; i < b_.size(); ++i) b_[i].lay_out(ops, memory, kept, tensor_role::x, part_of(low_, i));
    memory.rewind(scratch, mark);
  }
  /// What the backward pass makes of dy, in workspace.
  void lay_out_backward(backend& ops, memory_cursor& memory, const_tensor_view dy) {
    constexpr memory_category scratch = memory_category::workspace;
    for (std::size_t i = 0; i < b_.size(); ++i) {
      b_[i].lay_out(ops, memory, scratch, tensor_role::dy, rows_of(dy, i));
    }
    d_low_ = memory.tensor(scratch, stored(a_.current()), shape_.base.tokens, width());
    a_.lay_out(ops, memory, scratch, tensor_role::dy, d_low_);
    d_dropped_ = memory.tensor(scratch, shape_.base.gradients, shape_.base.tokens, shape_.base.in);
  }

  /// Adds to y [tokens, out], rounded to `output` as y itself was.
  void forward(const pass& p, const_tensor_view x, tensor_view y, operand_format output) const {
    p.ops->dropout(p.queue, x, p.training ? training_ : evaluation_, dropped_, false, p.state);
    p.ops->quantize(p.queue, dropped_, a_.input_target(p), p.state);
    a_.forward(p, low_);
    for (std::size_t i = 0; i < b_.size(); ++i) {
      p.ops->quantize(p.queue, part_of(low_, i), b_[i].input_target(p), p.state);
      b_[i].forward_onto(p, rows_of(y, i), output);
    }
  }
  /// Adds to dx [tokens, in] and to the gradients.
  void backward(const pass& p, const_tensor_view dy, tensor_view dx, const adapter_gradients& gradients) const {
    for (std::size_t i = 0; i < b_.size(); ++i) {
      p.ops->quantize(p.queue, rows_of(dy, i), b_[i].gradient_target(p), p.state);
      b_[i].backward(p, part_of(d_low_, i), gradients.b[i]);
    }
    p.ops->quantize(p.queue, d_low_, a_.gradient_target(p), p.state);
    a_.backward(p, d_dropped_, gradients.a);
    p.ops->dropout(p.queue, d_dropped_, training_, dx, true, p.state);
  }

 private:
  static dtype stored(const linear_recipe& r) { return storage_for(r.fprop.left.format); }
  tensor_view part_of(const tensor_view& low, std::size_t i) const {
    return low.part(1, static_cast<index_t>(i) * shape_.rank, shape_.rank);
  }
  template <class View>
  View rows_of(const View& y, std::size_t i) const {
    return y.part(1, shape_.parts[i].first_row, shape_.parts[i].rows);
  }

  adapter_shape shape_;
  linear a_;
  std::vector<linear> b_;
  dropout_args training_, evaluation_;
  tensor_view dropped_, low_, d_low_, d_dropped_;
};

/// A linear layer with an adapter beside it, or without one.
class adapted_linear : public linear {
 public:
  /// Without an adapter, under recipe `r`, which must outlive it.
  adapted_linear(const linear_shape& shape, const linear_recipe& r) : linear(shape, r) {}
  adapted_linear() = default;

  /// Beside the layer; null: none.
  std::optional<nn::adapter> adapter;

  /// Asks the backend for the contracts of all GEMMs; false: it refuses one.
  bool agree(const backend& ops) {
    const bool agreed = linear::agree(ops);
    return (!adapter || adapter->agree(ops)) && agreed;
  }
  /// y = x·wᵀ and what the adapter adds; x is quantized already, and an adapter reads it as well.
  void forward(const pass& p, const_tensor_view x, tensor_view y) const {
    linear::forward(p, y);
    if (adapter) adapter->forward(p, x, y, current().fprop.output);
  }
  /// dx is overwritten, gradients are added to; dy is quantized already, and an adapter reads it as well.
  void backward(const pass& p, const_tensor_view dy, tensor_view dx, tensor_view gradient,
                const adapter_gradients& adapters) const {
    linear::backward(p, dx, gradient);
    if (adapter) adapter->backward(p, dy, dx, adapters);
  }
};

}  // namespace rotoscale::nn
