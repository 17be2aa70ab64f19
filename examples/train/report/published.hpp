// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's published healing curve: evaluation losses of Llama 2 70B LoRA in MLPerf Training's result logs. Another model,
// other data, another learning rate than its own reference: only the curve's shape can be compared.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "report/parts.hpp"

namespace rotoscale::program::report_parts {

inline constexpr int amd_run_steps = 550, amd_switch_step = 339, amd_batch = 8;

/// Evaluation loss after `samples`, on MI355X. A run ends at the target of 0.925. FP8: the mean of ten runs (v5.1;
/// lr 4e-4, cosine over 1024 steps). MXFP4, healed to FP8: runs 0 to 2 (v6.0; lr 6e-4, cosine over 550 steps).
struct published_point {
  int samples;
  double fp8;
  std::vector<double> healed;
};
inline const std::vector<published_point> amd_healing_losses = {
    {1536, .9401, {.9731, .9736, .9746}}, {1920, .9366, {.9639, .9621, .9643}}, {2304, .9315, {.9545, .9544, .9535}},
    {2688, .9284, {.9485, .9487, .9496}}, {3072, .9253, {.9250, .9248, .9277}}, {3456, .9218, {.9247}}};

/// Gap to the FP8 runs, mean over the runs that got there, by step.
inline std::vector<difference> amd_healing_gaps() {
  std::vector<difference> gaps;
  for (const published_point& p : amd_healing_losses) {
    double sum = 0;
    for (const double loss : p.healed) sum += loss - p.fp8;
    gaps.push_back({p.samples / amd_batch, sum / static_cast<double>(p.healed.size())});
  }
  return gaps;
}

/// The same before the switch and after it.
inline gaps_around amd_gaps_around_switch() {
  gaps_around found;
  for (const difference& d : amd_healing_gaps()) (d.step <= amd_switch_step ? found.before : found.after).push_back(d);
  return found;
}

/// A point of a healing curve. Time since the switch is a share of the run. The gap is a share of the last gap before
/// the switch.
struct shape_point {
  double time = 0;
  double gap = 0;
};

/// The shape of a curve of gaps around a switch.
struct healing_shape {
  std::vector<shape_point> points;  ///< empty: none
  double before = 0;                ///< the last gap before the switch, nats; shapes of gaps below zero begin at -1
  std::string missing;              ///< reason why there is none
};
inline healing_shape measure_shape(const gaps_around& gaps, std::int64_t switch_step, std::int64_t run_steps) {
  healing_shape shape;
  if (gaps.before.empty()) shape.missing = "no evaluation before its switch to compare";
  if (gaps.after.empty()) shape.missing = "no evaluation after its switch to compare";
  if (!shape.missing.empty()) return shape;
  shape.before = gaps.before.back().value;
  if (shape.before == 0) {
    shape.missing = "no gap before its switch";
    return shape;
  }
  for (const auto* side : {&gaps.before, &gaps.after}) {
    for (const difference& d : *side) {
      shape.points.push_back({static_cast<double>(d.step - switch_step) / static_cast<double>(run_steps),
                              d.value / std::fabs(shape.before)});
    }
  }
  return shape;
}

}  // namespace rotoscale::program::report_parts
