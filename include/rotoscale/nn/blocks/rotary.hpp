// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: tables of cosines and sines that all attention blocks of a model share.
#pragma once

#include <functional>
#include <utility>

#include "rotoscale/nn/blocks/block.hpp"

namespace rotoscale::nn {

/// Cosines and sines.
struct rope_table {
  std::vector<float> cosine;  ///< [seq, head_dim / 2]
  std::vector<float> sine;    ///< the same
};

/// The tables in backend memory. As a block it only owns memory.
class rotary final : public block {
 public:
  /// `table` computes the tables of so many positions.
  rotary(index_t head_dim, std::function<rope_table(index_t)> table) : head_dim_(head_dim), table_(std::move(table)) {}

  void lay_out(const layout& at) override {
    if (at.phase != layout_phase::weights) return;
    positions_ = at.options.positions();
    const index_t n = positions_ * head_dim_ / 2;
    cosine_ = at.memory.array<float>(memory_category::weights, n);
    sine_ = at.memory.array<float>(memory_category::weights, n);
  }
  void upload(backend& ops, queue q) override {
    const rope_table table = table_(positions_);
    ops.upload(q, cosine_, table.cosine.data(), table.cosine.size() * sizeof(float));
    ops.upload(q, sine_, table.sine.data(), table.sine.size() * sizeof(float));
    ops.synchronize(q);
  }
  /// Rotates queries and keys, (batch, seq, heads, head_dim), in place. `inverse`: their gradients.
  void rotate(const pass& p, tensor_view queries, tensor_view keys, bool inverse) const {
    const index_t first = p.past * head_dim_ / 2;
    p.ops->rope_both(p.queue, {cosine_ + first, sine_ + first, inverse}, {queries, keys});
  }

 private:
  index_t head_dim_, positions_ = 0;
  std::function<rope_table(index_t)> table_;
  float *cosine_ = nullptr, *sine_ = nullptr;
};

}  // namespace rotoscale::nn
