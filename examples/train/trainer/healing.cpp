// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Phases of the trainer: measurements for triggers, and the switch of recipes.
#include "rotoscale/io/json.hpp"
#include "rotoscale/train/session.hpp"
#include "trainer/mlperf.hpp"
#include "trainer/train.hpp"

namespace rotoscale::program {

using nlohmann::ordered_json;

namespace {

/// Reason of a switch, for the log.
ordered_json reason_record(const nn::resolved_phase& phase, const train::trigger_state& seen) {
  if (!seen.fired) return {{"kind", "step"}, {"at", phase.from_step}};
  ordered_json record = {{"kind", std::string(to_string(phase.trigger->kind))},
                         {"value", seen.value},
                         {"measurements", seen.measurements}};
  if (phase.trigger->kind == nn::trigger_kind::plateau) {
    record["best"] = seen.best;
    record["min_delta"] = phase.trigger->min_delta;
  } else {
    record["ratio"] = phase.trigger->ratio;
  }
  record["patience"] = phase.trigger->patience;
  return record;
}

ordered_json switch_memory_record(const train::switch_memory& m) {
  return {{"quantized_before", m.before},
          {"quantized_between", m.between},
          {"quantized_after", m.after},
          {"quantized_peak", m.peak},
          {"streamed", m.streamed}};
}

}  // namespace

/// This rank's part of the coming step.
token_batch trainer::training_data() {
  const int batch = state_.run.train.batch, own = state_.run.train.accumulate / ranks_->size();
  const std::int64_t first = (state_.step + state_.skipped_steps) * batch * state_.run.train.accumulate;
  token_batch all;
  for (int i = 0; i < own; ++i) {
    all = text_.training_batch(first + model_->microbatch(i) * batch, batch, std::move(all));
  }
  return all;
}

/// Begins the next phase if its step has come or its trigger has fired. The log's record has two losses of the same
/// weights and windows: under the old recipe and under the new one.
void trainer::enter_phase() {
  const nn::resolved_phase* const next = state_.next_phase();
  if (next == nullptr || (!state_.trigger.fired && state_.step < next->from_step)) return;
  const std::string from = state_.recipe().name;
  // An equal recipe keeps its scales, so a switch to it changes nothing.
  const nn::scale_handover scales = next->recipe == state_.recipe() ? nn::scale_handover::keep : next->scales;
  const auto loss = [&] { return evaluate_on_ranks(state_.run.train.eval_windows).loss; };
  const double before = loss();
  std::vector<float> maxima;
  if (scales == nn::scale_handover::seed) {
    const token_batch data = training_data();
    maxima = model_->observe_maxima(step_inputs_for(state_), data.tokens, data.targets, data.document_starts);
  }
  model_->use(next->recipe, scales, maxima, next->gemms);
  record({{"event", "switch"},
          {"step", state_.step},
          {"from", from},
          {"to", next->recipe.name},
          {"reason", reason_record(*next, state_.trigger)},
          {"scales", std::string(to_string(scales))},
          {"val_loss_before", before},
          {"val_loss_after", loss()},
          {"memory", switch_memory_record(model_->last_switch())}});
  ++state_.phase;
  state_.phase_start = state_.step;
  state_.trigger = {};
}

/// True if a trigger measures the quantization noise of the coming step.
bool trainer::triggers_measure() const {
  const nn::resolved_phase* const next = state_.next_phase();
  return next != nullptr && next->trigger && train::measures_noise(*next->trigger, state_.step, state_.phase_start);
}

/// True if the statistics measure that noise.
bool trainer::statistics_measure() const {
  return session_.statistics_noise && observes() && train::has_noise(state_.recipe(), triggered_run_of(state_.run));
}

/// Gradients of the coming step under the recipe that quantization noise is measured against.
std::vector<float> trainer::reference_gradients() {
  const token_batch data = training_data();
  return model_->gradients_under(train::noise_reference(state_.recipe()), step_inputs_for(state_), data.tokens,
                                 data.targets, data.document_starts);
}

/// Called after a step with reference gradients. An optimizer update does not change the gradients.
void trainer::observe_noise(const std::vector<float>& reference, bool triggered, bool observed) {
  const std::vector<nn::comparison_statistics> each =
      compare_gradients(model_->model().parameters(), model_->gradients(), reference);
  if (observed && leads()) statistics_->write_noise(state_.step, state_.recipe().name, model_->model(), each);
  if (!triggered) return;
  const double ratio = train::gradient_to_noise(sum_of(each));
  train::observe(*state_.next_phase()->trigger, ratio, state_.trigger);
  record({{"event", "noise"}, {"step", state_.step}, {"gradient_to_noise", ratio}});
}

void trainer::observe_validation(double loss) {
  const nn::resolved_phase* const next = state_.next_phase();
  if (next == nullptr || !next->trigger || next->trigger->kind != nn::trigger_kind::plateau) return;
  if (!evaluation_times(state_.run.train).includes(state_.step)) return;  // the evaluation at the end of a run
  if (train::observes(*next->trigger, state_.step, state_.phase_start)) {
    train::observe(*next->trigger, loss, state_.trigger);
  }
}

}  // namespace rotoscale::program
