// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Recipes are data: which numbers each operand of each training GEMM is made of (from when on: nn/schedule.hpp).
// docs/recipes.md has each preset's source.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/names.hpp"
#include "rotoscale/nn/contracts.hpp"
#include "rotoscale/nn/tensor.hpp"

namespace rotoscale::nn {

/// What an operand is made of.
enum class operand_format { fp32, bf16, fp8_e4m3, fp8_e5m2, mxfp4, mxfp8_e4m3, mxfp8_e5m2 };
/// Rotation before quantizing: none, or H16 with no signs, signs drawn once a run, or anew each step.
enum class rotation_kind { none, h16, h16_fixed_signs, h16_step_signs };
/// Which block_policy.
enum class policy_kind { te_rocm, ocp };
/// What of the history makes the next scale.
enum class amax_algorithm { max, most_recent };
/// Scale of a frozen FP8 weight, which is cast once: 1 (AMD's stash), or from its own maximum.
enum class frozen_scale { unscaled, amax };

/// One operand of one GEMM. The scale rule, rotation and policy matter to MX formats only.
struct operand_recipe {
  operand_format format = operand_format::bf16;                      ///< of the elements
  scale_rule rule = scale_rule::even;                                ///< of block scales
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;  ///< of the elements
  rotation_kind rotation = rotation_kind::none;                      ///< the same for both operands of a GEMM
  policy_kind policy = policy_kind::te_rocm;                         ///< blocks of zeros, NaN and Inf

  bool operator==(const operand_recipe&) const = default;
};

/// One of the three GEMMs of a linear layer y = x·wᵀ. left/right: fprop x, w; dgrad dy, w; wgrad dy, x.
struct gemm_recipe {
  operand_recipe left;                               ///< first operand
  operand_recipe right;                              ///< second operand
  std::string accumulate = fp32_fma_chain_contract;  ///< a name that find_gemm_contract knows
  operand_format output = operand_format::bf16;      ///< fp32 or bf16

  bool operator==(const gemm_recipe&) const = default;
};

/// Per-tensor FP8 scales from past maxima, as Transformer Engine's DelayedScaling.
struct delayed_scaling {
  int history_length = 1024;                             ///< maxima that are kept
  amax_algorithm algorithm = amax_algorithm::max;        ///< which of them counts
  int margin = 0;                                        ///< powers of two of headroom
  frozen_scale frozen_weights = frozen_scale::unscaled;  ///< of weights that do not train

  bool operator==(const delayed_scaling&) const = default;
};

/// All that a linear layer's numbers depend on; find_fault says whether it is consistent.
struct recipe {
  std::string name = "bf16";                          ///< in logs
  gemm_recipe fprop;                                  ///< y = x·wᵀ
  gemm_recipe dgrad;                                  ///< dx = dy·w
  gemm_recipe wgrad;                                  ///< dw = dyᵀ·x
  operand_format activations = operand_format::fp32;  ///< fp32 or bf16: what is stored between operations
  delayed_scaling fp8;                                ///< of per-tensor FP8 operands
  int bf16_first_layers = 0;                          ///< decoder layers at the start that stay in BF16
  int bf16_last_layers = 0;                           ///< and at the end
  std::string attention = fp32_attention_contract;    ///< a name that find_attention_contract knows

