// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Triggers of healing: what they have seen, when they fire, and whether they can at all.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rotoscale/nn/presets.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace rotoscale::llama {

/// What a trigger has seen in the phase before the one it starts: part of a checkpoint.
struct trigger_state {
  std::int64_t measurements = 0;  ///< so far
  std::int64_t count = 0;         ///< measurements in a row that showed what it waits for
  double best = 0.0;              ///< plateau: lowest loss; meaningful after a measurement
  double value = 0.0;             ///< the last measurement
  bool fired = false;             ///< the phase begins with the coming step
};

template <class Visitor>
void describe(Visitor&& v, trigger_state& s) {
  v("measurements", s.measurements, "so far");
  v("count", s.count, "in a row that showed it");
  v("best", s.best, "lowest validation loss, nats");
  v("value", s.value, "last measurement");
  v("fired", s.fired, "whether the phase begins with the coming step");
}

/// Tells a trigger of a measurement: a validation loss, or the ratio of gradient norm to quantization noise.
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

/// May a trigger measure behind optimizer step `step`, when its phase before began at `entered`?
inline bool observes(const nn::trigger& t, std::int64_t step, std::int64_t entered) {
  return step - entered >= std::max<std::int64_t>(1, t.not_before);
}

/// Is the gradient noise of the coming step (`step` are done) measured?
inline bool measures_noise(const nn::trigger& t, std::int64_t step, std::int64_t entered) {
  return t.kind == nn::trigger_kind::gradient_noise && observes(t, step + 1, entered) && (step + 1) % t.every == 0;
}

/// |g| / |g - reference| over all elements; infinite where the two are equal.
inline double gradient_to_noise(std::span<const float> g, std::span<const float> reference) {
  double squares = 0, noise = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double x = static_cast<double>(g[i]), d = x - static_cast<double>(reference[i]);
    squares = std::fma(x, x, squares);
    noise = std::fma(d, d, noise);
  }
  return std::sqrt(squares / noise);
}

/// What gradients are compared with: BF16 operands, with activations stored and attention computed as `r` does.
inline nn::recipe noise_reference(const nn::recipe& r) {
  nn::recipe reference = nn::presets::uniform("bf16", nn::operand_format::bf16, nn::operand_format::bf16);
  reference.activations = r.activations;
  reference.attention = r.attention;
  return reference;
}

/// Steps between a trigger's measurements, all of which lie at multiples of it.
inline std::int64_t interval(const nn::trigger& t, std::int64_t eval_every) {
  return t.kind == nn::trigger_kind::plateau ? eval_every : t.every;
}

/// The earliest step behind which the trigger fires, in a phase that begins at `entered`.
inline std::int64_t earliest(const nn::trigger& t, std::int64_t entered, std::int64_t eval_every) {
  const std::int64_t every = interval(t, eval_every), first = entered + std::max<std::int64_t>(1, t.not_before);
  // A plateau's first measurement is what the others are compared with.
  const std::int64_t measurements = t.patience + (t.kind == nn::trigger_kind::plateau);
  return ((first + every - 1) / every + measurements - 1) * every;
}

/// What is wrong with the triggers of a run of `steps` steps, one of them never firing included:
/// "phases[1].trigger...".
inline std::optional<std::string> find_trigger_fault(const std::vector<nn::resolved_phase>& phases, std::int64_t steps,
                                                     std::int64_t eval_every) {
  std::int64_t entered = 0;  // at the earliest
  for (std::size_t i = 1; i < phases.size(); ++i) {
    const nn::resolved_phase& p = phases[i];
    if (!p.trigger) {
      entered = p.from_step;
      continue;
    }
    const nn::trigger& t = *p.trigger;
    const std::string where = "phases[" + std::to_string(i) + "].trigger.";
    if (t.patience < 1) return where + "patience: must be at least 1";
    if (!(t.min_delta >= 0.0)) return where + "min_delta: must not be negative";
    if (!(t.ratio > 0.0)) return where + "ratio: never fires, since no ratio is below " + std::to_string(t.ratio);
    if (t.every < 1) return where + "every: must be at least 1";
    if (t.not_before < 0) return where + "not_before: must not be negative";
    const std::int64_t every = interval(t, eval_every);
    if (every > steps || t.not_before > steps) {
      return where + "not_before: never fires, since it measures every " + std::to_string(every) +
             " steps behind step " + std::to_string(t.not_before) + " and the run has " + std::to_string(steps);
    }
    if (t.kind == nn::trigger_kind::gradient_noise && !nn::is_quantized(phases[i - 1].recipe)) {
      return where + "kind: never fires, since recipe " + phases[i - 1].recipe.name + " has no quantization noise";
    }
    const std::int64_t fires = earliest(t, entered, eval_every);
    if (fires >= p.from_step) {
      return where + "patience: never fires, since " + std::to_string(t.patience) + " measurements, one every " +
             std::to_string(every) + " steps, end at step " + std::to_string(fires) +
             " and the phase before it ends at step " + std::to_string(p.from_step);
    }
    entered = fires;
  }
  return std::nullopt;
}

}  // namespace rotoscale::llama
