// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Triggers of healing: times of measurements, their state, the step that they fire after, and whether they can fire.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/nn/presets.hpp"
#include "rotoscale/nn/schedule.hpp"
#include "rotoscale/nn/statistics.hpp"
#include "rotoscale/train/lora.hpp"
#include "rotoscale/train/recipe_fit.hpp"

namespace rotoscale::train {

/// Interval of a measurement such as the validation loss. A step is `per_step` units of work. The measurement follows
/// each step that completes another `every` units. The first `skipped` times are left out.
struct measurement_times {
  std::int64_t every = 1;     ///< steps, or sequences
  std::int64_t per_step = 1;  ///< of the same unit
  std::int64_t skipped = 0;   ///< multiples of `every` that do not count
  bool at_start = false;      ///< also before the first step?

  /// Is there a measurement after `step` steps?
  bool includes(std::int64_t step) const { return step == 0 ? at_start : nth(step, 1) == step; }
  /// The n-th measurement (from 1) not before step `first`, which is at least 1. The largest number if it is beyond all
  /// runs.
  std::int64_t nth(std::int64_t first, std::int64_t n) const {
    const std::int64_t multiple = std::max((first - 1) * per_step / every, skipped) + 1;
    if (every <= per_step) return reached(multiple) + n - 1;  // every step from there on
    return reached(multiple + n - 1);
  }

