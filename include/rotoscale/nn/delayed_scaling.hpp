// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Delayed scaling of all FP8 operands of a model: three tensors a linear layer (x, w, dy), each with one scale for both
// of its forms.
#pragma once

#include <vector>

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// Scales, maxima and histories of all FP8 tensors of a model.
class delayed_scaling_state {
 public:
  static constexpr index_t tensors_per_layer = 3;  ///< x, w and dy

  delayed_scaling_state() = default;
  /// Takes its memory; null while counting.
  delayed_scaling_state(memory_cursor& memory, index_t layers, const recipe& r) : rule_(r.fp8), recipe_(&r) {
    constexpr memory_category category = memory_category::quantized;
    const index_t n = layers * tensors_per_layer;
    state_.count = n;
    state_.history_length = r.fp8.history_length;
    state_.scale = memory.array<float>(category, n);
    state_.scale_inverse = memory.array<float>(category, n);
    state_.amax = memory.array<float>(category, n);
    state_.history = memory.array<float>(category, n * r.fp8.history_length);
    largest_ = memory.array<float>(category, n);
    state_.largest = largest_;
  }

  /// Scales of 1 and an empty history, as Transformer Engine starts (and as AMD's healing step restarts).
  void reset(backend& ops, queue q) const {
    const auto n = static_cast<std::size_t>(state_.count);
    const std::vector<float> ones(n, 1.0f);
    std::vector<float> largest;
    while (largest.size() < n) {
      for (const tensor_role tensor : {tensor_role::x, tensor_role::w, tensor_role::dy}) {
        const format f = element_format(fp8_format(tensor));
        largest.push_back(decode(f, f.max_code()));
      }
    }
    ops.upload(q, state_.scale, ones.data(), n * sizeof(float));
    ops.upload(q, state_.scale_inverse, ones.data(), n * sizeof(float));
    ops.upload(q, largest_, largest.data(), n * sizeof(float));
    ops.fill_zero(q, state_.amax, n * sizeof(float));
    ops.fill_zero(q, state_.history, history_size() * sizeof(float));
    ops.synchronize(q);
  }

  /// The tensor's scale under `r`, its layer's recipe; its maximum is recorded if `record`.
  scaling_ref of(const recipe& r, index_t layer, tensor_role tensor, bool record) const {
    const bool fp8 = is_fp8(recipe_for(r, tensor, operand_form::row).format) ||
                     is_fp8(recipe_for(r, tensor, operand_form::column).format);
    if (!fp8 || state_.scale == nullptr) return {};
    const index_t i = layer * tensors_per_layer + static_cast<index_t>(tensor);
    return {state_.scale + i, state_.scale_inverse + i, record ? state_.amax + i : nullptr};
  }

  /// After each backward pass: what was seen becomes the next scales.
  void update(backend& ops, queue q) const { ops.update_scales(q, state_, rule_); }

  /// The memory.
  const scaling_state& state() const { return state_; }
  /// Entries of all histories.
  std::size_t history_size() const {
    return static_cast<std::size_t>(state_.count) * static_cast<std::size_t>(state_.history_length);
  }

 private:
  /// The format that a tensor has in FP8, in whichever of its forms.
  operand_format fp8_format(tensor_role tensor) const {
    const operand_format row = recipe_for(*recipe_, tensor, operand_form::row).format;
    return is_fp8(row) ? row : recipe_for(*recipe_, tensor, operand_form::column).format;
  }

  delayed_scaling rule_;
  const recipe* recipe_ = nullptr;
  scaling_state state_;
  float* largest_ = nullptr;
};

}  // namespace rotoscale::nn
