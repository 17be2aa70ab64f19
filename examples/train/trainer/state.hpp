// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The state of a run in a checkpoint besides its tensors, and functions of that state alone.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "field_names.hpp"
#include "options.hpp"
#include "rotoscale/train/session.hpp"
#include "rotoscale/train/trigger.hpp"

namespace rotoscale::program {

/// Content of trainer_state.json. It has no clocks: equal runs leave equal bytes.
struct trainer_state {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  double best_val_loss = 0;  ///< of all evaluations; meaningful once one was made
  bool evaluated = false;
  bool evaluation_due = false;  ///< an evaluation at `step` is still to be made
  bool target_reached = false;
  double recent_loss = 0;          ///< exponential mean of training losses; valid after the first step
  std::int64_t skipped_steps = 0;  ///< of the data order, by roll-backs
  int rollbacks = 0;
  std::uint64_t data_fingerprint = 0;
  std::string resolved_init;         ///< run.init, or the checkpoint that was the newest of that run then
  std::string resolved_adapter;      ///< the same of run.adapter
  std::uint64_t base_digest = 0;     ///< of the weights of run.init; 0: from the seed
  std::uint64_t adapter_digest = 0;  ///< of the adapters that the run began with; 0: from the seed
  run_options run;
  std::vector<nn::resolved_phase> phases;
  std::int64_t phase = 0;        ///< of the last step done
  std::int64_t phase_start = 0;  ///< its first step
  train::trigger_state trigger;  ///< of the phase to come

  /// Recipe of the last finished step. Before the first step: recipe of the first step.
  const nn::recipe& recipe() const { return phases[static_cast<std::size_t>(phase)].recipe; }
  /// The next phase; null: none.
  const nn::resolved_phase* next_phase() const {
    const auto next = static_cast<std::size_t>(phase) + 1;
    return next < phases.size() ? &phases[next] : nullptr;
  }
  /// Last step of the run: `train.steps`, or the cap of its last phase.
  std::int64_t end() const {
    const std::int64_t cap = phases[static_cast<std::size_t>(phase)].cap;
    return cap > 0 ? std::min(run.train.steps, phase_start + cap) : run.train.steps;
  }
};

template <class Visitor>
void describe(Visitor&& v, trainer_state& s) {
  v("step", s.step, "optimizer steps done");
  v("tokens", s.tokens, "training tokens seen");
  v("best_val_loss", s.best_val_loss, "nats");
  v("evaluated", s.evaluated, "whether best_val_loss holds anything");
  v("evaluation_due", s.evaluation_due, "whether an evaluation at this step is still to be made");
  v("target_reached", s.target_reached, "whether an evaluation has met target_loss");
  v("recent_loss", s.recent_loss, "exponential mean of training losses, nats");
  v("skipped_steps", s.skipped_steps, "steps' worth of training data left out by roll-backs");
  v("rollbacks", s.rollbacks, "how often the run went back to a checkpoint after it had diverged");
  v("data_fingerprint", s.data_fingerprint, "of the text");
  v("resolved_init", s.resolved_init, "where the weights of init were read: a run's newest checkpoint then");
  v("resolved_adapter", s.resolved_adapter, "where the adapters were");
  v("base_digest", s.base_digest, "of the weights of init");
  v("adapter_digest", s.adapter_digest, "of the adapters that the run began with");
  v("run", s.run, "effective options");
  v("phases", s.phases, "effective recipes by step");
  v("phase", s.phase, "of the last step done");
  v("phase_start", s.phase_start, "its first step");
  v("trigger", s.trigger, "what the trigger of the next phase has seen");
}

/// Gives new adapters their kind of model's default targets, unless a flag or a file names targets.
void settle_targets(run_options& run, const field_names& names);

/// Checks options against each other. Throws io::error with field names of `names`. `phases` is the schedule as
/// resolved by an earlier run of these options; empty: resolved from a preset or a file.
trainer_state new_run(run_options options, const field_names& names, given_files given = given_files::needed,
                      std::vector<nn::resolved_phase> phases = {});

/// A run's effective schedule, with the name and number of steps that it was resolved from.
struct effective_schedule {
  std::string schedule;
  std::int64_t steps = 0;
  std::vector<nn::resolved_phase> phases;

  /// Was it resolved for these options? Another name or length needs a new resolution.
  bool is_of(const run_options& run) const { return schedule == run.schedule && steps == run.train.steps; }
};

template <class Visitor>
void describe(Visitor&& v, effective_schedule& s) {
  v("schedule", s.schedule, "name that it was resolved from");
  v("steps", s.steps, "of the run that it was resolved for");
  v("phases", s.phases, "effective recipes by step");
}

/// config.json of a run: its options, and under "effective_schedule" its phases.
nlohmann::ordered_json config_json(const trainer_state& state);

/// The first field in which phases differ, "phases[0].recipe.fprop.x.policy was \"te_rocm\", is \"ocp\"", or nothing.
std::optional<std::string> find_phase_change(const std::vector<nn::resolved_phase>& was,
                                             const std::vector<nn::resolved_phase>& is);

/// Reads trainer_state.json of a checkpoint. Throws io::error for values that no run writes.
trainer_state read_trainer_state(const std::filesystem::path& checkpoint);

/// Reason why a recipe cannot run with these shapes or a frozen base: "recipe mxfp4: hidden_size: ..."; nullopt: it
/// can.
std::optional<std::string> find_recipe_fault(const run_options& run, const nn::recipe& r);

/// Session options of a run. `async_checkpoints` is auto, on or off. `statistics` reserves memory for an observed
/// step.
train::session_options session_options_for(const run_options& run, std::size_t memory_limit, bool statistics,
                                           const std::string& async_checkpoints = "off");
/// Properties of a run that decide whether triggers can fire, and whether gradients have noise.
train::triggered_run triggered_run_of(const run_options& run);
/// Recipes in the order of their use. They include the BF16 recipe of reference gradients, if a trigger needs it or if
/// `statistics_noise` is set and a phase has noise.
std::vector<nn::recipe> recipes_of(const trainer_state& state, bool statistics_noise = false);

/// Table of bytes by category, with their sum.
std::string memory_table(const nn::memory_plan& plan);
/// One line about the checkpoints of a run with that plan.
std::string checkpoint_line(const nn::memory_plan& plan);
/// One line with the number of parameters, adapters included.
std::string parameter_line(const run_options& run);

/// Steps of the linear warm-up, and steps from the first one to the end of the cosine.
double warmup_steps(const train_options& options);
double decay_steps(const train_options& options);

/// Learning rate of the step after `step` finished ones.
double learning_rate(const train_options& options, std::int64_t step);

/// Inputs of the next step, or of an evaluation now.
nn::step_inputs step_inputs_for(const trainer_state& state);

}  // namespace rotoscale::program
