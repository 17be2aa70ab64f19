// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Linear layer y = x·wᵀ with quantized operands.
//
// fprop  y  (tokens, out) = x  (tokens, in)  · wᵀ
// dgrad  dx (tokens, in)  = dy (tokens, out) · w
// wgrad  dw (out, in)    += dyᵀ · x
//
// Each tensor is quantized once, along both contraction axes: w after an optimizer update, x in the forward pass, dy in
// the backward pass. A frozen layer keeps only the operands of w.
#pragma once

#include "rotoscale/nn/delayed_scaling.hpp"

namespace rotoscale::nn {

class communicator;
class statistics_probe;

/// State of one forward or backward pass.
struct pass {
  backend* ops = nullptr;                         ///< operations
  nn::queue queue;                                ///< queue of the pass
  step_state* state = nullptr;                    ///< counters and random seeds of the step, in backend memory
  const delayed_scaling_state* scales = nullptr;  ///< of FP8 operands
  bool training = false;                          ///< a backward pass follows; maxima are recorded
  bool observe = false;                           ///< record statistics (first microbatch of a step only)
  index_t past = 0;                               ///< number of cached key/value tokens
  communicator* ranks = nullptr;                  ///< this rank among others; null: one rank
  const statistics_probe* probe = nullptr;        ///< records statistics if `observe`
  token_source tokens = {};                       ///< input ids
  token_source targets = {};                      ///< target ids
  token_source starts = {};                       ///< where each token's document begins; no data: one document
};

/// A parameter's memory.
struct weight {
  std::size_t number = 0;    ///< of the parameter
  const_tensor_view values;  ///< FP32; no data: operands only
  tensor_view gradient;      ///< FP32; empty if it is frozen
};

/// Shape and options of a linear layer.
struct linear_shape {
  index_t layer = 0;              ///< number in random streams and scales
  index_t out = 0;                ///< output features
  index_t in = 0;                 ///< input features
  index_t tokens = 0;             ///< of a pass
  bool trains = true;             ///< w has a gradient
  bool backward = true;           ///< a backward pass follows
  dtype inputs = dtype::fp32;     ///< storage of x
  dtype gradients = dtype::fp32;  ///< storage of dy
  bool has_scales = true;         ///< delayed scaling has entries for its tensors
  bool keeps_codes = false;       ///< operands of w are codes, which take less memory than BF16 numbers
};

/// A GEMM of a linear layer that a backend does not support.
struct refused_gemm {
  linear_shape shape;       ///< of the layer
  gemm_kind gemm{};         ///< the unsupported GEMM
  gemm_recipe recipe;       ///< recipe of the GEMM
  index_t rows = 0;         ///< of the left operand
  index_t cols = 0;         ///< rows of the right one
  index_t k = 0;            ///< contracted extent
  bool is_adapter = false;  ///< of an adapter's matrix
};

/// Takes memory for an operand set and makes the set. Null while counting.
inline std::unique_ptr<operand_set> take_operands(backend& ops, memory_cursor& memory, memory_category category,
                                                  const operand_request& r, const_tensor_view source) {
  void* const at = memory.take(category, ops.layout_operands(r).bytes);
  return memory.counts_only() ? nullptr : ops.make_operands(r, at, source);
}

/// A linear layer: operands and contracts of its GEMMs. It owns no memory.
class linear {
 public:
  linear() = default;
  /// Under recipe `r`, which must outlive it.
  linear(const linear_shape& shape, const linear_recipe& r) : shape_(shape), recipe_(&r) {}

  weight w;            ///< (out, in)
  index_t record = 0;  ///< number in statistics

  /// Its shape.
  const linear_shape& shape() const { return shape_; }
  /// Its recipe.
  const linear_recipe& current() const { return *recipe_; }
  /// The operands of w.
  operand_set* weights() const { return get(tensor_role::w); }
  /// The operands of a tensor, or null if it has none.
  operand_set* operands(tensor_role tensor) const { return get(tensor); }

