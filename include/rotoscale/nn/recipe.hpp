// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Recipes are data: the format of each operand of each training GEMM. nn/schedule.hpp gives recipes their steps,
// nn/presets.hpp has the named ones, nn/recipe_faults.hpp checks them.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/nn/contracts.hpp"
#include "rotoscale/nn/operand_recipe.hpp"

namespace rotoscale::nn {

/// One of the three GEMMs of a linear layer y = x·wᵀ. left/right: fprop x, w; dgrad dy, w; wgrad dy, x.
struct gemm_recipe {
  operand_recipe left;                               ///< first operand
  operand_recipe right;                              ///< second operand
  std::string accumulate = fp32_fma_chain_contract;  ///< a name that find_gemm_contract knows
  operand_format output = operand_format::bf16;      ///< fp32 or bf16

  bool operator==(const gemm_recipe&) const = default;
};

/// The three GEMMs of a linear layer.
struct linear_recipe {
  gemm_recipe fprop;  ///< y = x·wᵀ
  gemm_recipe dgrad;  ///< dx = dy·w
  gemm_recipe wgrad;  ///< dw = dyᵀ·x

  bool operator==(const linear_recipe&) const = default;
};

/// Rule that makes a scale of a tensor's amax history.
enum class amax_algorithm { max, most_recent };
ROTOSCALE_ENUM_NAMES(amax_algorithm, max, most_recent)
/// Scale of a frozen FP8 weight, which is cast once: 1 (AMD's stash), or from its amax.
enum class frozen_scale { unscaled, amax };
ROTOSCALE_ENUM_NAMES(frozen_scale, unscaled, amax)
/// Time of scale updates: after each microbatch (Transformer Engine), or once a step. With one update a step, the bits
/// of a batch do not depend on the number of ranks.
enum class scale_update { micro_batch, step };
ROTOSCALE_ENUM_NAMES(scale_update, micro_batch, step)

/// Per-tensor FP8 scales from past maxima, as Transformer Engine's DelayedScaling.
struct delayed_scaling {
  int history_length = 1024;                             ///< length of the amax history
  amax_algorithm algorithm = amax_algorithm::max;        ///< entry that is used
  int margin = 0;                                        ///< powers of two of headroom
  frozen_scale frozen_weights = frozen_scale::unscaled;  ///< of weights that do not train
  bool reduce_amax = true;                               ///< are maxima taken over all ranks?
  scale_update update = scale_update::micro_batch;       ///< time of scale updates

  bool operator==(const delayed_scaling&) const = default;
};

/// Sets a weight to its quantized value if that value moves much more than the weight (AMD-AGI/Primus, weight_deosc).
struct deoscillation_recipe {
  std::int64_t start = 1500;  ///< optimizer steps before the first window
  std::int64_t period = 200;  ///< steps of a window
  double ratio = 3.0;         ///< a weight is set to its quantized value from this ratio of movements on

  bool operator==(const deoscillation_recipe&) const = default;
};

/// Operands of the backward GEMMs in place of dgrad's and wgrad's (Transformer Engine's backward_override).
enum class backward_kind {
  none,            ///< operands of dgrad and wgrad
  high_precision,  ///< the tensors as BF16
  dequantized      ///< the forward pass's quantized x and w, as BF16; dy as BF16
};
ROTOSCALE_ENUM_NAMES(backward_kind, none, high_precision, dequantized)

/// Contracts of the three GEMMs of layers whose formats are fixed.
struct accumulate_recipe {
  std::string fprop = fp32_fma_chain_contract;  ///< of y = x·wᵀ
  std::string dgrad = fp32_fma_chain_contract;  ///< of dx = dy·w
  std::string wgrad = fp32_fma_chain_contract;  ///< of dw = dyᵀ·x

  bool operator==(const accumulate_recipe&) const = default;
};

/// All settings that affect a linear layer's numbers. find_fault checks them.
struct recipe : linear_recipe {
  std::string name = "bf16";                              ///< in logs
  std::string contracts = "portable";                     ///< contract set that take_contracts applied
  backward_kind backward_override = backward_kind::none;  ///< kind that override_backward applied
  std::optional<linear_recipe> head;                  ///< of the output head; null: BF16, or FP32 for an FP32 recipe
  operand_format activations = operand_format::fp32;  ///< fp32 or bf16: storage between operations
  delayed_scaling fp8;                                ///< of per-tensor FP8 operands
  std::optional<deoscillation_recipe> deoscillation;  ///< of weights with blocks; null: none
  int bf16_first_layers = 0;                          ///< decoder layers at the start that stay in BF16
  int bf16_last_layers = 0;                           ///< decoder layers at the end that stay in BF16
  accumulate_recipe bf16_layers;                      ///< contracts of these layers
  accumulate_recipe adapters;                         ///< of adapters: BF16, or FP32 if all operands are FP32
  std::string attention = fp32_attention_contract;    ///< a name that find_attention_contract knows

