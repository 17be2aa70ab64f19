// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Training steps on random tokens, for profiles. A model that learns its tokens by heart has gradients of a growing
// range, which slows some kernels. So each step has new tokens and targets.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "clock.hpp"
#include "device_failure.hpp"
#include "format_text.hpp"
#include "options.hpp"
#include "rotoscale/philox.hpp"
#include "throughput.hpp"
#include "trainer/state.hpp"

namespace rotoscale::program {

/// Steps before a measurement, and in one.
inline constexpr int warm_steps = 3, measured_steps = 10;

/// A session under the first phase's recipe, of one rank.
class random_run {
 public:
  /// `ranks`: null, or this rank's. Both outlive it. `options` have the microbatches of all ranks.
  random_run(const trainer_state& state, nn::backend& ops, train::session_options options,
             nn::communicator* ranks = nullptr)
      : state_(state), ops_(&ops) {
    if (ranks != nullptr) ranks_ = ranks->size(), rank_ = ranks->rank();
    options.micro_batches /= ranks_;
    const std::vector recipes{state.phases.front().recipe};
    plan_ = train::plan_session(ops, state.run.architecture(), options, recipes, ranks);
    with_plan(plan_, "while the model was loaded", [&] {
      session_ = std::make_unique<train::session>(ops, state.run.architecture(), options, recipes, ranks);
      load();
    });
  }
  /// Median seconds of `steps` steps, from end to end. The next step is queued before the host waits.
  double train(int steps) {
    return with_plan(plan_, "in a step", [&] { return train_steps(steps); });
  }
  /// What computes.
  nn::backend& ops() const { return *ops_; }
  /// Of this rank.
  const train::session& session() const { return *session_; }
  /// Of this rank.
  const nn::memory_plan& plan() const { return plan_; }
  /// Two lines, without a newline at the end: device, recipe and tokens, then time (`seconds` a step) and tokens a
  /// second.
  std::string step_lines(double seconds) const {
    const std::size_t phases = state_.phases.size();
    const std::string phase = phases == 1 ? "" : " (the first of " + std::to_string(phases) + " phases)";
    const double tokens = static_cast<double>(session_->step_tokens()) * ranks_;
    const double flops = model_flops_per_token(session_->model(), state_.run.train.sequence);
    return ops_->description() + ", recipe " + state_.phases.front().recipe.name + phase +
           format_text(", %.0f tokens a step, %.6f GFLOP a token\nstep %.3f ms, %.0f tokens/s", tokens, flops * 1e-9,
                       seconds * 1e3, tokens / seconds);
  }

 private:
  /// Initial values, which repeat after 2^18: a CPU thread draws few. A frozen base is drawn on the device.
  void load() {
    constexpr index_t most = index_t{1} << 18;
    const auto& list = session_->model().parameters();
    const std::uint64_t seed = state_.run.train.seed;
    if (state_.run.lora) {
      session_->draw_base(seed);
      return session_->initialize_adapters(seed);
    }
    for (std::size_t i = 0; i < list.all().size(); ++i) {
      const std::vector<float> some = train::initial_values(list[i], seed, {0, std::min(most, list[i].size())});
      for (index_t first = 0; first < list[i].size(); first += most) {
        const auto count = static_cast<std::size_t>(std::min(most, list[i].size() - first));
        session_->load(i, std::span(some).first(count), first);
      }
    }
  }
  double train_steps(int steps) {
    std::vector<std::vector<std::int32_t>> tokens, targets;
    for (int i = 0; i < steps; ++i) {
      tokens.push_back(draw());
      targets.push_back(draw());
    }
    std::vector<double> ends = {now_seconds()};
    for (std::size_t i = 0; i < tokens.size(); ++i, ++state_.step) {
      session_->train_step(step_inputs_for(state_), tokens[i], targets[i]);
      if (i > 0) end_step(session_->queued_steps() - 2, ends);
    }
    end_step(session_->queued_steps() - 1, ends);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) ends[i] = ends[i + 1] - ends[i];
    ends.pop_back();
    std::sort(ends.begin(), ends.end());
    return 0.5 * (ends[(ends.size() - 1) / 2] + ends[ends.size() / 2]);
  }
  void end_step(std::uint64_t number, std::vector<double>& ends) {
    session_->finish_step(number);
    ends.push_back(now_seconds());
  }
  /// Tokens of a step that no other call or rank returned.
  std::vector<std::int32_t> draw() {
    const random_stream words{state_.run.train.seed, 77 + static_cast<std::uint64_t>(rank_)};
    std::vector<std::int32_t> some(static_cast<std::size_t>(session_->step_tokens()));
    for (std::int32_t& token : some) {
      token = static_cast<std::int32_t>(words.word(drawn_++) % static_cast<std::uint32_t>(state_.run.vocabulary()));
    }
    return some;
  }

  trainer_state state_;
  nn::backend* ops_;
  int ranks_ = 1, rank_ = 0;
  nn::memory_plan plan_;
  std::unique_ptr<train::session> session_;
  std::uint64_t drawn_ = 0;
};

}  // namespace rotoscale::program
