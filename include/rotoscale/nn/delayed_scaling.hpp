// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Delayed scaling of all FP8 operands of a model: three tensors per linear layer (x, w, dy), each with one scale for
// both forms.
#pragma once

#include <algorithm>
#include <vector>

#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace rotoscale::nn {

/// State of delayed scaling in host memory, for checkpoints and changes of recipe.
struct scaling_snapshot {
  int history_length = 0;               ///< entries of each tensor
  std::vector<float> scale;             ///< of each tensor
  std::vector<float> scale_inverse;     ///< of each tensor
  std::vector<float> amax;              ///< since the last update
  std::vector<float> history;           ///< [tensors, history_length], the newest first
  std::vector<operand_format> formats;  ///< FP8 format of each tensor, or another format
};

/// Scales, maxima and histories of all FP8 tensors of a model.
class delayed_scaling_state {
 public:
  static constexpr index_t tensors_per_layer = 3;  ///< x, w and dy

  delayed_scaling_state() = default;
  /// Lays out memory, null while counting. The last layer is the output head.
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
      const format f = element_format(fp8_format(largest.size()));
      largest.push_back(decode(f, f.max_code()));
    }
    ops.upload(q, state_.scale, ones.data(), n * sizeof(float));
    ops.upload(q, state_.scale_inverse, ones.data(), n * sizeof(float));
    ops.upload(q, largest_, largest.data(), n * sizeof(float));
    ops.fill_zero(q, state_.amax, n * sizeof(float));
    ops.fill_zero(q, state_.history, history_size() * sizeof(float));
    ops.synchronize(q);
  }

  /// Scale of a tensor under `r`, the recipe of its layer. Its amax is recorded if `record`.
  scaling_ref of(const linear_recipe& r, index_t layer, tensor_role tensor, bool record) const {
    const bool fp8 = is_delayed(recipe_for(r, tensor, operand_form::row)) ||
                     is_delayed(recipe_for(r, tensor, operand_form::column));
    if (state_.scale == nullptr) return {};
    const index_t i = index_of(layer, tensor);
    float* const amax = record && (fp8 || observes_all_) ? state_.amax + i : nullptr;
    return fp8 ? scaling_ref{state_.scale + i, state_.scale_inverse + i, amax} : scaling_ref{nullptr, nullptr, amax};
  }
  /// State of one tensor, as of a model with one tensor.
  scaling_state entry(index_t layer, tensor_role tensor) const {
    const index_t i = index_of(layer, tensor);
    scaling_state one = state_;
    one.count = 1;
    for (float** p : {&one.scale, &one.scale_inverse, &one.amax}) *p += i;
    one.history += i * state_.history_length;
    one.largest += i;
    return one;
  }
  /// Also records amax of tensors without an FP8 form, for the scales of another recipe.
  void observe_all(bool on) { observes_all_ = on; }

  /// Copies the state to the host. Waits for the queue.
  scaling_snapshot save(backend& ops, queue q) const {
    const auto n = static_cast<std::size_t>(state_.count);
    scaling_snapshot s;
    s.history_length = state_.history_length;
    const auto fetch = [&](std::vector<float>& to, const float* from, std::size_t count) {
      to.resize(count);
      ops.download(q, to.data(), from, count * sizeof(float));
    };
    fetch(s.scale, state_.scale, n);
    fetch(s.scale_inverse, state_.scale_inverse, n);
    fetch(s.amax, state_.amax, n);
    fetch(s.history, state_.history, history_size());
    for (std::size_t i = 0; i < n; ++i) s.formats.push_back(has_state(i) ? fp8_format(i) : operand_format::bf16);
    ops.synchronize(q);
    return s;
  }
  /// Restores the state of save(), under the same recipe.
  void restore(backend& ops, queue q, const scaling_snapshot& s) const { write(ops, q, s); }
  /// Takes the state in `before` of tensors with the same FP8 format there. If one direction is `switched`, tensors
  /// that its GEMMs read in FP8 are left out.
  void keep(backend& ops, queue q, const scaling_snapshot& before, gemm_scope switched = gemm_scope::all) const {
    scaling_snapshot now = save(ops, q);
    const auto length = static_cast<std::size_t>(now.history_length),
               old = static_cast<std::size_t>(before.history_length);
    for (std::size_t i = 0; i < now.scale.size(); ++i) {
      if (!is_fp8(now.formats[i]) || now.formats[i] != before.formats[i]) continue;
      if (switched != gemm_scope::all && is_read(i, switched)) continue;
      now.scale[i] = before.scale[i];
      now.scale_inverse[i] = before.scale_inverse[i];
      for (std::size_t h = 0; h < length; ++h) {
        now.history[i * length + h] = h < old ? before.history[i * old + h] : 0.0f;
      }
    }
    write(ops, q, now);
  }
  /// Resets, then sets the recorded amax of each tensor; 0: unknown. Waits for the queue.
  void record(backend& ops, queue q, const std::vector<float>& maxima) const {
    reset(ops, q);
    ops.upload(q, state_.amax, maxima.data(), maxima.size() * sizeof(float));
    ops.synchronize(q);
  }

  /// After a backward pass: computes the next scales from recorded maxima.
  void update(backend& ops, queue q) const { ops.update_scales(q, {rule_}, {state_}); }

  /// The memory.
  const scaling_state& state() const { return state_; }
  /// Entries of all histories.
  std::size_t history_size() const {
    return static_cast<std::size_t>(state_.count) * static_cast<std::size_t>(state_.history_length);
  }

 private:
  /// FP8 format of tensor i, of either form.
  operand_format fp8_format(std::size_t i) const {
    const operand_format row = format_of(i, operand_form::row);
    return is_fp8(row) ? row : format_of(i, operand_form::column);
  }
  operand_format format_of(std::size_t i, operand_form form) const { return stored_format(operand_of(i, form)); }
  /// False for FP8 tensors with their own scale.
  bool has_state(std::size_t i) const {
    return !is_current(operand_of(i, operand_form::row)) && !is_current(operand_of(i, operand_form::column));
  }
  const operand_recipe& operand_of(std::size_t i, operand_form form) const {
    const bool head = static_cast<index_t>(i) + tensors_per_layer >= state_.count && recipe_->head;
    const linear_recipe& r = head ? *recipe_->head : *recipe_;
    return recipe_for(r, static_cast<tensor_role>(i % tensors_per_layer), form);
  }
  /// True if GEMMs of one direction read tensor i in FP8. fprop reads x and w along rows; the other reads are backward.
  bool is_read(std::size_t i, gemm_scope direction) const {
    const bool is_dy = static_cast<tensor_role>(i % tensors_per_layer) == tensor_role::dy;
    const bool row = is_fp8(format_of(i, operand_form::row)), column = is_fp8(format_of(i, operand_form::column));
    return direction == gemm_scope::forward ? row && !is_dy : column || (row && is_dy);
  }

  static index_t index_of(index_t layer, tensor_role tensor) {
    return layer * tensors_per_layer + static_cast<index_t>(tensor);
  }
  void write(backend& ops, queue q, const scaling_snapshot& s) const {
    const auto put = [&](float* to, const std::vector<float>& from) {
      ops.upload(q, to, from.data(), from.size() * sizeof(float));
    };
    put(state_.scale, s.scale);
    put(state_.scale_inverse, s.scale_inverse);
    put(state_.amax, s.amax);
    put(state_.history, s.history);
    ops.synchronize(q);
  }

  bool observes_all_ = false;
  delayed_scaling rule_;
  const recipe* recipe_ = nullptr;
  scaling_state state_;
  float* largest_ = nullptr;
};

}  // namespace rotoscale::nn