  bool operator==(const recipe&) const = default;
};

/// Are all operands FP32?
constexpr bool is_all_fp32(const linear_recipe& r) {
  for (const gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
    if (g->left.format != operand_format::fp32 || g->right.format != operand_format::fp32) return false;
  }
  return true;
}
/// The same operand everywhere; wgrad writes FP32, as main gradients are.
inline linear_recipe uniform_gemms(const operand_recipe& operand, operand_format output) {
  const gemm_recipe g{operand, operand, fp32_fma_chain_contract, output};
  linear_recipe all{g, g, g};
  all.wgrad.output = operand_format::fp32;
  return all;
}
/// GEMMs of the output head. Without `head`: FP32 if all operands of the recipe are FP32, otherwise BF16 under the
/// contracts of the recipe's BF16 GEMMs.
inline linear_recipe head_of(const recipe& r) {
  if (r.head) return *r.head;
  const operand_format f = is_all_fp32(r) ? operand_format::fp32 : operand_format::bf16;
  linear_recipe head = uniform_gemms({f}, f);
  for (const auto gemm : {&linear_recipe::fprop, &linear_recipe::dgrad, &linear_recipe::wgrad}) {
    const gemm_recipe& own = r.*gemm;
    const bool is_bf16 = own.left.format == operand_format::bf16 && own.right.format == operand_format::bf16;
    if (is_bf16) (head.*gemm).accumulate = own.accumulate;
  }
  return head;
}

/// The same format everywhere, under these contracts.
inline linear_recipe uniform_gemms(operand_format format, const accumulate_recipe& contracts) {
  linear_recipe all = uniform_gemms({format}, format);
  all.fprop.accumulate = contracts.fprop;
  all.dgrad.accumulate = contracts.dgrad;
  all.wgrad.accumulate = contracts.wgrad;
  return all;
}
/// GEMMs of decoder layers that stay in BF16.
inline linear_recipe bf16_layers_of(const recipe& r) { return uniform_gemms(operand_format::bf16, r.bf16_layers); }
/// GEMMs of adapters: BF16, or FP32 if all operands of the recipe are FP32.
inline linear_recipe adapters_of(const recipe& r) {
  return uniform_gemms(is_all_fp32(r) ? operand_format::fp32 : operand_format::bf16, r.adapters);
}

/// True if weights get new signs each step, so that even frozen ones would be quantized again.
constexpr bool redraws_signs_of_weights(const linear_recipe& r) {
  return r.fprop.right.rotation.signs == sign_kind::step || r.dgrad.right.rotation.signs == sign_kind::step;
}

/// Is an operand narrower than BF16?
constexpr bool is_quantized(const gemm_recipe& g) {
  return element_format(g.left.format).bits() < 16 || element_format(g.right.format).bits() < 16;
}

/// Is any operand under delayed scaling?
constexpr bool has_delayed(const linear_recipe& r) {
  for (const gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
    if (is_delayed(g->left) || is_delayed(g->right)) return true;
  }
  return false;
}
/// The same in layers or the head.
inline bool has_delayed(const recipe& r) {
  return has_delayed(static_cast<const linear_recipe&>(r)) || (r.head && has_delayed(*r.head));
}

/// The recipe with the backward GEMMs of `kind`. Outputs stay. A GEMM with new operands has FP32 chains.
inline recipe override_backward(recipe r, backward_kind kind) {
  r.backward_override = kind;
  if (kind == backward_kind::none) return r;
  const operand_recipe bf16{operand_format::bf16};
  const auto forward_of = [&](const operand_recipe& o) {
    const bool quantized = is_fp8(o.format) || has_blocks(o.format);
    return kind == backward_kind::dequantized && quantized ? operand_recipe{operand_format::dequantized} : bf16;
  };
  const auto replace = [&](gemm_recipe& g, const operand_recipe& right) {
    if (g.left != bf16 || g.right != right) g = {bf16, right, fp32_fma_chain_contract, g.output};
  };
  replace(r.dgrad, forward_of(r.fprop.right));
  replace(r.wgrad, forward_of(r.fprop.left));
  return r;
}

using rotoscale::from_string;
using rotoscale::names;
using rotoscale::to_string;

template <class Visitor>
void describe(Visitor&& v, block_recipe& b) {
  v("length", b.length, "elements along the contraction axis that share a scale: 16, 32 or 128");
  v("rows", b.rows, "rows that share it: 1, or as many as length");
  v("scale", b.scale, "format of the scales: e8m0; nvfp4: ue4m3 or ue5m3");
}

template <class Visitor>
void describe(Visitor&& v, rotation_recipe& r) {
  v("points", r.points, "of the Hadamard: 16, 32, 64 or 128");
  v("signs", r.signs, "none, layer (drawn once a run), mask (given), step (drawn each step)");
  v("mask", r.mask, "signs mask: bit i negates element i of each 16");
}

/// In text, a format's own blocks are written out, and fields that a format does not use are null.
template <class Visitor>
void describe(Visitor&& v, operand_recipe& o) {
  v("format", o.format, "numbers the operand is made of");
  auto block = o.block || !has_blocks(o.format) ? o.block : own_blocks(o.format);
  const auto block_before = block;
  v("block", block, "shape and scale of blocks (default: the format's own)");
  if (block != block_before) o.block = block;
  v("scale_rule", o.rule, "how a block's amax becomes an E8M0 scale");
  v("scale_choice", o.choice, "nvfp4: what a block's amax becomes: amax (6), four_over_six, headroom, eden");
  v("source", o.source, "dgrad's w, wgrad's x: quantized from the values, or from the forward pass's operand");
  v("scaling", o.scaling, "fp8: a scale of earlier steps (delayed), of the tensor (current), row or block_...");
  v("macro_blocks", o.macro_blocks, "mxfp4: a further scale in [1, 2) for each 128 elements");
  v("outliers", o.outliers, "MXFP4, MXFP6: positions along the contraction axis, of the largest amax, that stay BF16");
  v("estimator", o.estimator, "fprop's w: gradient straight_through, or times the slope of a soft quantizer (dge)");
  v("rounding", o.rounding, "rounding of elements");
  auto rotation = o.rotation.points != 0 ? std::optional(o.rotation) : std::nullopt;
  const auto rotation_before = rotation;
  v("rotation", rotation, "Hadamard before the block maximum, along the contraction axis, or null");
  if (rotation != rotation_before) o.rotation = rotation.value_or(rotation_recipe{});
  v("policy", o.policy, "zero, NaN and Inf blocks");
}

/// A GEMM's recipe under the names its operands have in that GEMM.
struct gemm_fields {
  gemm_recipe& gemm;  ///< the recipe
  const char* left;   ///< name of its first operand
  const char* right;  ///< name of its second
};
template <class Visitor>
void describe(Visitor&& v, gemm_fields& g) {
  v(g.left, g.gemm.left, "left operand");
  v(g.right, g.gemm.right, "right operand");
  v("accumulate", g.gemm.accumulate, "contract of the sums: a chain, a matrix unit or a kernel by name");
  v("output", g.gemm.output, "numbers the result is rounded to (fp32 or bf16)");
}

template <class Visitor>
void describe(Visitor&& v, linear_recipe& r) {
  gemm_fields fprop{r.fprop, "x", "w"};
  gemm_fields dgrad{r.dgrad, "dy", "w"};
  gemm_fields wgrad{r.wgrad, "dy", "x"};
  v("fprop", fprop, "y = x w^T");
  v("dgrad", dgrad, "dx = dy w");
  v("wgrad", wgrad, "dw = dy^T x");
}

/// A GEMM of which only the contract can be chosen.
struct sum_fields {
  std::string& accumulate;  ///< its contract
};
template <class Visitor>
void describe(Visitor&& v, sum_fields& g) {
  v("accumulate", g.accumulate, "contract of the sums: a chain, a matrix unit or a kernel by name");
}

template <class Visitor>
void describe(Visitor&& v, accumulate_recipe& r) {
  sum_fields fprop{r.fprop};
  sum_fields dgrad{r.dgrad};
  sum_fields wgrad{r.wgrad};
  v("fprop", fprop, "y = x w^T");
  v("dgrad", dgrad, "dx = dy w");
  v("wgrad", wgrad, "dw = dy^T x");
}

template <class Visitor>
void describe(Visitor&& v, delayed_scaling& d) {
  v("history_length", d.history_length, "maxima kept, in steps");
  v("algorithm", d.algorithm, "max of the history or its most recent entry");
  v("margin", d.margin, "powers of two of headroom");
  v("frozen_weights", d.frozen_weights, "scale of frozen weights: unscaled (1) or from their amax");
  v("reduce_amax", d.reduce_amax, "maxima over all ranks, or of each rank");
  v("update", d.update, "when maxima become scales: after each micro_batch, or once a step");
}

template <class Visitor>
void describe(Visitor&& v, deoscillation_recipe& d) {
  v("start", d.start, "optimizer steps before the first window");
  v("period", d.period, "steps of a window");
  v("ratio", d.ratio, "ratio of the movements of quantized value and weight at which the weight is set to it");
}

template <class Visitor>
void describe(Visitor&& v, recipe& r) {
  v("name", r.name, "name in logs");
  v("contracts", r.contracts, "contract set: gives the contracts that a file does not name");
  describe(v, static_cast<linear_recipe&>(r));
  v("backward_override", r.backward_override,
    "what dgrad and wgrad multiply instead: none, high_precision, dequantized");
  v("head", r.head, "GEMMs of the output head (default: BF16; FP32 where all GEMMs are)");
  v("activations", r.activations, "storage between operations (fp32 or bf16)");
  v("fp8", r.fp8, "delayed scaling of per-tensor FP8 operands");
  v("deoscillation", r.deoscillation, "sets weights to their quantized value where that oscillates, or null");
  v("bf16_first_layers", r.bf16_first_layers, "decoder layers at the start left in BF16");
  v("bf16_last_layers", r.bf16_last_layers, "decoder layers at the end left in BF16");
  v("bf16_layers", r.bf16_layers, "contracts of the GEMMs of these layers");
  v("adapters", r.adapters, "contracts of the GEMMs of adapters (BF16; FP32 where all GEMMs are)");
  v("attention", r.attention, "contract of attention: FP32 chains, or tiles on a matrix unit by name");
}

}  // namespace rotoscale::nn
