// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A session's passes: the graphs of a training step, evaluation, logits.
#pragma once

#include "rotoscale/llama/session_class.hpp"

namespace rotoscale::llama {

inline const parameter* session::find_overflow() {
  const parameter_list& list = model_.parameters();
  std::vector<double> squares(list.segments().size());
  ops_->sum_squares(queue_, {model_.arena().weight, model_.arena()}, {squares_});
  ops_->download(queue_, squares.data(), squares_, squares.size() * sizeof(double));
  ops_->synchronize(queue_);
  std::size_t i = 0;
  for (const parameter& p : list.all()) {
    if (p.trains && !std::isfinite(squares[i++])) return &p;
  }
  return nullptr;
}

inline void session::gradients_of_micro_batch(bool last, bool observe) {
  nn::pass p = training_pass();
  p.observe = observe;
  model_.forward(p, tokens(), targets());
  model::gradients_ready ready;
  if (last && is_parallel()) {
    ready = [this](index_t first, index_t count) {
      ranks_->sum(queue_, nn::dense_tensor(model_.arena().gradient + first, nn::dtype::fp32, {count}));
    };
  }
  model_.backward(p, tokens(), ready);
}

/// Computes the next scales from recorded maxima, from those of all ranks if the recipe says so. Copies them for the
/// host.
inline void session::update_scales() {
  const nn::scaling_state& s = model_.scales().state();
  if (is_parallel() && recipe_.fp8.reduce_amax) {
    ranks_->max(queue_, nn::dense_tensor(s.amax, nn::dtype::fp32, {s.count}));
  }
  ops_->copy(queue_, amaxes_, s.amax, static_cast<std::size_t>(s.count) * sizeof(float));
  model_.scales().update(*ops_, queue_);
}

inline void session::capture() {
  evaluation_.reset();  // captured when there is something to evaluate
  if (!options_.model.training) return;
  begin_ = ops_->capture(queue_, [this] {
    ops_->begin_step(queue_, {targets_, step_tokens()}, {state_});
    sum_over_ranks(&state_->valid_tokens);
    ops_->set_gradient_scale(queue_, {}, {state_});
    model_.clear_gradients(queue_);
  });
  const auto micro_batch = [this](bool last, bool observe) {
    gradients_of_micro_batch(last, observe);
    if (has_fp8() && (last || recipe_.fp8.update == nn::scale_update::micro_batch)) update_scales();
    if (last) sum_over_ranks(&state_->loss_sum);
    ops_->next_micro_batch(queue_, {}, {state_});
  };
  micro_batch_ = ops_->capture(queue_, [=] { micro_batch(false, false); });
  last_micro_batch_ = ops_->capture(queue_, [=] { micro_batch(true, false); });
  if (options_.model.statistics) {
    const bool only = options_.micro_batches == 1;
    observed_micro_batch_ = ops_->capture(queue_, [=] { micro_batch(only, true); });
  }
  update_ = ops_->capture(queue_, [this] {
    ops_->gradient_norm(queue_, {model_.arena(), options_.optimizer}, {state_});
    ops_->adamw(queue_, {options_.optimizer, state_}, {model_.arena()});
  });
}

/// Called once: other extents of a pass do not change the steps in flight.
inline void session::lay_out_transfers(nn::memory_cursor& memory) {
  constexpr nn::memory_category category = nn::memory_category::transfers;
  const auto numbers = [&] {
    std::int32_t* const at = memory.array<std::int32_t>(category, step_tokens());
    return std::span(at, at == nullptr ? 0 : static_cast<std::size_t>(step_tokens()));
  };
  for (transfer& t : transfers_) {
    t.pinned = memory.array<pinned_block>(category, 1);
    if (options_.model.statistics) t.statistics = memory.array<linear_statistics>(category, model_.observed_count());
    t.amax_memory = memory.array<float>(category, model_.scales().state().count);
    t.tokens = numbers();
    t.targets = numbers();
    t.starts = numbers();
  }
}

inline void session::train_step(const nn::step_inputs& inputs, std::span<const std::int32_t> tokens,
                                std::span<const std::int32_t> targets, std::span<const std::int32_t> starts,
                                bool observe) {
  ROTOSCALE_ASSERT(options_.model.training && (options_.model.statistics || !observe) &&
                   static_cast<index_t>(tokens.size()) == step_tokens() && tokens.size() == targets.size() &&
                   (starts.empty() || starts.size() == tokens.size()));
  transfer& t = transfers_[steps_++ % transfers_.size()];
  if (t.in_flight) ops_->synchronize(t.done);  // two steps ago
  std::copy(tokens.begin(), tokens.end(), t.tokens.begin());
  std::copy(targets.begin(), targets.end(), t.targets.begin());
  std::copy(starts.begin(), starts.end(), t.starts.begin());
  t.pinned->inputs = inputs;
  upload_pass(state_, t.pinned->inputs, t.tokens, t.targets, t.starts.first(starts.size()));
  launch_gradients(observe);
  spare_snapshot();
  ops_->launch(queue_, *update_);
  ops_->download(queue_, &t.pinned->result, state_, sizeof(nn::step_state));
  t.amaxes = {t.amax_memory, has_fp8() ? static_cast<std::size_t>(model_.scales().state().count) : 0};
  if (has_fp8()) ops_->download(queue_, t.amax_memory, amaxes_, t.amaxes.size_bytes());
  t.observed = observe;
  if (observe) ops_->download(queue_, t.statistics, model_.statistics(), statistics_bytes());
  t.done = ops_->record(queue_);
  t.in_flight = true;
  model_.note_update();
}

inline void session::launch_gradients(bool observe) {
  model_.requantize(training_pass());
  ops_->launch(queue_, *begin_);
  for (int i = 0; i < options_.micro_batches; ++i) {
    const bool last = i + 1 == options_.micro_batches;
    ops_->launch(queue_, observe && i == 0 ? *observed_micro_batch_ : last ? *last_micro_batch_ : *micro_batch_);
  }
}

inline void session::upload_pass(nn::step_state* state, const nn::step_inputs& inputs,
                                 std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                 std::span<const std::int32_t> starts) {
  ops_->upload(queue_, &state->inputs, &inputs, sizeof inputs);
  ops_->upload(queue_, tokens_, tokens.data(), tokens.size_bytes());
  if (!targets.empty()) ops_->upload(queue_, targets_, targets.data(), targets.size_bytes());
  if (!options_.documents) return;
  if (starts.empty()) {
    ops_->fill_zero(queue_, starts_, tokens.size_bytes());
  } else {
    ops_->upload(queue_, starts_, starts.data(), starts.size_bytes());
  }
}

inline std::vector<float> session::evaluate(const nn::step_inputs& inputs, std::span<const std::int32_t> tokens,
                                            std::span<const std::int32_t> targets,
                                            std::span<const std::int32_t> starts) {
  upload_pass(evaluation_state_, inputs, tokens, targets, starts);
  model_.requantize(evaluation_pass());
  if (!evaluation_) {
    evaluation_ = ops_->capture(queue_, [this] { model_.forward(evaluation_pass(), this->tokens(), this->targets()); });
  }
  ops_->launch(queue_, *evaluation_);
  std::vector<float> losses(tokens.size());
  ops_->download(queue_, losses.data(), model_.loss(), losses.size() * sizeof(float));
  ops_->synchronize(queue_);
  return losses;
}

inline std::vector<float> session::logits(const nn::step_inputs& inputs, std::span<const std::int32_t> tokens,
                                          index_t token, index_t past) {
  ROTOSCALE_ASSERT(past >= 0 && (past == 0 || past + model_.tokens() <= options_.model.cache));
  std::vector<float> found;
  nn::pass p = evaluation_pass();
  p.past = past;
  upload_pass(evaluation_state_, inputs, tokens, {}, {});
  run_logits(p, token, 1, [&](std::span<const float> row) { found.assign(row.begin(), row.end()); });
  return found;
}

inline void session::for_each_logits(const nn::step_inputs& inputs, std::span<const std::int32_t> tokens,
                                     std::span<const std::int32_t> starts,
                                     const std::function<void(std::span<const float>)>& use) {
  upload_pass(evaluation_state_, inputs, tokens, {}, starts);
  run_logits(evaluation_pass(), 0, model_.tokens(), use);
}

template <class Use>
void session::run_logits(const nn::pass& p, index_t first, index_t count, const Use& use) {
  std::vector<float> host;
  model_.requantize(p);
  model_.logits(p, tokens(), first, count, [&](const nn::const_tensor_view& rows) {
    host.resize(static_cast<std::size_t>(rows.size()));
    ops_->download(queue_, host.data(), rows.data, host.size() * sizeof(float));
    ops_->synchronize(queue_);
    use(std::span<const float>(host));
  });
}

}  // namespace rotoscale::llama