  /// Describes the operands of `tensor`. The FP32 source of a frozen weight is freed after quantization.
  operand_request request(tensor_role tensor) const {
    operand_request r;
    r.tensor = tensor;
    r.layer = shape_.layer;
    r.source = tensor == tensor_role::w ? dtype::fp32 : tensor == tensor_role::x ? shape_.inputs : shape_.gradients;
    r.rows = tensor == tensor_role::w ? shape_.out : shape_.tokens;
    r.cols = tensor == tensor_role::dy ? shape_.out : shape_.in;
    const bool column = shape_.backward && (tensor == tensor_role::w || shape_.trains);
    r.row = recipe_for(*recipe_, tensor, operand_form::row);
    if (column) r.column = recipe_for(*recipe_, tensor, operand_form::column);
    const bool as_codes = tensor == tensor_role::w && (shape_.keeps_codes || !shape_.trains);
    const auto in_bf16 = [&](operand_form form) {
      return !as_codes && expands_operands(recipe_for(*recipe_, use_of(tensor, form).gemm).accumulate);
    };
    // An estimator reads w's scales.
    r.row_in_bf16 = in_bf16(operand_form::row) && r.row->estimator == gradient_estimator::straight_through;
    r.column_in_bf16 = column && in_bf16(operand_form::column);
    return r;
  }
  /// True if the source must keep its values while the operands are used.
  bool keeps_source(const backend& ops, tensor_role tensor) const {
    return ops.layout_operands(request(tensor)).reads_source;
  }

  /// Lays out the operands of a tensor, made from `source`. Returns their memory, or null while counting.
  void* lay_out(backend& ops, memory_cursor& memory, memory_category category, tensor_role tensor,
                const_tensor_view source) {
    const operand_request r = request(tensor);
    const std::size_t bytes = ops.layout_operands(r).bytes;
    void* const at = memory.take(category, bytes);
    if (memory.counts_only()) return nullptr;
    set(tensor) = ops.make_operands(r, at, source);
    if (tensor == tensor_role::w) resident_ = resident(memory.ledger(), category, bytes);
    return at;
  }
  /// Frees the operands of w.
  void release_weights() {
    set(tensor_role::w).reset();
    resident_ = {};
  }
  /// Looks up the contract of each GEMM. Returns the first unsupported GEMM, or nullopt.
  std::optional<refused_gemm> take_contracts(const backend& ops) {
    for (const gemm_kind g : all_gemms) {
      const gemm_extents e = extents(g);
      const gemm_recipe& r = recipe_for(*recipe_, g);
      const auto found = ops.contract(r, e.rows, e.cols, e.k);
      if (!found) return refused_gemm{shape_, g, r, e.rows, e.cols, e.k};
      contracts_[static_cast<int>(g)] = *found;
    }
    return std::nullopt;
  }
  /// Workspace of the GEMMs, in bytes.
  std::size_t workspace_bytes(const backend& ops) const {
    std::size_t most = 0;
    for (const gemm_kind g : all_gemms) {
      if ((g != gemm_kind::fprop && !shape_.backward) || (g == gemm_kind::wgrad && !shape_.trains)) continue;
      const gemm_extents e = extents(g);
      most = std::max(most, ops.gemm_workspace_bytes(contract(g), recipe_for(*recipe_, g), g, e.rows, e.cols, e.k));
    }
    return most;
  }
  /// The contract that take_contracts() found.
  const gemm_contract& contract(gemm_kind g) const { return contracts_[static_cast<int>(g)]; }

  /// Quantizes w along both axes and records its amax. Call after every change of w.
  void quantize_weights(const pass& p, const_tensor_view values) const {
    quantize_weights(p, values, *get(tensor_role::w));
  }
  /// The same into `to`: the operands of w, or of some rows of w.
  void quantize_weights(const pass& p, const_tensor_view values, operand_set& to) const {
    quantize_target t = target(p, tensor_role::w, true);
    t.set = &to;
    p.ops->quantize(p.queue, {values, p.state}, {t});
  }
  /// Quantization target for the producer of x, which writes the operands directly.
  quantize_target input_target(const pass& p) const { return target(p, tensor_role::x, p.training); }
  /// The same for the producer of dy.
  quantize_target gradient_target(const pass& p) const { return target(p, tensor_role::dy, true); }

  /// Delayed scaling of a tensor under this layer's recipe. Its amax is recorded if `records`.
  scaling_ref scaling(const pass& p, tensor_role tensor, bool records) const {
    return p.scales != nullptr && shape_.has_scales ? p.scales->of(*recipe_, shape_.layer, tensor, records)
                                                    : scaling_ref{};
  }

