// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a checkpoint keeps of a run beside its tensors, and what follows from it alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "options.hpp"
#include "rotoscale/llama/session.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace rotoscale::llama_program {

/// What trainer_state.json holds. No clocks: equal runs leave equal bytes.
struct trainer_state {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double best_val_loss = 0;  ///< of all evaluations; meaningful once one was made
  bool evaluated = false;
  std::uint64_t data_fingerprint = 0;
  run_options run;
  std::vector<nn::resolved_phase> phases;
};

template <class Visitor>
void describe(Visitor&& v, trainer_state& s) {
  v("step", s.step, "optimizer steps done");
  v("tokens", s.tokens, "training tokens seen");
  v("best_val_loss", s.best_val_loss, "nats");
  v("evaluated", s.evaluated, "whether best_val_loss holds anything");
  v("data_fingerprint", s.data_fingerprint, "of the text");
  v("run", s.run, "effective options");
  v("phases", s.phases, "effective recipes by step");
}

/// Checks options against each other and resolves the schedule; throws io::error. `where` names the options' source.
trainer_state new_run(run_options options, const std::string& where);

/// Reads trainer_state.json of a checkpoint; throws io::error for what no run leaves.
trainer_state read_trainer_state(const std::filesystem::path& checkpoint);

/// What a run asks of its session.
llama::session_options session_options_for(const run_options& run, std::size_t memory_limit);
std::vector<nn::recipe> recipes_of(const std::vector<nn::resolved_phase>& phases);

/// Bytes by category, a line each, and their sum.
std::string memory_table(const nn::memory_plan& plan);

/// Of the step that follows `step` finished ones.
double learning_rate(const train_options& options, std::int64_t step);

/// What the coming step, or an evaluation now, is told.
nn::step_inputs step_inputs_for(const trainer_state& state);

}  // namespace rotoscale::llama_program
