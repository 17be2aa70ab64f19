// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A session's change of recipe, and the measurements that decide or prepare it.
#pragma once

#include "rotoscale/llama/session_class.hpp"

namespace rotoscale::llama {

inline void session::use(const nn::recipe& r, nn::scale_handover how, const std::vector<float>& maxima,
                         nn::gemm_scope switched) {
  constexpr nn::memory_category quantized = nn::memory_category::quantized;
  ops_->synchronize(queue_);  // the operands that go have been read
  const bool keeps_all = how == nn::scale_handover::keep, keeps = keeps_all || switched != nn::gemm_scope::all;
  const bool has_scales = keeps && model_.scales().state().scale != nullptr;
  const nn::scaling_snapshot scales = has_scales ? model_.scales().save(*ops_, queue_) : nn::scaling_snapshot{};
  ledger_.restart_peak();
  last_switch_ = {ledger_.now()[quantized]};
  model_.release_weights();
  last_switch_.between = ledger_.now()[quantized];

  recipe_ = r;
  bind(false);
  if (how == nn::scale_handover::seed) {
    model_.scales().record(*ops_, queue_, maxima);
    update_scales();
  } else {
    model_.scales().reset(*ops_, queue_);
  }
  if (has_scales) model_.scales().keep(*ops_, queue_, scales, keeps_all ? nn::gemm_scope::all : switched);
  if (!stash_.empty()) {
    ops_->order(stash_queue_, ops_->record(queue_));
    last_switch_.streamed = stash_.stream(*ops_, stash_queue_, recipe_, model_);
    ops_->order(queue_, ops_->record(stash_queue_));
  }
  last_switch_.after = ledger_.now()[quantized];
  last_switch_.peak = ledger_.peak()[quantized];
}

inline std::vector<float> session::observe_maxima(const nn::step_inputs& inputs, std::span<const std::int32_t> tokens,
                                                  std::span<const std::int32_t> targets,
                                                  std::span<const std::int32_t> starts) {
  nn::delayed_scaling_state& scales = model_.scales();
  const nn::scaling_snapshot before = scales.save(*ops_, queue_);
  ops_->fill_zero(queue_, scales.state().amax, before.amax.size() * sizeof(float));
  scales.observe_all(true);
  model_.void_weights();
  upload_pass(state_, inputs, tokens, targets, starts);
  model_.requantize(training_pass());
  ops_->launch(queue_, *begin_);
  // Not the graphs of a step, which were recorded without the maxima of all tensors.
  for (int i = 0; i < options_.micro_batches; ++i) {
    gradients_of_micro_batch(i + 1 == options_.micro_batches);
    ops_->next_micro_batch(queue_, {}, {state_});
  }
  const std::vector<float> maxima = scales.save(*ops_, queue_).amax;
  scales.observe_all(false);
  scales.restore(*ops_, queue_, before);
  return maxima;
}

inline std::vector<float> session::gradients() const {
  std::vector<float> host(static_cast<std::size_t>(model_.arena().size));
  ops_->download(queue_, host.data(), model_.arena().gradient, host.size() * sizeof(float));
  ops_->synchronize(queue_);
  return host;
}

inline std::vector<float> session::gradients_under(const nn::recipe& r, const nn::step_inputs& inputs,
                                                   std::span<const std::int32_t> tokens,
                                                   std::span<const std::int32_t> targets,
                                                   std::span<const std::int32_t> starts) {
  const nn::recipe own = recipe_;
  const nn::scaling_snapshot before = model_.scales().save(*ops_, queue_);
  use(r);
  upload_pass(state_, inputs, tokens, targets, starts);
  launch_gradients();
  std::vector<float> found = gradients();
  use(own);
  model_.scales().restore(*ops_, queue_, before);
  return found;
}

}  // namespace rotoscale::llama
