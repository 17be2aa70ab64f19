// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Statistics of linear layers in an observed microbatch: errors of operands, and of weight gradients against FP32
// GEMMs. A probe writes records and scratch memory only, so an observed step has the bits of any other step.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "rotoscale/nn/blocks/linear.hpp"
#include "rotoscale/nn/presets.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::nn {

inline constexpr int operands_per_linear = 6;  ///< as operand_uses lists them
static_assert(std::size(operand_uses) == operands_per_linear);

/// Statistics of a linear layer in a step's first microbatch, of the head in its first chunk. An adapter's matrix has
/// only a gradient. Missing operands and gradients have no elements.
struct linear_statistics {
  operand_statistics operands[operands_per_linear];  ///< in the order of operand_uses
  comparison_statistics gradient;                    ///< of w, against an FP32 GEMM of the same dy and x
};
static_assert(std::is_trivially_copyable_v<linear_statistics>);

/// Place of a form in linear_statistics::operands.
constexpr int operand_number(tensor_role tensor, operand_form form) {
  for (int i = 0; i < operands_per_linear; ++i) {
    if (operand_uses[i].tensor == tensor && operand_uses[i].form == form) return i;
  }
  return 0;
}
static_assert(operand_number(tensor_role::dy, operand_form::column) == 4);

/// All weight gradients of a step as one vector.
template <class Range>
comparison_statistics all_gradients(const Range& linears) {
  comparison_statistics sum;
  for (const linear_statistics& l : linears) sum.add(l.gradient);
  return sum;
}

/// Records of all linear layers, and the FP32 GEMMs of their weight gradients. Layers are numbered by `linear::record`.
class statistics_probe {
 public:
  /// Forgets all layers. Takes memory for `count` records.
  void lay_out(memory_cursor& memory, index_t count) {
    records_ = memory.array<linear_statistics>(memory_category::workspace, count);
    count_ = count;
    layers_.clear();
    layers_.resize(static_cast<std::size_t>(count));
  }
  /// Gives a layer separate memory for the FP32 gradient. Other layers share one.
  void own_gradient(memory_cursor& memory, const linear& l) {
    owner_ = l.record;
    own_ = memory.array<float>(memory_category::workspace, l.shape().out * l.shape().in);
  }
  /// Lays out the GEMM of a layer that trains. It reads x and dy in place if the backend can. Returns its workspace in
  /// bytes.
  std::size_t add(backend& ops, memory_cursor& memory, const linear& l, const_tensor_view x, const_tensor_view dy) {
    if (!l.shape().trains) return 0;
    static const recipe exact = presets::uniform("fp32", operand_format::fp32, operand_format::fp32);
    gemm_of_gradient& p = layers_[static_cast<std::size_t>(l.record)];
    const index_t out = l.shape().out, in = l.shape().in, tokens = x.extent(0);
    p.contract = ops.contract(exact.wgrad, out, in, tokens);
    if (!p.contract) return 0;  // this device adds no FP32 products
    if (l.record != owner_) largest_ = std::max(largest_, out * in);
    const auto make = [&](tensor_role tensor, const_tensor_view source) {
      operand_request r = l.request(tensor);
      r.source = source.type;
      r.rows = source.extent(0);
      r.row.reset();
      r.column = exact.wgrad.left;
      return take_operands(ops, memory, memory_category::workspace, r, source);
    };
    p.x = make(tensor_role::x, x);
    p.dy = make(tensor_role::dy, dy);
    return ops.gemm_workspace_bytes(*p.contract, exact.wgrad, gemm_kind::wgrad, out, in, tokens);
  }
  /// After the last layer: takes the memory that gradients share.
  void share_gradient(memory_cursor& memory) {
    shared_ = memory.array<float>(memory_category::workspace, largest_);
    largest_ = 0;
  }

  /// The records, in backend memory.
  const linear_statistics* records() const { return records_; }
  /// Clears the records.
  void clear(const pass& p) const {
    p.ops->fill_zero(p.queue, records_, static_cast<std::size_t>(count_) * sizeof(linear_statistics));
  }

  /// Observes the forms of a tensor that exist.
  void observe(const pass& p, const linear& l, tensor_role tensor, operand_set* set, const_tensor_view source) const {
    if (!p.observe || source.empty() || set == nullptr) return;
    for (const operand_form form : {operand_form::row, operand_form::column}) {
      if (!set->request().recipe(form)) continue;
      p.ops->observe(p.queue, {source, {set, form}, p.state},
                     {&records_[l.record].operands[operand_number(tensor, form)]});
    }
  }
  /// Observes the operands of a layer's forward GEMM.
  void observe_inputs(const pass& p, const linear& l, const_tensor_view x) const {
    observe(p, l, tensor_role::x, l.operands(tensor_role::x), x);
    observe(p, l, tensor_role::w, l.weights(), l.w.values);
  }
  /// Observes dy, and computes the weight gradient in FP32. Call before dx is written: it may share memory with x.
  void observe_gradient(const pass& p, const linear& l, const_tensor_view x, const_tensor_view dy) const {
    observe(p, l, tensor_role::dy, l.operands(tensor_role::dy), dy);
    multiply(p, l, x, dy);
  }
  /// Computes the weight gradient dyᵀ·x in FP32.
  void multiply(const pass& p, const linear& l, const_tensor_view x, const_tensor_view dy) const {
    const gemm_of_gradient& g = layers_[static_cast<std::size_t>(l.record)];
    if (!g.contract) return;
    p.ops->quantize(p.queue, {x, p.state}, {{g.x.get(), false, true, {}}});
    p.ops->quantize(p.queue, {dy, p.state}, {{g.dy.get(), false, true, {}}});
    p.ops->gemm(p.queue,
                {{g.dy.get(), operand_form::column},
                 {g.x.get(), operand_form::column},
                 *g.contract,
                 operand_format::fp32,
                 false},
                {dense_tensor(exact_gradient(l), dtype::fp32, {l.shape().out, l.shape().in})});
  }
  /// Compares the gradient, which was zero before this microbatch, with the result of multiply().
  void compare(const pass& p, const linear& l) const {
    if (l.w.gradient.empty() || !layers_[static_cast<std::size_t>(l.record)].contract) return;
    p.ops->compare(p.queue,
                   {static_cast<const float*>(l.w.gradient.data), exact_gradient(l), l.shape().out * l.shape().in},
                   {&records_[l.record].gradient});
  }

 private:
  /// FP32 operands of a weight gradient. No contract: the device has no such GEMM.
  struct gemm_of_gradient {
    std::unique_ptr<operand_set> x, dy;
    std::optional<gemm_contract> contract;
  };
  float* exact_gradient(const linear& l) const { return l.record == owner_ ? own_ : shared_; }

  linear_statistics* records_ = nullptr;
  std::vector<gemm_of_gradient> layers_;
  float *shared_ = nullptr, *own_ = nullptr;
  index_t count_ = 0, largest_ = 0, owner_ = -1;
};

}  // namespace rotoscale::nn