  bool operator==(const recipe&) const = default;
};

/// Per-tensor FP8?
constexpr bool is_fp8(operand_format f) { return f == operand_format::fp8_e4m3 || f == operand_format::fp8_e5m2; }
/// Blocks with E8M0 scales?
constexpr bool is_mx(operand_format f) {
  return f == operand_format::mxfp4 || f == operand_format::mxfp8_e4m3 || f == operand_format::mxfp8_e5m2;
}
/// The format of its elements.
constexpr format element_format(operand_format f) {
  switch (f) {
    case operand_format::fp32: return formats::fp32;
    case operand_format::bf16: return formats::bf16;
    case operand_format::fp8_e4m3:
    case operand_format::mxfp8_e4m3: return formats::e4m3;
    case operand_format::fp8_e5m2:
    case operand_format::mxfp8_e5m2: return formats::e5m2;
    case operand_format::mxfp4: return formats::e2m1;
  }
  return formats::fp32;
}
/// Of an MX format.
constexpr block_format block_format_of(operand_format f) { return {element_format(f), 32}; }
/// Only fp32 and bf16.
constexpr dtype storage_for(operand_format f) { return f == operand_format::bf16 ? dtype::bf16 : dtype::fp32; }
/// The policy of that name.
constexpr block_policy policy_of(policy_kind p) {
  return p == policy_kind::te_rocm ? policies::te_rocm : policies::ocp;
}

/// Does any operand need its contraction axis to be a multiple of 32?
constexpr bool needs_blocks(const gemm_recipe& g) { return is_mx(g.left.format) || is_mx(g.right.format); }
/// Does any of its GEMMs?
constexpr bool needs_blocks(const recipe& r) {
  return needs_blocks(r.fprop) || needs_blocks(r.dgrad) || needs_blocks(r.wgrad);
}

/// Are all operands FP32?
constexpr bool is_all_fp32(const recipe& r) {
  for (const gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
    if (g->left.format != operand_format::fp32 || g->right.format != operand_format::fp32) return false;
  }
  return true;
}

/// Does a weight have to be quantized in every step, whether it changes or not?
constexpr bool redraws_signs_of_weights(const recipe& r) {
  return r.fprop.right.rotation == rotation_kind::h16_step_signs ||
         r.dgrad.right.rotation == rotation_kind::h16_step_signs;
}

/// Is any operand narrower than BF16?
constexpr bool is_quantized(const recipe& r) {
  for (const gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
    for (const operand_recipe* o : {&g->left, &g->right}) {
      if (element_format(o->format).bits() < 16) return true;
    }
  }
  return false;
}

/// A sentence that says what is wrong with a GEMM's recipe, or nothing. `where` names it.
inline std::optional<std::string> find_fault(const gemm_recipe& g, const std::string& where) {
  if (g.left.rotation != g.right.rotation)
    return where + ": both operands must have the same rotation, or it does not cancel";
  if (g.left.rotation != rotation_kind::none && !(is_mx(g.left.format) && is_mx(g.right.format))) {
    return where + ": a rotation needs MX formats on both operands";
  }
  if (g.output != operand_format::fp32 && g.output != operand_format::bf16)
    return where + ": output must be fp32 or bf16";
  if (!find_gemm_contract(g.accumulate)) {
    return where + ": accumulate: '" + g.accumulate + "' is no contract (docs/numerics.md lists them)";
  }
  if (g.accumulate == fp32_blockwise_contract &&
      (g.left.format != operand_format::mxfp4 || g.right.format != operand_format::mxfp4)) {
    return where + ": fp32_blockwise accumulation needs mxfp4 on both operands, whose block sums are exact";
  }
  return std::nullopt;
}

/// The same for a whole recipe.
inline std::optional<std::string> find_fault(const recipe& r) {
  if (auto fault = find_fault(r.fprop, "fprop")) return fault;
  if (auto fault = find_fault(r.dgrad, "dgrad")) return fault;
  if (auto fault = find_fault(r.wgrad, "wgrad")) return fault;
  if (r.activations != operand_format::fp32 && r.activations != operand_format::bf16)
    return "activations must be fp32 or bf16";
  if (r.fp8.history_length < 1 || r.fp8.history_length > 65536) return "fp8.history_length must be between 1 and 65536";
  if (r.fp8.margin < -32 || r.fp8.margin > 32) return "fp8.margin must be between -32 and 32";
  const auto disagree = [](const operand_recipe& a, const operand_recipe& b) {
    return is_fp8(a.format) && is_fp8(b.format) && a.format != b.format;
  };
  if (disagree(r.fprop.left, r.wgrad.right)) return "wgrad.x: must have fprop.x's FP8 format, they share one scale";
  if (disagree(r.fprop.right, r.dgrad.right)) return "dgrad.w: must have fprop.w's FP8 format, they share one scale";
  if (disagree(r.dgrad.left, r.wgrad.left)) return "wgrad.dy: must have dgrad.dy's FP8 format, they share one scale";
  if (r.bf16_first_layers < 0 || r.bf16_last_layers < 0)
    return "bf16_first_layers and bf16_last_layers must not be negative";
  if (!find_attention_contract(r.attention)) {
    return "attention: '" + r.attention + "' is no contract (docs/numerics.md lists them)";
  }
  return std::nullopt;
}

namespace presets {

inline recipe uniform(std::string name, operand_format f, operand_format output) {
  const gemm_recipe g{{f}, {f}, fp32_fma_chain_contract, output};
  recipe r{std::move(name), g, g, g, operand_format::fp32, {}, 0, 0, fp32_attention_contract};
  r.wgrad.output = operand_format::fp32;  // main gradients are FP32
  return r;
}

/// HYBRID: E4M3 forward, E5M2 gradients, one scale a tensor from the history of its maxima.
inline recipe fp8_delayed(std::string name, delayed_scaling scaling) {
  recipe r = uniform(std::move(name), operand_format::fp8_e4m3, operand_format::bf16);
  r.dgrad.left.format = r.wgrad.left.format = operand_format::fp8_e5m2;
  r.fp8 = scaling;
  return r;
}

/// E2M1 blocks of 32 on every operand of all three GEMMs, EVEN scales, exact block products.
inline recipe mxfp4(std::string name, rotation_kind rotation) {
  recipe r = uniform(std::move(name), operand_format::mxfp4, operand_format::bf16);
  for (gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) {
    g->left.rotation = g->right.rotation = rotation;
    g->accumulate = fp32_blockwise_contract;
  }
  return r;
}

inline std::vector<recipe> all() {
  return {uniform("fp32", operand_format::fp32, operand_format::fp32),
          uniform("bf16", operand_format::bf16, operand_format::bf16),
          fp8_delayed("fp8_delayed", {1024, amax_algorithm::max, 0}),
          fp8_delayed("fp8_amd", {4, amax_algorithm::most_recent, 0}),
          fp8_delayed("fp8_amd_scaled", {4, amax_algorithm::most_recent, 0, frozen_scale::amax}),
          mxfp4("mxfp4", rotation_kind::none),
          mxfp4("mxfp4_h16", rotation_kind::h16),
          mxfp4("mxfp4_h16_fixed_signs", rotation_kind::h16_fixed_signs),
          mxfp4("mxfp4_h16_step_signs", rotation_kind::h16_step_signs)};
}

}  // namespace presets

}  // namespace rotoscale::nn

