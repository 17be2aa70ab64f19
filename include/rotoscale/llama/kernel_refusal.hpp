// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What is said where a backend has no kernel for a model: which part, which extents, and what would do, by asking the
// backend for others.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/llama/config.hpp"
#include "rotoscale/llama/model_class.hpp"

namespace rotoscale::llama {

/// "a, b or c would do".
inline std::string would_do(const std::vector<std::string>& what) {
  std::string text;
  for (std::size_t i = 0; i < what.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < what.size() ? ", " : " or ") + what[i];
  }
  return text + " would do";
}

/// Why attention does not run under a contract on heads of this size, and what would do.
inline std::string attention_refusal(const nn::backend& ops, const std::string& attention, index_t head_dim) {
  const auto has = [&](const std::string& name, index_t size) { return ops.contract(name, size).has_value(); };
  std::vector<std::string> instead;
  std::string sizes;
  constexpr index_t farthest = 1 << 16;
  for (index_t size = head_dim - 1; size > 0; --size) {
    if (size % 2 != 0 || !has(attention, size)) continue;
    sizes = std::to_string(size);
    break;
  }
  for (index_t size = head_dim + 1; size < std::min(head_dim + 128, farthest); ++size) {
    if (size % 2 != 0 || !has(attention, size)) continue;
    sizes += (sizes.empty() ? "" : " or ") + std::to_string(size);
    break;
  }
  if (!sizes.empty()) instead.push_back("head_dim of " + sizes);
  const std::string chains = nn::fp32_attention_contract;
  if (attention != chains && has(chains, head_dim)) instead.push_back(chains);
  const auto contract = nn::find_attention_contract(attention);
  if (contract && contract->takes(head_dim)) {
    instead.emplace_back("a CPU");
  } else if (instead.empty() || instead.back() != chains) {
    instead.push_back(chains + " on a CPU");
  }
  return "attention: " + ops.description() + " has no kernel for " + attention + ", heads of " +
         std::to_string(head_dim) + "; " + would_do(instead);
}

/// What an extent of a linear layer is made of, in the names of options; `is_head`: of the output head.
inline std::string extent_name(index_t extent, bool is_head, const model_config& c, const model_options& o) {
  const index_t q = c.query_size();
  const auto is_pattern = [&](const lora_pattern& p) { return p.value == static_cast<double>(extent); };
  if (o.lora && o.lora->patterns && std::ranges::any_of(o.lora->patterns->rank, is_pattern))
    return "lora.patterns.rank";
  const std::pair<index_t, const char*> known[] = {
      {o.lora ? o.lora->rank : 0, "lora.rank"},
      {is_head ? c.vocab_size : 0, "vocab_size"},
      {c.hidden_size, "hidden_size"},
      {c.intermediate_size, "intermediate_size"},
      {2 * index_t{c.intermediate_size}, "2 * intermediate_size"},
      {q, "num_attention_heads * head_dim"},
      {c.key_value_size(), "num_key_value_heads * head_dim"},
      {q + 2 * c.key_value_size(), "num_attention_heads * head_dim + 2 * num_key_value_heads * head_dim"},
  };
  for (const auto& [value, name] : known) {
    if (value == extent) return name;
  }
  return "an extent";
}

/// Why a linear layer's GEMM does not run, and what would do: other extents, another contract or a CPU. `layer`: its
/// name, which is that of the output head if `is_head`.
inline std::string gemm_refusal(const nn::backend& ops, const nn::refused_gemm& g, const std::string& layer,
                                bool is_head, const model_config& config, const model_options& options) {
  const index_t tokens = options.batch * options.sequence;
  const std::pair<index_t, std::string> extents[] = {
      {g.shape.tokens, g.shape.tokens == tokens ? "batch * sequence" : "head_chunk"},
      {g.shape.out, extent_name(g.shape.out, is_head, config, options)},
      {g.shape.in, extent_name(g.shape.in, is_head, config, options)}};
  constexpr const char* gemm_names[] = {"fprop", "dgrad", "wgrad"};
  std::vector<std::string> instead;
  std::string wrong;
  for (const index_t grain : {8, 16, 32, 64, 128}) {
    const auto up = [&](index_t n) { return (n + grain - 1) / grain * grain; };
    if (!ops.contract(g.recipe, up(g.rows), up(g.cols), up(g.k))) continue;
    for (const auto& [value, name] : extents) {
      if (value % grain != 0) wrong += (wrong.empty() ? "" : ", ") + name + " = " + std::to_string(value);
    }
    instead.push_back("multiples of " + std::to_string(grain));
    break;
  }
  nn::gemm_recipe chain = g.recipe;
  chain.accumulate = nn::fp32_fma_chain_contract;
  if (ops.contract(chain, g.rows, g.cols, g.k)) instead.push_back("\"accumulate\": \"" + chain.accumulate + "\"");
  instead.emplace_back("a CPU");
  return layer + (g.is_adapter ? "'s adapter" : "") + ": " + ops.description() + " has no kernel for " +
         gemm_names[static_cast<int>(g.gemm)] + " under " + g.recipe.accumulate +
         (wrong.empty() ? " of these formats" : " with " + wrong) + "; " + would_do(instead);
}

}  // namespace rotoscale::llama
