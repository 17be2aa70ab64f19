// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The linear layer y = x·wᵀ under a recipe: each of its three GEMMs quantizes its operands along its own contraction
// axis, from the same source. Quantized weights are cached until the optimizer or the recipe changes them.
#pragma once

#include <vector>

#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::nn {

enum class gemm_kind { fprop, dgrad, wgrad };

/// Delayed-scaling state of all FP8 operands of a model: three tensors a linear layer (x, w, dy).
class scaling_book {
 public:
  static constexpr index_t tensors_per_layer = 3;
  enum role { x = 0, w = 1, dy = 2 };

  scaling_book() = default;
  /// Scales of 1 and an empty history, as Transformer Engine starts (and as AMD's healing step restarts).
  scaling_book(backend& ops, index_t layers, const recipe& r)
      : rule_(r.fp8),
        scale_(ops, layers * tensors_per_layer),
        inverse_(ops, scale_.size()),
        amax_(ops, scale_.size()),
        largest_(ops, scale_.size()),
        history_(ops, scale_.size() * r.fp8.history_length) {
    const std::vector<float> ones(static_cast<std::size_t>(scale_.size()), 1.0f);
    scale_.copy_in(ones);
    inverse_.copy_in(ones);
    std::vector<float> largest;
    for (index_t i = 0; i < layers; ++i) {
      for (const role tensor : {x, w, dy}) {
        const gemm_kind first = first_use(r, tensor);
        const format f = element_format(operand_of(r, first, tensor).format);
        largest.push_back(decode(f, f.max_code()));
      }
    }
    largest_.copy_in(largest);
  }

  /// A tensor is an operand of two GEMMs: its recipe in one of them.
  static const operand_recipe& operand_of(const recipe& r, gemm_kind gemm, role tensor) {
    if (tensor == x) return gemm == gemm_kind::fprop ? r.fprop.left : r.wgrad.right;
    if (tensor == w) return gemm == gemm_kind::fprop ? r.fprop.right : r.dgrad.right;
    return gemm == gemm_kind::dgrad ? r.dgrad.left : r.wgrad.left;
  }
  /// The first of its GEMMs that has it in FP8: there its maximum is taken, once.
  static gemm_kind first_use(const recipe& r, role tensor) {
    const gemm_kind early = tensor == dy ? gemm_kind::dgrad : gemm_kind::fprop;
    const gemm_kind late = tensor == w ? gemm_kind::dgrad : gemm_kind::wgrad;
    return is_fp8(operand_of(r, early, tensor).format) ? early : late;
  }

  /// Points `args` to the tensor's scale; its maximum is recorded if `record`.
  void apply(quantize_args& args, index_t layer, role tensor, bool record) const {
    if (!is_fp8(args.recipe.format)) return;
    const index_t i = layer * tensors_per_layer + tensor;
    args.scale = scale_.data() + i;
    args.scale_inverse = inverse_.data() + i;
    if (record) args.amax = amax_.data() + i;
  }

  /// After each backward pass: what was seen becomes the next scales.
  void update(backend& ops) const { ops.update_scales(state(), rule_); }

  scaling_state state() const {
    return {scale_.size(), rule_.history_length, scale_.data(),  inverse_.data(),
            amax_.data(),  history_.data(),      largest_.data()};
  }

  /// What a checkpoint must hold to go on with the same bits (amax is zero between steps).
  const buffer<float>& scales() const { return scale_; }
  const buffer<float>& inverses() const { return inverse_; }
  const buffer<float>& history() const { return history_; }

 private:
  delayed_scaling rule_;
  buffer<float> scale_, inverse_, amax_, largest_, history_;
};

/// What one pass through the model needs to know beyond shapes.
struct pass_context {
  backend* ops = nullptr;
  const recipe* current = nullptr;  ///< of this layer
  const scaling_book* scales = nullptr;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;  ///< optimizer step, for stochastic rounding and per-step signs
  std::uint64_t micro_batch = 0;
  std::uint64_t weight_version = 0;  ///< changes with every optimizer update and every change of recipe
  bool training = false;
};

namespace detail {

/// GEMM, operand, layer (16 bits) and step (32 bits) tell the streams of linear layers apart.
inline random_stream stream_of(const pass_context& c, random_purpose purpose, gemm_kind gemm, int right, index_t layer,
                               std::uint64_t step) {
  const std::uint64_t rest = static_cast<std::uint64_t>(gemm) << 52 | static_cast<std::uint64_t>(right) << 48 |
                             static_cast<std::uint64_t>(layer) << 32 | (step & 0xFFFFFFFFu);
  return stream_for(c.seed, purpose, rest);
}

}  // namespace detail

