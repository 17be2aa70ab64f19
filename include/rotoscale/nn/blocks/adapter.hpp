// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Low-rank adapter of a linear layer (Hu et al., arXiv:2106.09685): y += scale · dropout(x)·Aᵀ·Bᵀ, in high precision
// under every recipe of the layer. It is two linear layers and a dropout. Query, key and value may have one adapter
// each at a fused layer. Each draws a separate mask and adds to its rows of y, as in PEFT.
#pragma once

#include <cmath>
#include <vector>

#include "rotoscale/nn/blocks/statistics_probe.hpp"

namespace rotoscale::nn {

/// Shape and options of an adapter.
struct adapter_shape {
  linear_shape base;      ///< of the adapted layer; `trains` is the adapter's
  index_t rank = 0;       ///< rows of A, columns of B
  double scale = 1.0;     ///< factor of the added term: alpha / rank
  double dropout = 0.0;   ///< probability, of elements of x
  int part = 0;           ///< part of the layer, of the random stream
  index_t first_row = 0;  ///< first output feature that B adds to
  index_t rows = 0;       ///< of B
};

/// Gradients of an adapter's matrices; empty if they do not train.
struct adapter_gradients {
  tensor_view a;  ///< (rank, in)
  tensor_view b;  ///< (rows, rank)
};

/// An adapter: operands and views of saved tensors. It owns no memory.
class adapter {
 public:
  /// Under recipe `r`, which must outlive it and have one format for all operands.
  adapter(const adapter_shape& shape, const linear_recipe& r) : shape_(shape) {
    const dtype own = stored(r);
    linear_shape a = shape.base, b = shape.base;
    a.out = b.in = shape.rank;
    a.inputs = a.gradients = b.inputs = own;
    b.out = shape.rows;
    a.has_scales = b.has_scales = false;  // delayed scaling has entries for the layer's own tensors only
    a_ = linear(a, r);
    b_ = linear(b, r);
    evaluation_ = {shape.base.layer, shape.part, 0, static_cast<float>(shape.scale)};
    training_ = {shape.base.layer, shape.part, static_cast<std::uint32_t>(std::llround(shape.dropout * 0x1p32)),
                 static_cast<float>(shape.scale / (1.0 - shape.dropout))};
  }

  /// Its shape.
  const adapter_shape& shape() const { return shape_; }
  /// A: dropout(x) to the low-rank tensor.
  linear& a() { return a_; }
  /// A: dropout(x) to the low-rank tensor.
  const linear& a() const { return a_; }
  /// B: the low-rank tensor to its rows of y.
  linear& b() { return b_; }
  /// B: the low-rank tensor to its rows of y.
  const linear& b() const { return b_; }

  /// Looks up the contract of each GEMM. Returns the first unsupported GEMM, or nullopt.
  std::optional<refused_gemm> take_contracts(const backend& ops) {
    auto refused = a_.take_contracts(ops);
    if (!refused) refused = b_.take_contracts(ops);
    if (refused) refused->is_adapter = true;
    return refused;
  }

  /// Lays out tensors of the forward pass: saved if a backward pass follows, else scratch.
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
  /// Lays out tensors of the backward pass, in workspace.
  void lay_out_backward(backend& ops, memory_cursor& memory, const_tensor_view dy) {
    constexpr memory_category scratch = memory_category::workspace;
    b_.lay_out(ops, memory, scratch, tensor_role::dy, rows_of(dy));
    d_low_ = memory.tensor(scratch, stored(a_.current()), shape_.base.tokens, shape_.rank);
    a_.lay_out(ops, memory, scratch, tensor_role::dy, d_low_);
    d_dropped_ = memory.tensor(scratch, shape_.base.gradients, shape_.base.tokens, shape_.base.in);
  }

  /// Adds to y (tokens, out), rounded to `output` as y was.
  void forward(const pass& p, const_tensor_view x, tensor_view y, operand_format output) const {
    p.ops->dropout(p.queue, {x, p.training ? training_ : evaluation_, false, p.state}, {dropped_});
    p.ops->quantize(p.queue, {dropped_, p.state}, {a_.input_target(p)});
    a_.forward(p, low_);
    p.ops->quantize(p.queue, {low_, p.state}, {b_.input_target(p)});
    b_.forward_onto(p, rows_of(y), output);
  }
  /// After the layer's backward pass: adds to dx (tokens, in) and to the gradients. Quantizes dy.
  void backward(const pass& p, const_tensor_view dy, tensor_view dx, const adapter_gradients& gradients) const {
    p.ops->quantize(p.queue, {rows_of(dy), p.state}, {b_.gradient_target(p)});
    b_.backward(p, d_low_, gradients.b);
    p.ops->quantize(p.queue, {d_low_, p.state}, {a_.gradient_target(p)});
    a_.backward(p, d_dropped_, gradients.a);
    p.ops->dropout(p.queue, {d_dropped_, training_, true, p.state}, {dx});
  }

