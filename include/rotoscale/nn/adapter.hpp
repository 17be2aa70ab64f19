// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A low-rank adapter beside a linear layer (Hu et al., arXiv:2106.09685): y += scale · dropout(x)·Aᵀ·Bᵀ, in high
// precision whatever the layer's own recipe is. It is two linear layers and a dropout. Query, key and value may have an
// adapter each beside one fused layer: each draws its own mask and adds to its rows of y, as PEFT's modules do.
#pragma once

#include <cmath>
#include <vector>

#include "rotoscale/nn/linear.hpp"

namespace rotoscale::nn {

/// An adapter's shape and how it takes part.
struct adapter_shape {
  linear_shape base;      ///< of the layer that it stands beside; `trains` is the adapter's
  index_t rank = 0;       ///< rows of A, columns of B
  double scale = 1.0;     ///< of what is added: alpha / rank
  double dropout = 0.0;   ///< probability, at x
  int part = 0;           ///< which part of the layer it belongs to: names its random stream
  index_t first_row = 0;  ///< of the output features that B adds to
  index_t rows = 0;       ///< of B
};

/// Where the gradients of an adapter's matrices go; empty where they do not train.
struct adapter_gradients {
  tensor_view a;  ///< [rank, in]
  tensor_view b;  ///< [rows, rank]
};

/// An adapter: its operands and what it keeps between the passes, no memory.
class adapter {
 public:
  /// Under recipe `r`, which must outlive it and have one format for all operands.
  adapter(const adapter_shape& shape, const linear_recipe& r) : shape_(shape) {
    const dtype own = stored(r);
    linear_shape a = shape.base, b = shape.base;
    a.out = b.in = shape.rank;
    a.inputs = a.gradients = b.inputs = own;
    b.out = shape.rows;
    a.has_scales = b.has_scales = false;  // the layer's entries are its own tensors'
    a_ = linear(a, r);
    b_ = linear(b, r);
    evaluation_ = {shape.base.layer, shape.part, 0, static_cast<float>(shape.scale)};
    training_ = {shape.base.layer, shape.part, static_cast<std::uint32_t>(std::llround(shape.dropout * 0x1p32)),
                 static_cast<float>(shape.scale / (1.0 - shape.dropout))};
  }

  /// Its shape.
  const adapter_shape& shape() const { return shape_; }
  /// dropout(x) to the low-rank tensor.
  linear& a() { return a_; }
  /// dropout(x) to the low-rank tensor.
  const linear& a() const { return a_; }
  /// From there to its rows of y.
  linear& b() { return b_; }
  /// From there to its rows of y.
  const linear& b() const { return b_; }

  /// Asks the backend for the contracts of the GEMMs. Returns the first that it refuses, or nothing.
  std::optional<refused_gemm> take_contracts(const backend& ops) {
    auto refused = a_.take_contracts(ops);
    if (!refused) refused = b_.take_contracts(ops);
    if (refused) refused->is_adapter = true;
    return refused;
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
    low_ = made_for(b_, shape_.rank);
    b_.lay_out(ops, memory, kept, tensor_role::x, low_);
    memory.rewind(scratch, mark);
  }
  /// What the backward pass makes of dy, in workspace.
  void lay_out_backward(backend& ops, memory_cursor& memory, const_tensor_view dy) {
    constexpr memory_category scratch = memory_category::workspace;
    b_.lay_out(ops, memory, scratch, tensor_role::dy, rows_of(dy));
    d_low_ = memory.tensor(scratch, stored(a_.current()), shape_.base.tokens, shape_.rank);
    a_.lay_out(ops, memory, scratch, tensor_role::dy, d_low_);
    d_dropped_ = memory.tensor(scratch, shape_.base.gradients, shape_.base.tokens, shape_.base.in);
  }

