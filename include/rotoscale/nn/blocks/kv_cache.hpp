// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Keys and values of a sequence after RoPE, for passes that continue it. A cached pass equals a full one unless values
// mix tokens: 2D blocks, a per-tensor NVFP4 scale, stochastic rounding.
#pragma once

#include <stdexcept>

#include "rotoscale/nn/blocks/block.hpp"

namespace rotoscale::nn {

/// Cache of one attention block.
class kv_cache {
 public:
  /// Takes (cached tokens, keys | values), before all other activations.
  void lay_out(const layout& at, index_t width) {
    if (at.phase != layout_phase::fixed || at.options.cache == 0) return;
    if (at.options.training || at.options.batch != 1 || at.options.sequence > at.options.cache) {
      throw std::invalid_argument("a cache keeps one sequence, at most as long as it, without a backward pass");
    }
    rows_ = at.memory.tensor(memory_category::activations, at.stored, at.options.cache, 2 * width);
    is_used_ = true;
  }
  /// True if the model caches.
  bool is_used() const { return is_used_; }
  /// Copies a pass's keys and values, (tokens, keys | values). A token's keys and values are adjacent.
  void keep(const pass& p, const tensor_view& made) const {
    const auto bytes = static_cast<std::size_t>(made.extent(1) * size_of(made.type));
    for (index_t t = 0; t < made.extent(0); ++t) {
      p.ops->copy(p.queue, rows_.part(0, p.past + t, 1).data, made.part(0, t, 1).data, bytes);
    }
  }
  /// Keys and values of the first n tokens.
  tensor_view first(index_t n) const { return rows_.part(0, 0, n); }

 private:
  tensor_view rows_;
  bool is_used_ = false;
};

/// Granularity, in tokens, of passes that continue a sequence. A pass that starts at a multiple, over a multiple or all
/// remaining tokens, has the bytes of a full pass. 0: no pass has. Units take groups of eight rows.
template <class Linears>
index_t cache_rows(const backend& ops, const Linears& linears) {
  index_t rows = 1;
  bool independent = true;
  for (const linear* l : linears) {
    const gemm_recipe& fprop = l->current().fprop;
    const operand_recipe& x = fprop.left;
    independent =
        independent && !draws_words(x) && !is_current(x) && x.outliers == 0 && x.format != operand_format::nvfp4;
    rows = std::max<index_t>(rows, run_rows_of(x));
    const auto agrees = [&] {
      const auto found = ops.contract(fprop, rows, l->shape().out, l->shape().in);
      return found && found->name == l->contract(gemm_kind::fprop).name;
    };
    if (!agrees()) rows = std::max<index_t>(rows, 8);
    independent = independent && agrees();
  }
  return independent ? rows : 0;
}

}  // namespace rotoscale::nn
