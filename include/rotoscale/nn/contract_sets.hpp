// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Contract sets: which unit adds the products of each GEMM and of attention, by the formats of the operands.
// docs/reference/recipes.md has a table of them.
#pragma once

#include "rotoscale/nn/recipe.hpp"

namespace rotoscale::nn {

/// The contracts of a recipe by the formats of a GEMM's operands. GEMMs with an FP32 operand are FP32 chains.
struct contract_set {
  const char* name;       ///< as recipes and logs have it
  const char* gemm;       ///< BF16 operands, and codes that expand to BF16
  const char* beside;     ///< the head, BF16 layers and adapters, unless fprop is under `gemm`
  const char* fp8;        ///< two per-tensor FP8 operands
  const char* mxfp4;      ///< two MXFP4 operands in blocks of 32
  const char* attention;  ///< attention
  bool bf16_activations;  ///< the unit of attention reads BF16, so activations are stored in BF16
};

namespace detail {
inline constexpr const char *chain = fp32_fma_chain_contract, *blockwise = fp32_blockwise_contract;
/// One part of K, or as many as fill 66 pairs of SMs.
inline constexpr const char *sm90 = "mx-bf16-sm90", *sm90_fill = "mx-bf16-sm90:split_fill=66";
inline constexpr const char *gfx942 = "mx-bf16-gfx942", *amx = "intel-amx-bf16";
inline constexpr const char* hopper_attention = "attention-bf16-tile64x64-ex2approx@hopper-mma-fp16-f32";
inline constexpr const char* cdna3_attention = "attention-bf16-tile64x64-exp2deg3@cdna3-mfma-fp16-f32";
}  // namespace detail

/// All contract sets.
inline constexpr contract_set contract_sets[] = {
    {"portable", detail::chain, detail::chain, detail::chain, detail::blockwise, fp32_attention_contract, false},
    {"hopper", detail::sm90_fill, detail::sm90, "hopper-fp8-promoted", detail::blockwise, detail::hopper_attention,
     true},
    {"cdna3", detail::gfx942, detail::gfx942, detail::gfx942, detail::blockwise, detail::cdna3_attention, true},
    {"bf16", detail::sm90_fill, detail::sm90_fill, detail::sm90_fill, detail::sm90_fill, detail::hopper_attention,
     true},
    {"cpu", detail::amx, detail::amx, detail::amx, detail::amx, fp32_attention_contract, false}};

/// The set of that name, or null.
constexpr const contract_set* find_contract_set(std::string_view name) {
  for (const contract_set& s : contract_sets) {
    if (name == s.name) return &s;
  }
  return nullptr;
}
/// Names of all sets.
inline std::vector<std::string> contract_set_names() {
  std::vector<std::string> all;
  for (const contract_set& s : contract_sets) all.emplace_back(s.name);
  return all;
}

/// The contract of a GEMM under a set.
inline std::string contract_under(const contract_set& s, const gemm_recipe& g) {
  const auto both = [&](const auto& is) { return is(g.left) && is(g.right); };
  const operand_format fp32 = operand_format::fp32;
  if (g.left.format == fp32 || g.right.format == fp32) return fp32_fma_chain_contract;
  if (both([](const operand_recipe& o) { return is_fp8(stored_format(o)); })) return s.fp8;
  const bool is_mxfp4 = both([](const operand_recipe& o) {
    return stored_format(o) == operand_format::mxfp4 && block_format_of(o).length == mxfp4.length;
  });
  return is_mxfp4 ? s.mxfp4 : s.gemm;
}

/// The recipe under a set's contracts. A recipe of FP32 GEMMs alone keeps its own.
inline recipe take_contracts(recipe r, const contract_set& s) {
  r.contracts = s.name;
  if (is_all_fp32(r)) return r;
  for (const auto gemm : {&linear_recipe::fprop, &linear_recipe::dgrad, &linear_recipe::wgrad}) {
    (r.*gemm).accumulate = contract_under(s, r.*gemm);
  }
  const std::string beside = r.fprop.accumulate == s.gemm ? s.gemm : s.beside;
  r.bf16_layers = r.adapters = {beside, beside, beside};
  r.attention = s.attention;
  if (s.bf16_activations) r.activations = operand_format::bf16;
  if (!r.head && s.gemm != std::string_view(fp32_fma_chain_contract)) r.head = bf16_layers_of(r);
  for (const auto gemm : {&linear_recipe::fprop, &linear_recipe::dgrad, &linear_recipe::wgrad}) {
    if (!r.head) break;
    gemm_recipe& g = (*r.head).*gemm;
    const bool is_bf16 = g.left.format == operand_format::bf16 && g.right.format == operand_format::bf16;
    g.accumulate = is_bf16 ? beside : contract_under(s, g);
  }
  return r;
}

}  // namespace rotoscale::nn