  /// Adds to y [tokens, out], rounded to `output` as y itself was.
  void forward(const pass& p, const_tensor_view x, tensor_view y, operand_format output) const {
    p.ops->dropout(p.queue, x, p.training ? training_ : evaluation_, dropped_, false, p.state);
    p.ops->quantize(p.queue, dropped_, a_.input_target(p), p.state);
    a_.forward(p, low_);
    p.ops->quantize(p.queue, low_, b_.input_target(p), p.state);
    b_.forward_onto(p, rows_of(y), output);
  }
  /// Behind the layer's own backward pass: adds to dx [tokens, in] and to the gradients. Quantizes dy itself.
  void backward(const pass& p, const_tensor_view dy, tensor_view dx, const adapter_gradients& gradients) const {
    p.ops->quantize(p.queue, rows_of(dy), b_.gradient_target(p), p.state);
    b_.backward(p, d_low_, gradients.b);
    p.ops->quantize(p.queue, d_low_, a_.gradient_target(p), p.state);
    a_.backward(p, d_dropped_, gradients.a);
    p.ops->dropout(p.queue, d_dropped_, training_, dx, true, p.state);
  }

  /// What A multiplied in the forward pass; holds these values until the next one where wgrad reads the tensor itself.
  const_tensor_view dropped() const { return dropped_; }
  /// What B multiplied, in the same way.
  const_tensor_view low() const { return low_; }
  /// The gradient of low(), after backward() and until another adapter's.
  const_tensor_view low_gradient() const { return d_low_; }
  /// The columns of a tensor [tokens, out] that are its rows of y.
  template <class View>
  View rows_of(const View& y) const {
    return y.part(1, shape_.first_row, shape_.rows);
  }

 private:
  static dtype stored(const linear_recipe& r) { return storage_for(r.fprop.left.format); }

  adapter_shape shape_;
  linear a_, b_;
  dropout_args training_, evaluation_;
  tensor_view dropped_, low_, d_low_, d_dropped_;
};

/// A linear layer with adapters beside it, or without.
class adapted_linear : public linear {
 public:
  /// Without an adapter, under recipe `r`, which must outlive it.
  adapted_linear(const linear_shape& shape, const linear_recipe& r) : linear(shape, r) {}
  adapted_linear() = default;

  /// Beside the layer, by ascending rows of y, no two of them on the same row.
  std::vector<adapter> adapters;

  /// Asks the backend for the contracts of all GEMMs. Returns the first that it refuses, or nothing.
  std::optional<refused_gemm> take_contracts(const backend& ops) {
    auto refused = linear::take_contracts(ops);
    for (adapter& beside : adapters) {
      if (!refused) refused = beside.take_contracts(ops);
    }
    return refused;
  }
  /// What the adapters make of dy, in workspace: one after the other in the same memory.
  void lay_out_adapters_backward(backend& ops, memory_cursor& memory, const_tensor_view dy) {
    const std::size_t mark = memory.mark(memory_category::workspace);
    for (adapter& beside : adapters) {
      memory.rewind(memory_category::workspace, mark);
      beside.lay_out_backward(ops, memory, dy);
    }
  }
  /// For whoever computes x, which adapters read as well.
  quantize_target input_target(const pass& p) const { return kept_for_adapters(linear::input_target(p)); }
  /// For whoever computes dy, which adapters read as well.
  quantize_target gradient_target(const pass& p) const { return kept_for_adapters(linear::gradient_target(p)); }
  /// y = x·wᵀ and what the adapters add; x is quantized already, and adapters read it as well.
  void forward(const pass& p, const_tensor_view x, tensor_view y) const {
    linear::forward(p, y);
    forward_adapters(p, x, y);
  }
  /// y and what the adapters add.
  void forward_adapters(const pass& p, const_tensor_view x, tensor_view y) const {
    for (const adapter& beside : adapters) beside.forward(p, x, y, current().fprop.output);
  }

 private:
  quantize_target kept_for_adapters(quantize_target t) const {
    t.keeps_source = t.keeps_source || !adapters.empty();
    return t;
  }
};

}  // namespace rotoscale::nn
