// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Options of a tensor's form that a recipe leaves open: signs of rotations and random words. They derive from the
// step's state.
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::nn {

/// Words of the signs of a rotation's run, which has at most 128 elements.
inline constexpr int sign_words = 4;

/// Complete options for quantizing one form of a tensor.
struct form_options {
  operand_recipe recipe;                 ///< of the form
  block_axis axis = block_axis::row;     ///< axis of the blocks
  std::uint32_t signs[sign_words] = {};  ///< of the rotation, as rotation::signs
  random_stream random = {};             ///< for stochastic rounding
};

/// GEMM, side and layer (16 bits) and a counter (32 bits) tell the streams of linear layers apart.
constexpr std::uint64_t stream_of(random_purpose purpose, gemm_kind gemm, bool right, index_t layer) {
  const std::uint64_t rest = static_cast<std::uint64_t>(gemm) << 52 | static_cast<std::uint64_t>(right) << 48 |
                             static_cast<std::uint64_t>(layer) << 32;
  return stream_for(0, purpose, rest).stream;
}

/// Sources of a form's random words and signs. Values that change from step to step are in the state.
struct form_draws {
  std::uint64_t rounding = 0;                  ///< stream of random words, counter 0
  std::uint64_t signs = 0;                     ///< stream of the signs
  std::uint32_t given_signs[sign_words] = {};  ///< signs of the rotation, if none are drawn
  bool draws_signs = false;                    ///< signs are words of their stream
  bool each_step = false;                      ///< signs are drawn each step
  bool counts_micro_batches = false;           ///< random words change with the micro-batch, not only with the step

  /// Words of the state's step.
  ROTOSCALE_HD constexpr random_stream words(const step_state& now) const {
    const std::uint64_t micro_batch = counts_micro_batches ? now.global_micro_batch() & 0xFF : 0;
    return {now.inputs.seed, rounding | ((now.inputs.step << 8 | micro_batch) & 0xFFFFFFFFu)};
  }
  /// Word `i` of the signs' mask.
  ROTOSCALE_HD constexpr std::uint32_t mask(const step_state& now, int i = 0) const {
    if (!draws_signs) return given_signs[i];
    const random_stream words{now.inputs.seed, signs | (each_step ? (now.inputs.step + 1) & 0xFFFFFFFFu : 0)};
    return words.word(static_cast<std::uint64_t>(i));
  }
};

/// Sources for one form of a tensor.
inline form_draws draws_of(const operand_request& request, operand_form form) {
  const operand_use use = use_of(request.tensor, form);
  const rotation_recipe& rotation = request.recipe(form)->rotation;
  form_draws d;
  d.rounding = stream_of(random_purpose::rounding, use.gemm, use.right, request.layer + request.part);
  // One mask for both operands, so that the rotation cancels.
  d.signs = stream_of(random_purpose::signs, use.gemm, false, request.layer);
  d.each_step = rotation.signs == sign_kind::step;
  d.draws_signs = d.each_step || rotation.signs == sign_kind::layer;
  if (rotation.signs == sign_kind::mask) {
    for (std::uint32_t& word : d.given_signs) word = rotation.mask << 16 | rotation.mask;
  }
  // Weights are quantized once a step, independent of the number of its first micro-batch.
  d.counts_micro_batches = request.tensor != tensor_role::w;
  return d;
}

/// Options of a form in the state's step; no state: step 0, seed 0.
inline form_options resolve_form(const operand_request& request, operand_form form, const step_state* state) {
  const step_state none;
  const step_state& now = state != nullptr ? *state : none;
  const form_draws draws = draws_of(request, form);
  form_options o;
  o.recipe = *request.recipe(form);
  o.axis = form == operand_form::row ? block_axis::row : block_axis::column;
  for (int i = 0; i < sign_words; ++i) o.signs[i] = draws.mask(now, i);
  o.random = draws.words(now);
  return o;
}

/// As options of the block quantizers.
inline block_options block_options_for(const form_options& form) {
  block_options o;
  o.source = formats::bf16;
  o.rotation.points = form.recipe.rotation.points;
  for (int i = 0; i < sign_words; ++i) o.rotation.signs[i] = form.signs[i];
  o.rule = form.recipe.rule;
  o.choice = form.recipe.choice;
  o.policy = form.recipe.policy;
  o.rounding = form.recipe.rounding;
  o.random = form.random;
  return o;
}

}  // namespace rotoscale::nn