class linear {
 public:
  linear() = default;
  /// `layer` names this layer in random streams and the scaling book; weight and gradient are [out, in].
  linear(index_t layer, matrix<float> weight, matrix<float> gradient)
      : layer_(layer), weight_(weight), gradient_(gradient) {}

  /// y[tokens, out] = x[tokens, in]·wᵀ.
  void forward(const pass_context& c, matrix<const float> x, matrix<float> y) {
    const gemm_recipe& g = c.current->fprop;
    const gemm_operand& a = scratch(0).quantize(*c.ops, x, args(c, gemm_kind::fprop, 0, scaling_book::x));
    const gemm_operand& b = cached(c, weight_rows_, gemm_kind::fprop);
    c.ops->gemm(a, b, {model_of(g.accumulate), element_format(g.output), false}, y);
  }

  /// dx[tokens, in] = dy·w (overwritten), gradient += dyᵀ·x.
  void backward(const pass_context& c, matrix<const float> x, matrix<const float> dy, matrix<float> dx) {
    const gemm_recipe& d = c.current->dgrad;
    const gemm_operand& dy_rows = scratch(0).quantize(*c.ops, dy, args(c, gemm_kind::dgrad, 0, scaling_book::dy));
    const gemm_operand& w_columns = cached(c, weight_columns_, gemm_kind::dgrad);
    c.ops->gemm(dy_rows, w_columns, {model_of(d.accumulate), element_format(d.output), false}, dx);

    const gemm_recipe& g = c.current->wgrad;
    const gemm_operand& dy_columns = scratch(0).quantize(*c.ops, dy, args(c, gemm_kind::wgrad, 0, scaling_book::dy));
    const gemm_operand& x_columns = scratch(1).quantize(*c.ops, x, args(c, gemm_kind::wgrad, 1, scaling_book::x));
    c.ops->gemm(dy_columns, x_columns, {model_of(g.accumulate), element_format(g.output), true}, gradient_);
  }

  /// Operands that live only until the next call may share memory between layers.
  void share_scratch(std::vector<operand>& scratch) { scratch_ = &scratch; }

 private:
  struct weight_cache {
    operand quantized;
    std::uint64_t version = ~std::uint64_t{0};
    bool recorded = false;
  };

  operand& scratch(std::size_t i) { return (*scratch_)[i]; }

  quantize_args args(const pass_context& c, gemm_kind gemm, int right, scaling_book::role role) const {
    const recipe& r = *c.current;
    quantize_args a;
    a.recipe = scaling_book::operand_of(r, gemm, role);
    // fprop contracts features (rows of x and w); dgrad rows of dy, columns of w; wgrad tokens: columns of both.
    const bool columns = gemm == gemm_kind::wgrad || (gemm == gemm_kind::dgrad && right);
    a.axis = columns ? block_axis::column : block_axis::row;
    if (a.recipe.rotation == rotation_kind::h16_fixed_signs || a.recipe.rotation == rotation_kind::h16_step_signs) {
      // One mask for both operands, so that the rotation cancels.
      const std::uint64_t step = a.recipe.rotation == rotation_kind::h16_step_signs ? c.step + 1 : 0;
      a.signs = detail::stream_of(c, random_purpose::signs, gemm, 0, layer_, step).word(0);
    }
    const std::uint64_t micro_step = c.step << 8 | (c.micro_batch & 0xFF);
    a.random = detail::stream_of(c, random_purpose::rounding, gemm, right, layer_, micro_step);
    // Evaluations record nothing, so that they leave no trace in a run.
    if (c.scales) c.scales->apply(a, layer_, role, c.training && gemm == scaling_book::first_use(r, role));
    return a;
  }

  const gemm_operand& cached(const pass_context& c, weight_cache& cache, gemm_kind gemm) {
    // An evaluation may use what training quantized, but training must quantize itself: it records maxima.
    if (cache.version != c.weight_version || (c.training && !cache.recorded)) {
      cache.quantized.quantize(*c.ops, weight_, args(c, gemm, 1, scaling_book::w));
      cache.version = c.weight_version;
      cache.recorded = c.training;
    }
    return cache.quantized.get();
  }

  index_t layer_ = 0;
  matrix<float> weight_, gradient_;
  weight_cache weight_rows_, weight_columns_;
  std::vector<operand>* scratch_ = nullptr;
};

}  // namespace rotoscale::nn
