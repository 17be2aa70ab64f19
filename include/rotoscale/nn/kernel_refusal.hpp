// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Messages for a model without a kernel on a backend: the part, its extents, and other extents that the backend
// supports.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/blocks/linear.hpp"

namespace rotoscale::nn {

/// "a, b or c would do".
inline std::string would_do(const std::vector<std::string>& what) {
  std::string text;
  for (std::size_t i = 0; i < what.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < what.size() ? ", " : " or ") + what[i];
  }
  return text + " would do";
}

/// Reason why attention does not run under a contract on heads of this size, and what would do.
inline std::string attention_refusal(const backend& ops, const std::string& attention, index_t head_dim) {
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
  const std::string chains = fp32_attention_contract;
  if (attention != chains && has(chains, head_dim)) instead.push_back(chains);
  const auto contract = find_attention_contract(attention);
  if (contract && contract->takes(head_dim)) {
    instead.emplace_back("a CPU");
  } else if (instead.empty() || instead.back() != chains) {
    instead.push_back(chains + " on a CPU");
  }
  return "attention: " + ops.description() + " has no kernel for " + attention + ", heads of " +
         std::to_string(head_dim) + "; " + would_do(instead);
}

/// A length under the name of the option that sets it.
struct named_extent {
  std::string name;  ///< of the option
  index_t size = 0;  ///< elements
};

/// Reason why a linear layer's GEMM does not run, and what would do: other extents, another contract or a CPU. `layer`:
/// its name. `known`: names of extents. `tokens`: of a pass.
inline std::string gemm_refusal(const backend& ops, const refused_gemm& g, const std::string& layer,
                                const std::vector<named_extent>& known, index_t tokens) {
  const auto name_of = [&](index_t size) -> std::string {
    for (const named_extent& e : known) {
      if (e.size == size) return e.name;
    }
    return "an extent";
  };
  const std::pair<index_t, std::string> extents[] = {
      {g.shape.tokens, g.shape.tokens == tokens ? "batch * sequence" : "head_chunk"},
      {g.shape.out, name_of(g.shape.out)},
      {g.shape.in, name_of(g.shape.in)}};
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
  gemm_recipe chain = g.recipe;
  chain.accumulate = fp32_fma_chain_contract;
  if (ops.contract(chain, g.rows, g.cols, g.k)) instead.push_back("\"accumulate\": \"" + chain.accumulate + "\"");
  instead.emplace_back("a CPU");
  return layer + (g.is_adapter ? "'s adapter" : "") + ": " + ops.description() + " has no kernel for " +
         gemm_names[static_cast<int>(g.gemm)] + " under " + g.recipe.accumulate +
         (wrong.empty() ? " of these formats" : " with " + wrong) + "; " + would_do(instead);
}

}  // namespace rotoscale::nn
