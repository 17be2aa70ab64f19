// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Schedules are data: recipes and their first steps. A phase begins at a step, or when a trigger fires (healing). It
// also says how FP8 scales continue, and how long the phase may last.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/nn/recipe.hpp"

namespace rotoscale::nn {

/// FP8 scales at the start of a phase, of tensors that its GEMMs read. `reset`: scales of 1, no history (AMD's
/// healing). `keep`: a tensor with the same FP8 format keeps its state. `seed`: from maxima of a pass under the old
/// recipe, on the data of the next step.
enum class scale_handover { reset, keep, seed };
ROTOSCALE_ENUM_NAMES(scale_handover, reset, keep, seed)
/// GEMMs that take a phase's recipe; the others keep the previous one.
enum class gemm_scope { all, forward, backward };
ROTOSCALE_ENUM_NAMES(gemm_scope, all, forward, backward)
/// Measurement of a trigger: validation loss, or gradient norm against quantization noise.
enum class trigger_kind { plateau, gradient_noise };
ROTOSCALE_ENUM_NAMES(trigger_kind, plateau, gradient_noise)

/// Starts a phase by a measurement in the phase before.
struct trigger {
  trigger_kind kind = trigger_kind::plateau;  ///< measurement
  int patience = 3;                           ///< consecutive measurements that must meet the condition
  double min_delta = 0.0;                     ///< plateau: nats below the best loss that count as an improvement
  double ratio = 1.7320508;                   ///< gradient_noise: fires below this |g_reference| / |g - g_reference|
  std::int64_t every = 50;                    ///< gradient_noise: steps between measurements
  std::int64_t not_before = 0;                ///< steps of the phase before without measurements

  bool operator==(const trigger&) const = default;
};

/// Part of a schedule. `recipe` is a preset's name or a JSON file. `at` is its first step, or below 1 a fraction of the
/// run. With a trigger `at` is the latest first step; 0: none.
struct phase {
  std::string recipe = "bf16";                        ///< a preset, or a JSON file
  double at = 0.0;                                    ///< first step, or fraction of the run
  double cap = 0.0;                                   ///< most steps, or fraction of the run; 0: to the run's end
  gemm_scope gemms = gemm_scope::all;                 ///< GEMMs that take the recipe
  scale_handover scales = scale_handover::reset;      ///< treatment of delayed scaling
  std::optional<nn::trigger> trigger = std::nullopt;  ///< none: the phase begins at `at`
  std::optional<nn::recipe> own = std::nullopt;       ///< the recipe itself, if the file contains it
  bool effective = false;                             ///< `own` is already merged with the phase before, as in a log
};

/// Recipes by their first steps.
struct schedule {
  std::string name = "bf16";   ///< in logs
  std::vector<phase> phases;   ///< in order of their start
  std::string contracts = {};  ///< contract set of all phases; empty: each recipe's own
};

/// A phase with its recipe and steps resolved.
struct resolved_phase {
  std::int64_t from_step = 0;                         ///< first optimizer step, from 0; with a trigger: the latest one
  nn::recipe recipe;                                  ///< with all defaults
  std::int64_t cap = 0;                               ///< the run ends after this many steps; 0: no cap
  gemm_scope gemms = gemm_scope::all;                 ///< GEMMs that differ from the previous phase
  scale_handover scales = scale_handover::reset;      ///< treatment of delayed scaling
  std::optional<nn::trigger> trigger = std::nullopt;  ///< of its start
};

namespace presets {

/// Where AMD's LoRA run of 550 steps heals: 339 steps under MXFP4, at most 211 under FP8 (MLPerf Training v6.0).
inline constexpr double amd_healing_start = 339.0 / 550, amd_healing_cap = 211.0 / 550;

/// A schedule of two phases.
inline schedule healing(std::string name, phase healed) {
  return {std::move(name), {{"mxfp4_h16"}, std::move(healed)}};
}

/// Schedules of more than one preset. docs/reference/schedules.md has their sources.
inline std::vector<schedule> schedules() {
  using enum gemm_scope;
  using enum scale_handover;
  constexpr double at = amd_healing_start;
  const trigger noise{trigger_kind::gradient_noise};
  return {{"mxfp4_h16_heal", {{"mxfp4_h16"}, {"fp8_delayed", 0.62}}},
          {"mxfp4_heal", {{"mxfp4"}, {"fp8_delayed", 0.62}}},
          healing("amd_lora", {"fp8_amd", at, amd_healing_cap}),
          healing("heal_scaled_stash", {"fp8_scaled_stash", at, amd_healing_cap}),
          healing("heal_bf16", {"bf16", at}),
          healing("heal_mxfp8", {"mxfp8", at}),
          healing("heal_forward", {"fp8_amd", at, 0, forward}),
          healing("heal_forward_bf16", {"bf16", at, 0, forward}),
          healing("heal_backward", {"fp8_amd", at, 0, backward}),
          healing("heal_seeded", {"fp8_amd", at, 0, all, seed}),
          healing("heal_plateau", {"fp8_amd", 0, 0, all, reset, trigger{}}),
          healing("heal_gradient_noise", {"fp8_amd", 0, 0, all, reset, noise}),
          {"heal_repeated", {{"mxfp4_h16"}, {"fp8_amd", 0.3}, {"mxfp4_h16", 0.4}, {"fp8_amd", 0.7}}}};
}

}  // namespace presets

template <class Visitor>
void describe(Visitor&& v, trigger& t) {
  v("kind", t.kind, "plateau of the validation loss, or gradient_noise: gradient norm to quantization noise");
  v("patience", t.patience, "measurements in a row");
  v("min_delta", t.min_delta, "plateau: least improvement, nats");
  v("ratio", t.ratio, "gradient_noise: fires below this");
  v("every", t.every, "gradient_noise: steps between measurements");
  v("not_before", t.not_before, "steps of the phase before that are not observed");
}

template <class Visitor>
void describe(Visitor&& v, phase& p) {
  v("recipe", p.recipe, "preset name or JSON file");
  v("at", p.at, "first step, or a fraction of the run below 1; with a trigger the latest, 0: none");
  v("cap", p.cap, "most steps of the last phase, or a fraction of the run below 1; 0: to the end");
  v("gemms", p.gemms, "which GEMMs take the recipe: all, forward, backward");
  v("scales", p.scales, "delayed scaling at the switch: reset, keep, seed");
  v("trigger", p.trigger, "starts the phase by what is measured");
}

template <class Visitor>
void describe(Visitor&& v, schedule& s) {
  v("name", s.name, "name in logs");
  v("contracts", s.contracts, "contract set of all phases (default: each recipe's own)");
  v("phases", s.phases, "recipes in order of their start");
}

template <class Visitor>
void describe(Visitor&& v, resolved_phase& p) {
  v("from_step", p.from_step, "first optimizer step, counted from 0; with a trigger the latest");
  v("recipe", p.recipe, "effective recipe");
  v("cap", p.cap, "most steps; 0: to the end");
  v("gemms", p.gemms, "which GEMMs are not those of the phase before");
  v("scales", p.scales, "delayed scaling at the switch");
  v("trigger", p.trigger, "what starts it; null: the step");
}

}  // namespace rotoscale::nn