namespace rotoscale {
template <>
struct enum_names<nn::operand_format> {
  using enum nn::operand_format;
  static constexpr enum_name<nn::operand_format> table[] = {{fp32, "fp32"},
                                                            {bf16, "bf16"},
                                                            {fp8_e4m3, "fp8_e4m3"},
                                                            {fp8_e5m2, "fp8_e5m2"},
                                                            {mxfp4, "mxfp4"},
                                                            {mxfp8_e4m3, "mxfp8_e4m3"},
                                                            {mxfp8_e5m2, "mxfp8_e5m2"}};
};

namespace nn::detail {
/// Codes of at most 8 bits need scales, of their tensor or of their blocks.
constexpr bool narrow_formats_have_scales() {
  for (const auto& f : enum_names<operand_format>::table) {
    const bool is_narrow = element_format(f.value).bits() <= 8;
    if (is_narrow != (is_fp8(f.value) || is_mx(f.value)) || (is_fp8(f.value) && is_mx(f.value))) return false;
  }
  return true;
}
static_assert(narrow_formats_have_scales(), "name each format of at most 8 bits in is_fp8 or in is_mx");
}  // namespace nn::detail
template <>
struct enum_names<nn::rotation_kind> {
  using enum nn::rotation_kind;
  static constexpr enum_name<nn::rotation_kind> table[] = {
      {none, "none"}, {h16, "h16"}, {h16_fixed_signs, "h16_fixed_signs"}, {h16_step_signs, "h16_step_signs"}};
};
template <>
struct enum_names<nn::policy_kind> {
  static constexpr enum_name<nn::policy_kind> table[] = {{nn::policy_kind::te_rocm, "te_rocm"},
                                                         {nn::policy_kind::ocp, "ocp"}};
};
template <>
struct enum_names<nn::amax_algorithm> {
  static constexpr enum_name<nn::amax_algorithm> table[] = {{nn::amax_algorithm::max, "max"},
                                                            {nn::amax_algorithm::most_recent, "most_recent"}};
};

template <>
struct enum_names<nn::frozen_scale> {
  static constexpr enum_name<nn::frozen_scale> table[] = {{nn::frozen_scale::unscaled, "unscaled"},
                                                          {nn::frozen_scale::amax, "amax"}};
};

namespace nn {
using rotoscale::from_string;
using rotoscale::names;
using rotoscale::to_string;

template <class Visitor>
void describe(Visitor&& v, operand_recipe& o) {
  v("format", o.format, "numbers the operand is made of");
  v("scale_rule", o.rule, "how an MX block's amax becomes its scale");
  v("rounding", o.rounding, "rounding of elements");
  v("rotation", o.rotation, "rotation before the block maximum, along the contraction axis");
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
void describe(Visitor&& v, delayed_scaling& d) {
  v("history_length", d.history_length, "maxima kept, in steps");
  v("algorithm", d.algorithm, "max of the history or its most recent entry");
  v("margin", d.margin, "powers of two of headroom");
  v("frozen_weights", d.frozen_weights, "scale of frozen weights: unscaled (1) or from their amax");
}

template <class Visitor>
void describe(Visitor&& v, recipe& r) {
  v("name", r.name, "name in logs");
  gemm_fields fprop{r.fprop, "x", "w"};
  gemm_fields dgrad{r.dgrad, "dy", "w"};
  gemm_fields wgrad{r.wgrad, "dy", "x"};
  v("fprop", fprop, "y = x w^T");
  v("dgrad", dgrad, "dx = dy w");
  v("wgrad", wgrad, "dw = dy^T x");
  v("activations", r.activations, "storage between operations (fp32 or bf16)");
  v("fp8", r.fp8, "delayed scaling of per-tensor FP8 operands");
  v("bf16_first_layers", r.bf16_first_layers, "decoder layers at the start left in BF16");
  v("bf16_last_layers", r.bf16_last_layers, "decoder layers at the end left in BF16");
  v("attention", r.attention, "contract of attention: FP32 chains, or tiles on a matrix unit by name");
}

}  // namespace nn
}  // namespace rotoscale