  /// y (tokens, out) = x·wᵀ, then y += bias if there is one; x is quantized.
  void forward(const pass& p, tensor_view y, const_tensor_view bias = {}) const {
    if (bias.empty()) return multiply(p, y, recipe_->fprop.output, false);
    const gemm_contract& c = contract(gemm_kind::fprop);
    p.ops->gemm_bias(p.queue, {row(tensor_role::x), row(tensor_role::w), c, recipe_->fprop.output, bias}, {y});
  }
  /// y = x·wᵀ + y, rounded once to `output`.
  void forward_onto(const pass& p, tensor_view y, operand_format output) const { multiply(p, y, output, true); }
  /// dx (tokens, in) = dy·w (overwritten), gradient (out, in) += dyᵀ·x; dy is quantized.
  void backward(const pass& p, tensor_view dx, tensor_view gradient) const {
    const operand dy = row(tensor_role::dy);
    p.ops->gemm(p.queue, {dy, column(tensor_role::w), contract(gemm_kind::dgrad), recipe_->dgrad.output, false}, {dx});
    if (!shape_.trains) return;
    p.ops->gemm(
        p.queue,
        {column(tensor_role::dy), column(tensor_role::x), contract(gemm_kind::wgrad), recipe_->wgrad.output, true},
        {gradient});
    if (recipe_->fprop.right.estimator == gradient_estimator::straight_through) return;
    p.ops->estimate_gradient(p.queue, {row(tensor_role::w), w.values}, {gradient});
  }

 private:
  static constexpr gemm_kind all_gemms[] = {gemm_kind::fprop, gemm_kind::dgrad, gemm_kind::wgrad};
  struct gemm_extents {
    index_t rows, cols, k;
  };
  gemm_extents extents(gemm_kind g) const {
    const linear_shape& s = shape_;
    if (g == gemm_kind::fprop) return {s.tokens, s.out, s.in};
    return g == gemm_kind::dgrad ? gemm_extents{s.tokens, s.in, s.out} : gemm_extents{s.out, s.in, s.tokens};
  }
  void multiply(const pass& p, tensor_view y, operand_format output, bool accumulate) const {
    p.ops->gemm(p.queue, {row(tensor_role::x), row(tensor_role::w), contract(gemm_kind::fprop), output, accumulate},
                {y});
  }
  operand row(tensor_role tensor) const { return {get(tensor), operand_form::row}; }
  operand column(tensor_role tensor) const { return {get(tensor), operand_form::column}; }
  std::unique_ptr<operand_set>& set(tensor_role tensor) { return sets_[static_cast<int>(tensor)]; }
  operand_set* get(tensor_role tensor) const { return sets_[static_cast<int>(tensor)].get(); }
  /// Evaluations record no amax of x, so that they do not change a run.
  quantize_target target(const pass& p, tensor_role tensor, bool records) const {
    quantize_target t;
    t.set = get(tensor);
    t.row = true;
    t.column = t.set->request().column.has_value() && (p.training || tensor == tensor_role::w);
    t.scaling = scaling(p, tensor, records);
    t.keeps_source = p.observe || keeps_source(*p.ops, tensor);
    return t;
  }

  linear_shape shape_;
  const linear_recipe* recipe_ = nullptr;
  gemm_contract contracts_[3];
  std::unique_ptr<operand_set> sets_[3];  ///< by tensor_role
  resident resident_;                     ///< bytes of w's operands
};

/// Clears the amax history of a frozen weight. Its codes were cast once, so later updates must not change its scale.
inline void forget_maxima(backend& ops, queue q, const scaling_state& entry) {
  ops.fill_zero(q, entry.amax, sizeof(float));
  ops.fill_zero(q, entry.history, static_cast<std::size_t>(entry.history_length) * sizeof(float));
}

/// Casts a frozen weight to FP8 once: with scale 1, or with a scale from its amax, by the rule. `scaling` is the
/// weight's entry of delayed scaling, which then holds the scale. Waits for the queue.
inline void quantize_frozen(const pass& p, operand_set& to, const_tensor_view source, const scaling_state& scaling,
                            const delayed_scaling& rule) {
  const float one = 1.0f;
  forget_maxima(*p.ops, p.queue, scaling);
  p.ops->upload(p.queue, scaling.scale, &one, sizeof one);
  p.ops->upload(p.queue, scaling.scale_inverse, &one, sizeof one);
  quantize_target target{&to, true, to.request().column.has_value(), {scaling.scale, scaling.scale_inverse, nullptr}};
  if (rule.frozen_weights == frozen_scale::amax) {
    target.scaling.amax = scaling.amax;
    p.ops->quantize(p.queue, {source, p.state}, {target});
    delayed_scaling latest = rule;
    latest.algorithm = amax_algorithm::most_recent;
    p.ops->update_scales(p.queue, {latest}, {scaling});
    target.scaling.amax = nullptr;
  }
  p.ops->quantize(p.queue, {source, p.state}, {target});
  p.ops->synchronize(p.queue);
}

}  // namespace rotoscale::nn
