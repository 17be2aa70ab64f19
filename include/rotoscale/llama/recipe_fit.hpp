// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Does a recipe fit a model: do its blocks divide the shape, can frozen weights follow it?
#pragma once

#include <span>

#include "rotoscale/llama/config.hpp"
#include "rotoscale/nn/operand.hpp"

namespace rotoscale::llama {

/// The tokens that a model will quantize together.
struct pass_extents {
  index_t tokens = 0;      ///< of a pass: batch * sequence
  index_t head_chunk = 0;  ///< tokens whose logits exist at once
  bool training = true;    ///< does a backward pass follow?
};

namespace detail {

/// A length that blocks must divide, under the name of the field that sets it.
struct named_extent {
  const char* name;
  index_t size;
};

/// The axes of a linear layer y[tokens, out] = x[tokens, in]·wᵀ; fused projections have several lengths in one axis.
struct linear_axes {
  std::vector<named_extent> in, out, tokens;
};

inline std::optional<std::string> find_block_fault(const linear_axes& l, const nn::linear_recipe& r, bool training,
                                                   const std::string& where) {
  struct {
    const char* name;
    const nn::operand_recipe& own;
    const std::vector<named_extent>&k, &rows;
  } const uses[] = {{"fprop.x", r.fprop.left, l.in, l.tokens},   {"fprop.w", r.fprop.right, l.in, l.out},
                    {"dgrad.dy", r.dgrad.left, l.out, l.tokens}, {"dgrad.w", r.dgrad.right, l.out, l.in},
                    {"wgrad.dy", r.wgrad.left, l.tokens, l.out}, {"wgrad.x", r.wgrad.right, l.tokens, l.in}};
  for (const auto& use : std::span(uses).first(training ? 6 : 2)) {
    if (!nn::has_blocks(use.own.format)) continue;
    const int rows = nn::block_format_of(use.own).rows, k = nn::run_length_of(use.own);
    for (const auto& [axis, multiple] : {std::pair{&use.k, k}, {&use.rows, rows}}) {
      for (const named_extent& e : *axis) {
        if (e.size % multiple == 0) continue;
        return std::string(e.name) + ": " + std::to_string(e.size) + " is not a multiple of " +
               std::to_string(multiple) + ", which the blocks of " + where + use.name + " need";
      }
    }
  }
  return std::nullopt;
}

}  // namespace detail

/// Is a decoder layer left under the recipe's own GEMMs, where layers at the ends stay in BF16?
inline bool has_own_layers(const nn::recipe& r, int layers) {
  return std::int64_t{r.bf16_first_layers} + r.bf16_last_layers < layers;
}

/// A sentence that names the field of the model and the operand that do not fit each other, or nothing.
inline std::optional<std::string> find_block_fault(const model_config& c, const nn::recipe& r, const pass_extents& p) {
  const detail::named_extent hidden{"hidden_size", c.hidden_size}, inner{"intermediate_size", c.intermediate_size},
      query{"num_attention_heads * head_dim", c.query_size()}, kv{"num_key_value_heads * head_dim", c.key_value_size()},
      vocabulary{"vocab_size", c.vocab_size}, tokens{"batch * sequence", p.tokens};
  const detail::linear_axes layers[] = {{{hidden}, {query, kv}, {tokens}},
                                        {{query}, {hidden}, {tokens}},
                                        {{hidden}, {inner}, {tokens}},
                                        {{inner}, {hidden}, {tokens}}};
  if (has_own_layers(r, c.num_hidden_layers)) {
    for (const detail::linear_axes& l : layers) {
      if (auto f = detail::find_block_fault(l, r, p.training, "")) return f;
    }
  }
  if (!r.head) return std::nullopt;
  detail::linear_axes head{{hidden}, {vocabulary}, {tokens}};
  if (p.head_chunk < p.tokens) head.tokens.push_back({"head_chunk", p.head_chunk});
  return detail::find_block_fault(head, *r.head, p.training, "head.");
}

/// The field of a recipe that weights which are quantized once cannot follow, or nothing.
inline std::optional<std::string> find_frozen_fault(const model_config& c, const nn::recipe& r) {
  const auto of = [](const nn::linear_recipe& l, const std::string& where) -> std::optional<std::string> {
    for (const auto& [w, name] : {std::pair{&l.fprop.right, "fprop"}, {&l.dgrad.right, "dgrad"}}) {
      if (w->rotation.signs != nn::sign_kind::step) continue;
      return where + name + ".w.rotation.signs: step, but frozen weights are quantized once";
    }
    return std::nullopt;
  };
  if (has_own_layers(r, c.num_hidden_layers)) {
    if (auto f = of(r, "")) return f;
  }
  return r.head ? of(*r.head, "head.") : std::nullopt;
}

}  // namespace rotoscale::llama
