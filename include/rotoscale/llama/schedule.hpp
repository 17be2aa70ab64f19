// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Looking up recipes and schedules by preset name or JSON file, and turning fractions of a run into steps.
#pragma once

#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace rotoscale::llama {

namespace detail {

[[noreturn]] inline void fail_unknown(const std::string& kind, const std::string& name,
                                      const std::vector<std::string>& valid) {
  throw io::error(kind + " '" + name + "'",
                  "neither a preset nor a file; did you mean '" + io::nearest_name(name, valid) + "'?");
}

inline bool is_file(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(name, ignored);
}

}  // namespace detail

/// A preset's recipe, or one read from a JSON file (keys as the log shows them; missing ones as in bf16).
inline nn::recipe load_recipe(const std::string& name) {
  std::vector<std::string> valid;
  for (nn::recipe& r : nn::presets::all()) {
    if (r.name == name) return r;
    valid.push_back(r.name);
  }
  if (!detail::is_file(name)) detail::fail_unknown("recipe", name, valid);
  nn::recipe r = nn::presets::uniform(std::filesystem::path(name).stem().string(), nn::operand_format::bf16,
                                      nn::operand_format::bf16);
  io::from_json(io::read_json(name), r, name);
  if (const auto fault = find_fault(r)) throw io::error(name, *fault);
  return r;
}

namespace detail {

/// A file is a schedule if it has "phases", or a key that is nearer to it than to any of a recipe's.
inline bool is_schedule(const nlohmann::ordered_json& json) {
  if (!json.is_object() || json.empty()) return true;
  std::vector<std::string> keys{"phases"};
  nn::recipe any;
  describe([&](const char* key, auto&, const char*) { keys.emplace_back(key); }, any);
  for (const auto& [key, value] : json.items()) {
    if (io::nearest_name(key, keys) == "phases") return true;
  }
  return false;
}

}  // namespace detail

/// A named schedule, one read from a JSON file, or a recipe (preset or file) used from start to end.
inline nn::schedule load_schedule(const std::string& name) {
  std::vector<std::string> valid;
  for (const nn::schedule& s : nn::presets::schedules()) {
    if (s.name == name) return s;
    valid.push_back(s.name);
  }
  for (const nn::recipe& r : nn::presets::all()) {
    if (r.name == name) return {name, {{name, 0.0}}};
    valid.push_back(r.name);
  }
  if (!detail::is_file(name)) detail::fail_unknown("schedule", name, valid);
  const nlohmann::ordered_json json = io::read_json(name);
  if (!detail::is_schedule(json)) return {load_recipe(name).name, {{name, 0.0}}};
  nn::schedule s;
  s.name = std::filesystem::path(name).stem().string();
  io::from_json(json, s, name);
  if (s.phases.empty()) throw io::error(name, "phases: must not be empty");
  return s;
}

/// `at` below 1 is a fraction of `steps`, rounded to the nearest step; otherwise a step counted from 0.
inline std::vector<nn::resolved_phase> resolve(const nn::schedule& s, std::int64_t steps, const std::string& where) {
  std::vector<nn::resolved_phase> resolved;
  for (const nn::phase& p : s.phases) {
    if (!(p.at >= 0.0)) throw io::error(where, "phases.at: must not be negative");
    const double at = p.at < 1.0 ? p.at * static_cast<double>(steps) : p.at;
    if (at > 9.0e15) throw io::error(where, "phases.at: too large");
    resolved.push_back({std::llround(at), load_recipe(p.recipe)});
    if (resolved.back().from_step >= steps) {
      throw io::error(where, "phases.at: step " + std::to_string(resolved.back().from_step) +
                                 " does not come before the end of the run, " + std::to_string(steps) + " steps");
    }
  }
  if (resolved.front().from_step != 0) throw io::error(where, "phases.at: the first phase must start at 0");
  for (std::size_t i = 1; i < resolved.size(); ++i) {
    if (resolved[i].from_step <= resolved[i - 1].from_step) {
      throw io::error(where, "phases.at: step " + std::to_string(resolved[i].from_step) +
                                 " does not come after the phase before it");
    }
  }
  return resolved;
}

/// The index of the phase that `step` (counted from 0) belongs to.
inline std::size_t phase_at(const std::vector<nn::resolved_phase>& phases, std::int64_t step) {
  std::size_t i = 0;
  while (i + 1 < phases.size() && phases[i + 1].from_step <= step) ++i;
  return i;
}

}  // namespace rotoscale::llama
