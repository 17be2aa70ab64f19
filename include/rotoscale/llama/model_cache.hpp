// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Keys and values of a sequence, kept for passes that continue it: each layer's behind RoPE, as the recipe stores
// activations. Such a pass has the bytes of a pass over the whole sequence where tokens read each other through keys
// and values only.
#pragma once

#include "rotoscale/llama/model_class.hpp"
#include "rotoscale/llama/model_layout.hpp"

namespace rotoscale::llama {

/// In front of all activations, so that it stays where it is when extents change.
inline void model::lay_out_cache(nn::memory_cursor& memory) {
  cache_rows_ = 0;
  if (options_.cache == 0) return;
  if (options_.training || options_.batch != 1 || options_.sequence > options_.cache) {
    throw std::invalid_argument("a cache keeps one sequence, at most as long as it, without a backward pass");
  }
  for (layer& l : layers_) {
    l.cache = memory.tensor(category::activations, stored_, options_.cache, 2 * config_.key_value_size());
  }
  find_cache_rows();
}

/// Tokens meet in square blocks, in a second-level factor that comes of the whole tensor, and in random words, which
/// are numbered by element. Units take whole groups of eight rows.
inline void model::find_cache_rows() {
  index_t rows = 1;
  bool alone = true;
  for_each_linear([&](const nn::linear& l, std::size_t) {
    const nn::gemm_recipe& fprop = l.current().fprop;
    const nn::operand_recipe& x = fprop.left;
    alone = alone && x.rounding != rounding::stochastic && x.format != nn::operand_format::nvfp4;
    if (nn::has_blocks(x.format)) rows = std::max<index_t>(rows, nn::block_format_of(x).rows);
    const auto agrees = [&] {
      const auto found = ops_->contract(fprop, rows, l.shape().out, l.shape().in);
      return found && found->name == l.contract(nn::gemm_kind::fprop).name;
    };
    if (!agrees()) rows = std::max<index_t>(rows, 8);
    alone = alone && agrees();
  });
  cache_rows_ = alone ? rows : 0;
}

/// A row's keys and values lie side by side, in the product and in the cache.
inline void model::keep_keys(const nn::pass& p, const layer& l) const {
  const nn::tensor_view made = l.qkv_out.part(1, config_.query_size(), 2 * config_.key_value_size());
  const auto bytes = static_cast<std::size_t>(made.extent(1) * nn::size_of(made.type));
  for (index_t t = 0; t < made.extent(0); ++t) {
    ops_->copy(p.queue, l.cache.part(0, p.past + t, 1).data, made.part(0, t, 1).data, bytes);
  }
}

}  // namespace rotoscale::llama