 private:
  /// First step that completes `multiple` times `every`.
  std::int64_t reached(std::int64_t multiple) const {
    if (multiple > std::numeric_limits<std::int64_t>::max() / every) return std::numeric_limits<std::int64_t>::max();
    const std::int64_t work = multiple * every;
    return work / per_step + (work % per_step != 0);
  }
};

/// A trigger's measurements in the phase before the one that it starts; part of a checkpoint.
struct trigger_state {
  std::int64_t measurements = 0;  ///< so far
  std::int64_t count = 0;         ///< consecutive measurements that met the condition
  double best = 0.0;              ///< plateau: lowest loss; meaningful after a measurement
  double value = 0.0;             ///< the last measurement
  bool fired = false;             ///< the phase begins with the next step
};

template <class Visitor>
void describe(Visitor&& v, trigger_state& s) {
  v("measurements", s.measurements, "so far");
  v("count", s.count, "in a row that showed it");
  v("best", s.best, "lowest validation loss, nats");
  v("value", s.value, "last measurement");
  v("fired", s.fired, "whether the phase begins with the coming step");
}

/// Gives a trigger a measurement: a validation loss, or the ratio of gradient norm to quantization noise.
inline void observe(const nn::trigger& t, double value, trigger_state& s) {
  if (s.fired) return;
  bool shows = value < t.ratio;
  if (t.kind == nn::trigger_kind::plateau) {
    const bool improved = s.measurements == 0 || value < s.best - t.min_delta;
    if (improved) s.best = value;
    shows = !improved;
  }
  s.value = std::isfinite(value) ? value : std::numeric_limits<double>::max();  // JSON has no infinity
  ++s.measurements;
  s.count = shows ? s.count + 1 : 0;
  s.fired = s.count >= t.patience;
}

/// True if a trigger may measure after optimizer step `step`. The phase before it began at `entered`.
inline bool observes(const nn::trigger& t, std::int64_t step, std::int64_t entered) {
  return step - entered >= std::max<std::int64_t>(1, t.not_before);
}

/// Times of a trigger's measurements. `evaluations`: times of the validation loss.
inline measurement_times times_of(const nn::trigger& t, const measurement_times& evaluations) {
  return t.kind == nn::trigger_kind::plateau ? evaluations : measurement_times{t.every};
}

/// Is the gradient noise of the next step, after `step` steps, measured?
inline bool measures_noise(const nn::trigger& t, std::int64_t step, std::int64_t entered) {
  return t.kind == nn::trigger_kind::gradient_noise && observes(t, step + 1, entered) &&
         times_of(t, {}).includes(step + 1);
}

/// |reference| / |g - reference| of gradients g and noise_reference's; infinite where the two are equal.
inline double gradient_to_noise(const nn::comparison_statistics& s) {
  if (!(s.error_squares > 0)) return std::numeric_limits<double>::infinity();
  return std::sqrt(s.reference_squares / s.error_squares);
}

/// Reference for gradients: BF16 operands, with activations stored and attention computed as `r` does.
inline nn::recipe noise_reference(const nn::recipe& r) {
  nn::recipe reference = nn::presets::uniform("bf16", nn::operand_format::bf16, nn::operand_format::bf16);
  reference.activations = r.activations;
  reference.attention = r.attention;
  return reference;
}

/// Earliest step after which the trigger fires, in a phase that begins at `entered`.
inline std::int64_t earliest(const nn::trigger& t, std::int64_t entered, const measurement_times& evaluations) {
  // A plateau's first measurement is the reference of the others.
  const std::int64_t measurements = std::int64_t{t.patience} + (t.kind == nn::trigger_kind::plateau);
  return times_of(t, evaluations).nth(entered + std::max<std::int64_t>(1, t.not_before), measurements);
}

/// Properties of a run that decide whether triggers can fire.
struct triggered_run {
  std::int64_t steps = 0;         ///< of the run
  measurement_times evaluations;  ///< of the validation loss
  int layers = 1;                 ///< decoder layers of the model
  /// With adapters only: the first linear layer of a decoder layer that has one.
  std::optional<layer_linear> first_adapter{};
};

/// Does a gradient differ from noise_reference's? It does if a GEMM outside the BF16 layers has an operand narrower
/// than BF16. Weight gradients of frozen weights do not count. With adapters a dgrad GEMM counts if its linear layer
/// follows the first adapter's: an adapter's gradient passes through it.
inline bool has_noise(const nn::recipe& r, const triggered_run& run) {
  const auto any = [&](const nn::linear_recipe& l, bool dgrad_counts) {
    return is_quantized(l.fprop) || (dgrad_counts && is_quantized(l.dgrad)) ||
           (!run.first_adapter && is_quantized(l.wgrad));
  };
  const bool all_precede = run.first_adapter == layer_linear::down &&  // dgrad of layer 0's linear layers
                           std::int64_t{std::max(r.bf16_first_layers, 1)} + r.bf16_last_layers >= run.layers;
  return (has_own_layers(r, run.layers) && any(r, !all_precede)) || (r.head && any(*r.head, true));
}

namespace detail {

/// "50 steps", "384 sequences (8 a step, the first 3 times left out)".
inline std::string interval_text(const measurement_times& times) {
  if (times.at_start || (times.per_step == 1 && times.skipped == 0)) return std::to_string(times.every) + " steps";
  return std::to_string(times.every) + " sequences (" + std::to_string(times.per_step) + " a step" +
         (times.skipped == 0 ? "" : ", the first " + std::to_string(times.skipped) + " times left out") + ")";
}

/// Fault of the trigger's own fields.
inline std::optional<std::string> find_trigger_fault(const nn::trigger& t) {
  if (t.patience < 1) return "patience: must be at least 1";
  if (!(t.min_delta >= 0.0)) return "min_delta: must not be negative";
  if (!(t.ratio > 0.0)) return "ratio: never fires, since no ratio is below " + std::to_string(t.ratio);
  if (t.every < 1) return "every: must be at least 1";
  if (t.not_before < 0) return "not_before: must not be negative";
  return std::nullopt;
}

}  // namespace detail

/// Fault of a run's triggers, such as "phases[1].trigger...". A trigger that never fires is a fault.
inline std::optional<std::string> find_trigger_fault(const std::vector<nn::resolved_phase>& phases,
                                                     const triggered_run& run) {
  std::int64_t entered = 0;  // at the earliest
  for (std::size_t i = 1; i < phases.size(); ++i) {
    const nn::resolved_phase& p = phases[i];
    if (!p.trigger) {
      entered = p.from_step;
      continue;
    }
    const nn::trigger& t = *p.trigger;
    const std::string where = "phases[" + std::to_string(i) + "].trigger.";
    if (const auto fault = detail::find_trigger_fault(t)) return where + *fault;
    if (t.not_before > run.steps) {
      return where + "not_before: never fires, since " + std::to_string(t.not_before) +
             " steps are more than the run has, " + std::to_string(run.steps);
    }
    const nn::recipe& before = phases[i - 1].recipe;
    if (t.kind == nn::trigger_kind::gradient_noise && !has_noise(before, run)) {
      return where + "kind: never fires, since recipe " + before.name +
             (run.first_adapter ? " quantizes nothing that the gradients of these adapters depend on"
                                : " has no quantization noise in this model");
    }
    const std::int64_t fires = earliest(t, entered, run.evaluations);
    if (fires >= p.from_step) {
      return where + "patience: never fires, since " + std::to_string(t.patience) + " measurements, one every " +
             detail::interval_text(times_of(t, run.evaluations)) + ", end " +
             (fires > run.steps ? "after the run" : "at step " + std::to_string(fires)) +
             " and the phase before it ends at step " + std::to_string(p.from_step);
    }
    entered = fires;
  }
  return std::nullopt;
}

}  // namespace rotoscale::train
