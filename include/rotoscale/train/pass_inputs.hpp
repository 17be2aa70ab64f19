// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Inputs of passes in backend memory: states of steps and of evaluations, tokens, targets, places in documents.
#pragma once

#include <span>

#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::train {

using token_ids = std::span<const std::int32_t>;  ///< in host memory

/// Inputs of one step, or of one pass that leaves no trace.
class pass_inputs {
 public:
  /// `pass`, `step`: tokens of a microbatch, and of a step. `documents`: attention stays within documents.
  pass_inputs(nn::backend& ops, index_t pass, index_t step, bool documents)
      : ops_(&ops), pass_(pass), step_(step), documents_(documents) {}

  /// Takes memory.
  void lay_out(nn::memory_cursor& memory) {
    constexpr nn::memory_category category = nn::memory_category::workspace;
    state_ = memory.array<nn::step_state>(category, 1);
    evaluation_state_ = memory.array<nn::step_state>(category, 1);
    for (std::int32_t** const ids : {&tokens_, &targets_, &starts_}) *ids = memory.array<std::int32_t>(category, step_);
  }
  /// Uploads inputs to `state`, tokens, and targets if there are any. Without `starts` sequences are documents.
  void upload(nn::queue q, nn::step_state* state, const nn::step_inputs& inputs, token_ids tokens, token_ids targets,
              token_ids starts) const {
    ops_->upload(q, &state->inputs, &inputs, sizeof inputs);
    ops_->upload(q, tokens_, tokens.data(), tokens.size_bytes());
    if (!targets.empty()) ops_->upload(q, targets_, targets.data(), targets.size_bytes());
    if (!documents_) return;
    if (starts.empty()) {
      ops_->fill_zero(q, starts_, tokens.size_bytes());
    } else {
      ops_->upload(q, starts_, starts.data(), starts.size_bytes());
    }
  }

  /// State of training steps.
  nn::step_state* state() const { return state_; }
  /// State of passes that leave no trace.
  nn::step_state* evaluation_state() const { return evaluation_state_; }
  /// Tokens of a microbatch.
  index_t pass_tokens() const { return pass_; }
  /// Tokens of a step.
  index_t step_tokens() const { return step_; }
  /// Ids by microbatch.
  nn::token_source tokens() const { return {tokens_, pass_}; }
  /// Ids by microbatch.
  nn::token_source targets() const { return {targets_, pass_}; }
  /// Place in its sequence where each token's document begins. No data: sequences are documents.
  nn::token_source starts() const { return documents_ ? nn::token_source{starts_, pass_} : nn::token_source{}; }

 private:
  nn::backend* ops_;
  index_t pass_, step_;
  bool documents_;
  nn::step_state *state_ = nullptr, *evaluation_state_ = nullptr;
  std::int32_t *tokens_ = nullptr, *targets_ = nullptr, *starts_ = nullptr;
};

}  // namespace rotoscale::train
