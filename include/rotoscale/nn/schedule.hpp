// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Schedules are data: which recipe holds from which step on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rotoscale/nn/recipe.hpp"

namespace rotoscale::nn {

/// Part of a schedule: `recipe` is a preset's name or a JSON file; `at` its first step, a fraction of the run below 1.
struct phase {
  std::string recipe = "bf16";  ///< a preset, or a JSON file
  double at = 0.0;              ///< first step, or fraction of the run
};

/// Which recipe holds from which step on.
struct schedule {
  std::string name = "bf16";  ///< in logs
  std::vector<phase> phases;  ///< in order of their start
};

/// A phase with everything looked up: optimizer steps >= from_step (counted from 0) use `recipe`.
struct resolved_phase {
  std::int64_t from_step = 0;  ///< first optimizer step
  nn::recipe recipe;           ///< with every default filled in
};

namespace presets {

/// Schedules that are more than one preset from start to end.
inline std::vector<schedule> schedules() {
  return {{"mxfp4_h16_heal", {{"mxfp4_h16", 0.0}, {"fp8_delayed", 0.62}}},
          {"mxfp4_heal", {{"mxfp4", 0.0}, {"fp8_delayed", 0.62}}}};
}

}  // namespace presets

template <class Visitor>
void describe(Visitor&& v, phase& p) {
  v("recipe", p.recipe, "preset name or JSON file");
  v("at", p.at, "first step, or a fraction of the run below 1");
}

template <class Visitor>
void describe(Visitor&& v, schedule& s) {
  v("name", s.name, "name in logs");
  v("phases", s.phases, "recipes in order of their start");
}

template <class Visitor>
void describe(Visitor&& v, resolved_phase& p) {
  v("from_step", p.from_step, "first optimizer step, counted from 0");
  v("recipe", p.recipe, "effective recipe");
}

}  // namespace rotoscale::nn