  /// Input of A in the forward pass. Kept until the next pass if wgrad reads the tensor itself.
  const_tensor_view dropped() const { return dropped_; }
  /// Input of B, likewise.
  const_tensor_view low() const { return low_; }
  /// Gradient of low(), from backward() until another adapter's backward().
  const_tensor_view low_gradient() const { return d_low_; }
  /// Columns of a tensor (tokens, out) that are its rows of y.
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

/// A linear layer of a model, with its adapters if it has some.
class adapted_linear : public linear {
 public:
  /// Without an adapter, under recipe `r`, which must outlive it.
  adapted_linear(const linear_shape& shape, const linear_recipe& r) : linear(shape, r) {}
  adapted_linear() = default;

  /// Adapters by ascending rows of y, without overlap.
  std::vector<adapter> adapters;

  /// Looks up the contract of each GEMM. Returns the first unsupported GEMM, or nullopt.
  std::optional<refused_gemm> take_contracts(const backend& ops) {
    auto refused = linear::take_contracts(ops);
    for (adapter& beside : adapters) {
      if (!refused) refused = beside.take_contracts(ops);
    }
    return refused;
  }
  /// Lays out the adapters' tensors of the forward pass.
  void lay_out_adapters(backend& ops, memory_cursor& memory) {
    for (adapter& beside : adapters) beside.lay_out_forward(ops, memory);
  }
  /// Lays out the adapters' tensors of the backward pass. They share workspace.
  void lay_out_adapters_backward(backend& ops, memory_cursor& memory, const_tensor_view dy) {
    const std::size_t mark = memory.mark(memory_category::workspace);
    for (adapter& beside : adapters) {
      memory.rewind(memory_category::workspace, mark);
      beside.lay_out_backward(ops, memory, dy);
    }
  }
  /// Quantization target for the producer of x, which adapters also read.
  quantize_target input_target(const pass& p) const { return kept_for_adapters(linear::input_target(p)); }
  /// The same for the producer of dy.
  quantize_target gradient_target(const pass& p) const { return kept_for_adapters(linear::gradient_target(p)); }
  /// y = x·wᵀ plus the adapters' terms, then y += bias if there is one. x is quantized before, and adapters read it.
  void forward(const pass& p, const_tensor_view x, tensor_view y, const_tensor_view bias = {}) const {
    if (p.observe) p.probe->observe_inputs(p, *this, x);
    if (adapters.empty()) return linear::forward(p, y, bias);
    linear::forward(p, y);
    forward_adapters(p, x, y);
    if (!bias.empty()) p.ops->bias_forward(p.queue, {bias}, {y});
  }
  /// Adds the adapters' terms to y.
  void forward_adapters(const pass& p, const_tensor_view x, tensor_view y) const {
    for (const adapter& beside : adapters) beside.forward(p, x, y, current().fprop.output);
  }
  /// dx (tokens, in) = dy·w plus the adapters' terms. Adds to all gradients. dy is quantized before. `x` is the layer's
  /// input in an observed pass.
  void backward(const pass& p, const_tensor_view x, const_tensor_view dy, tensor_view dx) const {
    if (p.observe) p.probe->observe_gradient(p, *this, x, dy);
    linear::backward(p, dx, w.gradient);
    if (p.observe) p.probe->compare(p, *this);
    for (const adapter& beside : adapters) {
      const linear &a = beside.a(), &b = beside.b();
      beside.backward(p, dy, dx, {a.w.gradient, b.w.gradient});
      if (!p.observe) continue;  // while its low-rank tensors exist
      p.probe->multiply(p, b, beside.low(), beside.rows_of(dy));
      p.probe->compare(p, b);
      p.probe->multiply(p, a, beside.dropped(), beside.low_gradient());
      p.probe->compare(p, a);
    }
  }

 private:
  quantize_target kept_for_adapters(quantize_target t) const {
    t.keeps_source = t.keeps_source || !adapters.empty();
    return t;
  }
};

}  // namespace rotoscale::nn
