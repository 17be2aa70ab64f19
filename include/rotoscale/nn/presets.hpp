// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Named recipes and schedules. docs/reference/recipes.md has the source of each.
#pragma once

#include <utility>

#include "rotoscale/nn/contract_sets.hpp"

namespace rotoscale::nn::presets {

/// The same operand everywhere.
inline recipe uniform(std::string name, const operand_recipe& operand, operand_format output) {
  recipe r;
  r.name = std::move(name);
  static_cast<linear_recipe&>(r) = uniform_gemms(operand, output);
  return r;
}
/// A format with its defaults.
inline recipe uniform(std::string name, operand_format f, operand_format output) {
  return uniform(std::move(name), operand_recipe{f}, output);
}

/// HYBRID: E4M3 forward, E5M2 gradients, one scale a tensor from the history of its maxima.
inline recipe fp8_delayed(std::string name, const delayed_scaling& scaling) {
  recipe r = uniform(std::move(name), operand_format::fp8_e4m3, operand_format::bf16);
  r.dgrad.left.format = r.wgrad.left.format = operand_format::fp8_e5m2;
  r.fp8 = scaling;
  return r;
}
/// HYBRID with each tensor's scale from its own maximum.
inline recipe fp8_current(std::string name) {
  recipe r = fp8_delayed(std::move(name), {});
  for (gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->left.scaling = g->right.scaling = fp8_scaling::current;
  return r;
}
/// E4M3 with a scale of each row.
inline recipe fp8_row(std::string name) {
  operand_recipe o{operand_format::fp8_e4m3};
  o.scaling = fp8_scaling::row;
  return uniform(std::move(name), o, operand_format::bf16);
}
/// E4M3 under FP32 scales: of 1 × 128 elements for x and dy, of 128 × 128 for w.
inline recipe fp8_blocks(std::string name) {
  recipe r = fp8_row(std::move(name));
  for (gemm_recipe* g : {&r.fprop, &r.dgrad, &r.wgrad}) g->left.scaling = g->right.scaling = fp8_scaling::block_1x128;
  r.fprop.right.scaling = r.dgrad.right.scaling = fp8_scaling::block_128x128;
  return r;
}
/// AMD's MLPerf v6.0 configuration.
inline constexpr delayed_scaling amd_scaling{4, amax_algorithm::most_recent, 0, frozen_scale::unscaled, false};

/// E2M1 blocks of 32 with the bits of ROCm Transformer Engine's kernel, exact block products.
inline gemm_recipe mxfp4_gemm(const rotation_recipe& rotation, operand_format output,
                              rounding how = rounding::nearest_even) {
  const operand_recipe o{operand_format::mxfp4, scale_rule::even, how, rotation, policies::te_rocm, {}};
  return {o, o, fp32_blockwise_contract, output};
}
/// On every operand of all three GEMMs.
inline recipe mxfp4(std::string name, const rotation_recipe& rotation, rounding how = rounding::nearest_even) {
  recipe r;
  r.name = std::move(name);
  r.fprop = r.dgrad = mxfp4_gemm(rotation, operand_format::bf16, how);
  r.wgrad = mxfp4_gemm(rotation, operand_format::fp32, how);
  return r;
}

/// Square blocks of weights that train without oscillation: AMD's gpt_oss_20b (AMD-AGI/Primus).
inline recipe mxfp4_deoscillated(std::string name) {
  recipe r = mxfp4(std::move(name), {});
  r.fprop.right.block = r.dgrad.right.block = block_recipe{32, 32, formats::e8m0};
  r.deoscillation = deoscillation_recipe{};
  return r;
}

/// Stochastic rounding of dy alone.
inline recipe with_random_gradients(recipe r) {
  r.dgrad.left.rounding = r.wgrad.left.rounding = rounding::stochastic;
  return r;
}

/// The ladder of arXiv:2605.09825: MXFP4 in some GEMMs, AMD's FP8 in the others.
struct ladder_gemms {
  bool fprop = false;  ///< MXFP4 in fprop?
  bool dgrad = false;  ///< in dgrad?
  bool wgrad = false;  ///< in wgrad?
};
inline recipe ladder(std::string name, const ladder_gemms& in_mxfp4, const rotation_recipe& rotation = {},
                     rounding how = rounding::nearest_even) {
  recipe r = fp8_delayed(std::move(name), amd_scaling);
  const recipe narrow = mxfp4("", rotation, how);
  if (in_mxfp4.fprop) r.fprop = narrow.fprop;
  if (in_mxfp4.dgrad) r.dgrad = narrow.dgrad;
  if (in_mxfp4.wgrad) r.wgrad = narrow.wgrad;
  return r;
}

/// NVIDIA Transformer Engine's MXFP8: E4M3 everywhere, scales that never saturate.
inline recipe mxfp8(std::string name) {
  const operand_recipe o{
      operand_format::mxfp8_e4m3, scale_rule::rceil, rounding::nearest_even, {}, policies::nvidia, {}};
  return uniform(std::move(name), o, operand_format::bf16);
}

/// Signs of wgrad's operands in NVIDIA Transformer Engine (get_wgrad_sign_vector).
inline constexpr std::uint32_t nvidia_sign_mask = 0xD7E8;
/// NVIDIA Transformer Engine's NVFP4: 2D weights, stochastic rounding of gradients, a rotation of wgrad's operands.
inline recipe nvfp4(std::string name) {
  operand_recipe x{operand_format::nvfp4, scale_rule::even, rounding::nearest_even, {}, policies::nvidia, {}};
  operand_recipe w = x, dy = x;
  w.block = {16, 16, rotoscale::nvfp4.scale};
  dy.rounding = rounding::stochastic;
  recipe r;
  r.name = std::move(name);
  r.fprop = {x, w, fp32_fma_chain_contract, operand_format::bf16};
  r.dgrad = {dy, w, fp32_fma_chain_contract, operand_format::bf16};
  r.wgrad = {dy, x, fp32_fma_chain_contract, operand_format::fp32};
  r.wgrad.left.rotation = r.wgrad.right.rotation = {16, sign_kind::mask, nvidia_sign_mask};
  return r;
}

/// The same with 4/6 scales under rounding to nearest, and with headroom under stochastic rounding.
inline recipe nvfp4_four_over_six(std::string name) {
  recipe r = nvfp4(std::move(name));
  for (operand_recipe* o :
       {&r.fprop.left, &r.fprop.right, &r.dgrad.left, &r.dgrad.right, &r.wgrad.left, &r.wgrad.right}) {
    o->choice = o->rounding == rounding::stochastic ? scale_choice::headroom : scale_choice::four_over_six;
  }
  return r;
}

/// Quartet II with rotations of 32 points: MS-EDEN in the backward pass, on the forward pass's w and x.
inline recipe quartet2(std::string name) {
  const operand_recipe forward{
      operand_format::nvfp4, scale_rule::even, rounding::nearest_even, {}, policies::nvidia, {}};
  operand_recipe dy = forward;
  dy.choice = scale_choice::eden;
  dy.rotation = {32, sign_kind::step};
  operand_recipe again = dy;
  again.source = operand_source::forward;
  recipe r;
  r.name = std::move(name);
  r.fprop = {forward, forward, fp32_fma_chain_contract, operand_format::bf16};
  r.dgrad = {dy, again, fp32_fma_chain_contract, operand_format::bf16};
  r.wgrad = {dy, again, fp32_fma_chain_contract, operand_format::fp32};
  return r;
}

/// Names of a recipe under a contract set.
struct alias {
  const char* name;       ///< of the pair
  const char* recipe;     ///< name of a preset
  const char* contracts;  ///< name of a contract set
};
inline constexpr alias aliases[] = {{"bf16_tc", "bf16", "hopper"},   {"fp8_tc", "fp8_amd", "hopper"},
                                    {"mxfp8_tc", "mxfp8", "hopper"}, {"mxfp4_tc", "mxfp4_h16", "hopper"},
                                    {"bf16_mfma", "bf16", "cdna3"},  {"mxfp4_mfma", "mxfp4_h16", "cdna3"}};

/// Named recipes, under `portable`.
inline std::vector<recipe> portable() {
  constexpr rotation_recipe h16{16}, h32{32}, layer_signs{16, sign_kind::layer}, step_signs{16, sign_kind::step};
  constexpr rounding random = rounding::stochastic;
  constexpr ladder_gemms f{true, false, false}, fd{true, true, false}, d{false, true, false}, w{false, false, true};
  return {uniform("fp32", operand_format::fp32, operand_format::fp32),
          uniform("bf16", operand_format::bf16, operand_format::bf16),
          fp8_delayed("fp8_delayed", {}),
          fp8_delayed("fp8_amd", amd_scaling),
          fp8_delayed("fp8_scaled_stash", {4, amax_algorithm::most_recent, 0, frozen_scale::amax, false}),
          fp8_current("fp8_current"),
          fp8_row("fp8_row"),
          fp8_blocks("fp8_blocks"),
          mxfp8("mxfp8"),
          nvfp4("nvfp4"),
          nvfp4_four_over_six("nvfp4_4_6"),
          quartet2("quartet2_h32"),
          mxfp4("mxfp4", {}),
          mxfp4("mxfp4_h16", h16),
          mxfp4("mxfp4_h16_fixed_signs", layer_signs),
          mxfp4("mxfp4_h16_step_signs", step_signs),
          mxfp4("mxfp4_h32", h32),
          mxfp4_deoscillated("mxfp4_deoscillated"),
          uniform("mxfp6_h16", {.format = operand_format::mxfp6_e2m3, .rotation = h16}, operand_format::bf16),
          mxfp4("mxfp4_sr", {}, random),
          mxfp4("mxfp4_h16_sr", h16, random),
          with_random_gradients(mxfp4("mxfp4_sr_gradients", {})),
          ladder("mxfp4_f", f),
          ladder("mxfp4_fd", fd),
          ladder("mxfp4_d", d),
          ladder("mxfp4_w", w),
          ladder("mxfp4_f_sr", f, {}, random),
          ladder("mxfp4_fd_sr", fd, {}, random),
          ladder("mxfp4_f_step_signs", f, step_signs),
          ladder("mxfp4_fd_step_signs", fd, step_signs)};
}

/// All named recipes, aliases at the end.
inline std::vector<recipe> all() {
  std::vector<recipe> recipes = portable();
  for (const alias& a : aliases) {
    const auto own = std::find_if(recipes.begin(), recipes.end(), [&](const recipe& r) { return r.name == a.recipe; });
    recipes.push_back(take_contracts(*own, *find_contract_set(a.contracts)));
    recipes.back().name = a.name;
  }
  return recipes;
}

}  // namespace rotoscale::nn::presets
