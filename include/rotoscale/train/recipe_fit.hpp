// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checks that a recipe fits a model: its blocks divide the extents, and frozen weights can follow it.
#pragma once

#include <span>

#include "rotoscale/nn/operand.hpp"
#include "rotoscale/train/architecture.hpp"

namespace rotoscale::train {

/// Tokens that a model quantizes together.
struct pass_extents {
  index_t tokens = 0;      ///< of a pass: batch * sequence
  index_t head_chunk = 0;  ///< tokens whose logits exist at once
  bool training = true;    ///< a backward pass follows
};

namespace detail {

inline std::optional<std::string> find_block_fault(const linear_axes& l, const nn::linear_recipe& r, bool training,
                                                   const std::string& where) {
  struct {
    const char* name;
    const nn::operand_recipe& own;
    const std::vector<nn::named_extent>&k, &rows;
  } const uses[] = {{"fprop.x", r.fprop.left, l.in, l.tokens},   {"fprop.w", r.fprop.right, l.in, l.out},
                    {"dgrad.dy", r.dgrad.left, l.out, l.tokens}, {"dgrad.w", r.dgrad.right, l.out, l.in},
                    {"wgrad.dy", r.wgrad.left, l.tokens, l.out}, {"wgrad.x", r.wgrad.right, l.tokens, l.in}};
  for (const auto& use : std::span(uses).first(training ? 6 : 2)) {
    if (!nn::has_blocks(use.own.format)) continue;
    const int rows = nn::block_format_of(use.own).rows, k = nn::run_length_of(use.own);
    for (const auto& [axis, multiple] : {std::pair{&use.k, k}, {&use.rows, rows}}) {
      for (const nn::named_extent& e : *axis) {
        if (e.size % multiple == 0) continue;
        return e.name + ": " + std::to_string(e.size) + " is not a multiple of " + std::to_string(multiple) +
               ", which the blocks of " + where + use.name + " need";
      }
    }
  }
  return std::nullopt;
}

}  // namespace detail

/// True if a layer has the recipe's own GEMMs. False for layers at the ends that stay in BF16.
inline bool has_own_layers(const nn::recipe& r, int layers) {
  return std::int64_t{r.bf16_first_layers} + r.bf16_last_layers < layers;
}

/// An error that names the field of the model and the operand that do not fit each other, or nullopt.
inline std::optional<std::string> find_block_fault(const architecture& m, const nn::recipe& r, const pass_extents& p) {
  const nn::named_extent tokens{"batch * sequence", p.tokens};
  if (has_own_layers(r, m.layers)) {
    for (linear_axes l : m.linears) {
      l.tokens = {tokens};
      if (auto f = detail::find_block_fault(l, r, p.training, "")) return f;
    }
  }
  if (!r.head) return std::nullopt;
  linear_axes head = m.head;
  head.tokens = {tokens};
  if (p.head_chunk < p.tokens) head.tokens.push_back({"head_chunk", p.head_chunk});
  return detail::find_block_fault(head, *r.head, p.training, "head.");
}

/// An error that names the field of a recipe that frozen weights cannot follow, or nullopt.
inline std::optional<std::string> find_frozen_fault(const architecture& m, const nn::recipe& r) {
  const auto of = [](const nn::linear_recipe& l, const std::string& where) -> std::optional<std::string> {
    for (const auto& [w, name] : {std::pair{&l.fprop.right, "fprop"}, {&l.dgrad.right, "dgrad"}}) {
      if (w->rotation.signs != nn::sign_kind::step) continue;
      return where + name + ".w.rotation.signs: step, but frozen weights are quantized once";
    }
    return std::nullopt;
  };
  if (has_own_layers(r, m.layers)) {
    if (auto f = of(r, "")) return f;
  }
  return r.head ? of(*r.head, "head.") : std::nullopt;
}

}  // namespace rotoscale::train
