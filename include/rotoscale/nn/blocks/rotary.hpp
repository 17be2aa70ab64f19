// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: a table of cosines and sines that all attention blocks of a model share.
#pragma once

#include <utility>

#include "rotoscale/nn/blocks/block.hpp"
#include "rotoscale/nn/rope_table.hpp"

namespace rotoscale::nn {

/// The table in backend memory: a block without parameters or passes.
class rotary final : public block {
 public:
  /// Makes the table of these frequencies.
  explicit rotary(rope_options options) : options_(std::move(options)) {}

  void lay_out(const layout& at) override {
    if (at.phase != layout_phase::weights) return;
    positions_ = at.options.positions();
    const index_t n = positions_ * options_.head_dim / 2;
    cosine_ = at.memory.array<float>(memory_category::weights, n);
    sine_ = at.memory.array<float>(memory_category::weights, n);
  }
  void upload(backend& ops, queue q) override {
    const rope_table table = make_rope_table(options_, positions_);
    ops.upload(q, cosine_, table.cosine.data(), table.cosine.size() * sizeof(float));
    ops.upload(q, sine_, table.sine.data(), table.sine.size() * sizeof(float));
    ops.synchronize(q);
  }
  /// Rotates queries and keys, (batch, seq, heads, head_dim), in place. `inverse`: their gradients.
  void rotate(const pass& p, tensor_view queries, tensor_view keys, bool inverse) const {
    const index_t first = p.past * options_.head_dim / 2;
    p.ops->rope(p.queue, {cosine_ + first, sine_ + first, inverse}, {queries, keys});
  }

 private:
  rope_options options_;
  index_t positions_ = 0;
  float *cosine_ = nullptr, *sine_ = nullptr;
};

}  // namespace rotoscale::nn
