// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where logits, their gradients and the head's operands lie: in the workspace, or where gradients come to be later.
#pragma once

#include <algorithm>
#include <optional>

#include "rotoscale/llama/model_class.hpp"

namespace rotoscale::llama {

inline void model::lay_out_head(nn::memory_cursor& memory) {
  const index_t n = tokens(), chunk = head_.shape().tokens;
  head_chunks_.clear();
  head_x_.clear();
  head_dlogits_.clear();
  logits_ = memory.tensor(category::workspace, nn::dtype::fp32, chunk, config_.vocab_size);
  const auto make = [&](nn::tensor_role tensor, nn::dtype type, nn::const_tensor_view source) {
    nn::operand_request r = head_.request(tensor);
    r.source = type;
    r.rows = source.extent(0);
    r.part = static_cast<index_t>(head_chunks_.size());
    void* const at = memory.take(category::workspace, ops_->layout_operands(r).bytes);
    return memory.counts_only() ? nullptr : ops_->make_operands(r, at, source);
  };
  // One chunk's operands at a time.
  const std::size_t mark = memory.mark(category::workspace);
  for (index_t first = 0; first < n; first += chunk) {
    const index_t count = std::min(chunk, n - first);
    memory.rewind(category::workspace, mark);
    head_x_.push_back(make(nn::tensor_role::x, stored_, normed_.part(0, first, count)));
    if (options_.training) {
      head_dlogits_.push_back(make(nn::tensor_role::dy, nn::dtype::fp32, logits_.part(0, 0, count)));
    }
    head_chunks_.push_back({head_x_.back().get(), first, count});
  }
}

/// Logits and their gradients are the largest memory of a pass behind activations, and gradients of all but the head's
/// weight are not begun while they are there. So where a step is one pass they share memory, if it is enough: that in
/// front of the head's gradient, or behind it where it comes first (a tied head's). Nothing: it is not.
inline std::optional<nn::memory_cursor> model::borrow_gradients(const nn::memory_cursor& memory) {
  lent_first_ = lent_count_ = 0;
  if (!options_.training || !options_.lends_gradients) return std::nullopt;
  nn::memory_cursor counting;
  lay_out_head(counting);
  const std::size_t bytes = counting.plan()[category::workspace];
  const parameter& head = parameters_[parameters_.head()];
  const auto aligned = [](index_t n) {
    return (n + nn::parameter_alignment - 1) / nn::parameter_alignment * nn::parameter_alignment;
  };
  const bool behind = head.trains && head.offset == 0;
  const index_t first = behind ? aligned(head.size()) : 0;
  const index_t end = head.trains && !behind ? head.offset : parameters_.arena_size();
  if (static_cast<std::size_t>(std::max<index_t>(0, end - first)) * sizeof(float) < bytes) return std::nullopt;
  lent_first_ = first;
  lent_count_ = static_cast<index_t>(bytes / sizeof(float));
  if (memory.counts_only()) return nn::memory_cursor();
  nn::arena_bases bases{};
  bases[static_cast<std::size_t>(category::workspace)] = reinterpret_cast<std::byte*>(gradients_ + first);
  return nn::memory_cursor(bases);
}

inline void model::fill_gradients(nn::queue q, index_t first, index_t count) const {
  if (count > 0) ops_->fill_zero(q, gradients_ + first, static_cast<std::size_t>(count) * sizeof(float));
}

inline void model::clear_gradients(nn::queue q) const {
  const index_t behind = lent_first_ + lent_count_;
  fill_gradients(q, 0, lent_first_);
  fill_gradients(q, behind, parameters_.arena_size() - behind);
}

}  // namespace rotoscale::llama
