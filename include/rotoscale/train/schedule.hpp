// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Looking up recipes and schedules by preset name or JSON file, and turning fractions of a run into steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/nn/presets.hpp"
#include "rotoscale/nn/recipe_faults.hpp"
#include "rotoscale/nn/schedule.hpp"

namespace rotoscale::train {

namespace detail {

[[noreturn]] inline void fail_unknown(const std::string& field, const std::string& name,
                                      const std::vector<std::string>& valid) {
  throw io::error(field,
                  "'" + io::printable(name) + "' is neither a preset nor a file" + io::did_you_mean(name, valid));
}

/// Exists, as any kind of file: reading reports a directory or a device.
inline bool is_file(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::exists(name, ignored);
}

/// Removes the key "base" from a recipe's file: the preset that gives missing fields.
inline std::string take_base(nlohmann::ordered_json& json, const std::string& file,
                             const std::vector<std::string>& presets) {
  if (!json.is_object() || !json.contains("base")) return "bf16";
  const nlohmann::ordered_json base = json["base"];
  const std::string name = base.is_string() ? base.get<std::string>() : base.dump();
  if (std::find(presets.begin(), presets.end(), name) == presets.end()) {
    throw io::error(file, "base: no preset '" + io::printable(name) + "'" + io::did_you_mean(name, presets));
  }
  json.erase("base");
  return name;
}

/// Format that a file gives an operand; nullopt if it gives none, or one that reading refuses.
inline std::optional<nn::operand_format> given_format(const nlohmann::ordered_json& gemm, const char* operand) {
  const auto found = gemm.find(operand);
  if (found == gemm.end() || !found->is_object() || !found->contains("format")) return std::nullopt;
  nn::operand_format format{};
  const auto& name = (*found)["format"];
  if (!name.is_string() || !from_string(std::string_view(name.get_ref<const std::string&>()), format)) {
    return std::nullopt;
  }
  return format;
}

/// An operand of that format with the format's own blocks, rule and policy, and no rotation.
inline nn::operand_recipe own_operand(nn::operand_format format, rounding how) {
  nn::operand_recipe own{format};
  if (format == nn::operand_format::nvfp4) own.policy = policies::nvidia;
  if (nn::has_blocks(format)) own.rounding = how;
  return own;
}

/// Calls f(GEMM, its JSON, names of its operands) for the GEMMs that a file's object has.
template <class Function>
void for_each_given_gemm(const nlohmann::ordered_json& json, nn::linear_recipe& r, const Function& f) {
  const auto visit = [&](const char* name, nn::gemm_recipe& gemm, const char* left, const char* right) {
    const auto found = json.find(name);
    if (found != json.end() && found->is_object()) f(gemm, *found, left, right);
  };
  visit("fprop", r.fprop, "x", "w");
  visit("dgrad", r.dgrad, "dy", "w");
  visit("wgrad", r.wgrad, "dy", "x");
}

/// Gives operands whose format a file changes the defaults of the new format. Both operands of the GEMM lose their
/// rotation, because they must share it.
inline void change_formats(const nlohmann::ordered_json& json, nn::linear_recipe& r) {
  for_each_given_gemm(
      json, r, [](nn::gemm_recipe& gemm, const nlohmann::ordered_json& given, const char* left, const char* right) {
        bool changed = false;
        for (const auto& [operand, name] : {std::pair{&gemm.left, left}, {&gemm.right, right}}) {
          const auto format = given_format(given, name);
          if (!format || *format == operand->format) continue;
          *operand = own_operand(*format, operand->rounding);
          changed = true;
        }
        if (changed) gemm.left.rotation = gemm.right.rotation = {};
      });
}

/// Gives a GEMM another contract if the file names none and the base's contract does not take its operands.
inline void change_contracts(const nlohmann::ordered_json& json, nn::linear_recipe& r) {
  for_each_given_gemm(
      json, r, [](nn::gemm_recipe& gemm, const nlohmann::ordered_json& given, const char* left, const char* right) {
        if (given.contains("accumulate") || !(given_format(given, left) || given_format(given, right))) return;
        if (nn::detail::find_accumulate_fault(gemm, "", left, right)) gemm.accumulate = nn::fp32_fma_chain_contract;
      });
}

/// The recipe under the contract set that a file names. Fields of the file take precedence.
inline nn::recipe take_named_contracts(const nlohmann::ordered_json& json, const nn::recipe& r,
                                       const std::string& file) {
  if (const auto fault = nn::find_set_fault(r.contracts)) throw io::error(file, *fault);
  nn::recipe taken = take_contracts(r, *nn::find_contract_set(r.contracts));
  io::from_json(json, taken, file);
  return override_backward(std::move(taken), r.backward_override);
}

/// The recipe of a file's object: keys as the log shows them, missing ones as in `base`.
inline nn::recipe read_recipe(const nlohmann::ordered_json& json, nn::recipe r, const std::string& file) {
  const auto head = json.is_object() ? json.find("head") : json.end();
  const bool has_head = json.is_object() && head != json.end() && head->is_object();
  if (json.is_object()) change_formats(json, r);
  if (has_head && r.head) change_formats(*head, *r.head);
  io::from_json(json, r, file);
  if (json.is_object()) change_contracts(json, r);
  if (has_head) change_contracts(*head, *r.head);
  r = override_backward(std::move(r), r.backward_override);
  if (json.is_object() && json.contains("contracts")) r = take_named_contracts(json, r, file);
  if (const auto fault = find_fault(r)) throw io::error(file, *fault);
  return r;
}

}  // namespace detail

/// A preset's recipe, or one from a JSON file. Its keys are the log's; missing ones come from the preset that "base"
/// names (default: bf16). A changed format brings its own blocks, rule and policy, and no rotation. Messages call the
/// name's place `field`.
inline nn::recipe load_recipe(const std::string& name, const std::string& field = "recipe") {
  std::vector<std::string> valid;
  for (nn::recipe& r : nn::presets::all()) {
    if (r.name == name) return r;
    valid.push_back(r.name);
  }
  if (!detail::is_file(name)) detail::fail_unknown(field, name, valid);
  nlohmann::ordered_json json = io::read_json(name);
  nn::recipe base = load_recipe(detail::take_base(json, name, valid));
  base.name = std::filesystem::path(name).stem().string();
  return detail::read_recipe(json, std::move(base), name);
}

namespace detail {

/// A file is a schedule if it has "phases", or if one of its keys resembles a schedule's key more than a recipe's.
inline bool is_schedule(const nlohmann::ordered_json& json) {
  if (!json.is_object() || json.empty()) return true;
  std::vector<std::string> keys{"phases", "base"};
  nn::recipe any;
  describe([&](const char* key, auto&, const char*) { keys.emplace_back(key); }, any);
  for (const auto& [key, value] : json.items()) {
    if (io::nearest_name(key, keys) == "phases") return true;
  }
  return false;
}

}  // namespace detail

namespace detail {

/// A phase of a log, or of docs/reference/schedules.md, in a file's form. Its step is "from_step". Its recipe is whole,
/// or a name like "mxfp4_h16+forward:fp8_amd".
inline void from_log_form(nlohmann::ordered_json& phase, nn::phase& p) {
  if (!phase.contains("from_step") || phase.contains("at")) return;
  phase["at"] = phase["from_step"];
  phase.erase("from_step");
  if (phase.contains("recipe") && phase["recipe"].is_object()) p.effective = true;
  if (!phase.contains("recipe") || !phase["recipe"].is_string() || phase.contains("gemms")) return;
  const std::string name = phase["recipe"].get<std::string>();
  const std::size_t plus = name.rfind('+'), colon = name.find(':', plus == name.npos ? 0 : plus);
  if (plus == name.npos || colon == name.npos) return;
  phase["gemms"] = name.substr(plus + 1, colon - plus - 1);
  phase["recipe"] = name.substr(colon + 1);
}

/// Moves recipes out of the phases of a file's JSON. The phases then name them.
inline std::vector<nn::phase> take_recipes(nlohmann::ordered_json& phases, const std::string& file) {
  std::vector<std::string> valid;
  for (const nn::recipe& r : nn::presets::all()) valid.push_back(r.name);
  std::vector<nn::phase> taken(phases.size());
  for (std::size_t i = 0; i < taken.size(); ++i) {
    nlohmann::ordered_json& phase = phases[i];
    if (!phase.is_object()) continue;
    from_log_form(phase, taken[i]);
    if (!phase.contains("recipe") || !phase["recipe"].is_object()) continue;
    nlohmann::ordered_json json = phase["recipe"];
    const std::string where = file + ": phases[" + std::to_string(i) + "].recipe";
    nn::recipe base = load_recipe(take_base(json, where, valid));
    base.name = std::filesystem::path(file).stem().string() + "_" + std::to_string(i);
    taken[i].own = read_recipe(json, std::move(base), where);
    phase["recipe"] = taken[i].own->name;
  }
  return taken;
}

}  // namespace detail

/// Is it the name of a recipe or of a schedule?
inline bool is_preset(const std::string& name) {
  const auto has_name = [&](const auto& preset) { return preset.name == name; };
  const std::vector<nn::schedule> schedules = nn::presets::schedules();
  const std::vector<nn::recipe> recipes = nn::presets::all();
  return std::any_of(schedules.begin(), schedules.end(), has_name) ||
         std::any_of(recipes.begin(), recipes.end(), has_name);
}

/// A named schedule, one from a JSON file, or a recipe (preset or file) for the whole run. Messages call the name's
/// place `field`.
inline nn::schedule load_schedule(const std::string& name, const std::string& field = "schedule") {
  std::vector<std::string> valid;
  for (const nn::schedule& s : nn::presets::schedules()) {
    if (s.name == name) return s;
    valid.push_back(s.name);
  }
  for (const nn::recipe& r : nn::presets::all()) {
    if (r.name == name) return {name, {{name, 0.0}}};
    valid.push_back(r.name);
  }
  if (!detail::is_file(name)) detail::fail_unknown(field, name, valid);
  nlohmann::ordered_json json = io::read_json(name);
  if (json.is_array() && !json.empty()) json = {{"phases", json}};  // as a log prints it
  if (!detail::is_schedule(json)) return {load_recipe(name).name, {{name, 0.0}}};
  nn::schedule s;
  s.name = std::filesystem::path(name).stem().string();
  std::vector<nn::phase> own;
  if (json.is_object() && json.contains("phases") && json["phases"].is_array()) {
    own = detail::take_recipes(json["phases"], name);
  }
  io::from_json(json, s, name);
  if (s.phases.empty()) throw io::error(name, "phases: must not be empty");
  for (std::size_t i = 0; i < own.size(); ++i) {
    s.phases[i].own = own[i].own;
    s.phases[i].effective = own[i].effective;
  }
  return s;
}

namespace detail {

/// "phases[2].trigger".
inline std::string phase_field(std::size_t i, const char* field) {
  return "phases[" + std::to_string(i) + "]." + field;
}

/// Below 1 a fraction of `steps`, rounded to the nearest step; otherwise a whole number of steps.
inline std::int64_t resolve_steps(double x, std::int64_t steps, const std::string& where, const std::string& field) {
  if (!(x >= 0.0)) throw io::error(where, field + ": must not be negative");
  if (x >= 1.0 && x != std::floor(x)) {
    throw io::error(where, field + ": " + nlohmann::ordered_json(x).dump() +
                               " is neither a fraction below 1 nor a number of steps");
  }
  const double found = x < 1.0 ? x * static_cast<double>(steps) : x;
  if (found > 9.0e15) throw io::error(where, field + ": too large");
  return std::llround(found);
}

/// Random words depend on 24 bits of a step's number (docs/reference/random-words.md).
inline constexpr std::int64_t most_random_steps = 1 << 24;

/// Does any operand, of the layers or the head, draw random words?
inline bool rounds_stochastically(const nn::recipe& r) {
  const nn::linear_recipe head = head_of(r);
  for (const nn::linear_recipe* l : {static_cast<const nn::linear_recipe*>(&r), &head}) {
    for (const nn::gemm_recipe* g : {&l->fprop, &l->dgrad, &l->wgrad}) {
      if (nn::draws_words(g->left) || nn::draws_words(g->right)) return true;
    }
  }
  return false;
}

/// The recipe `before` with the GEMMs in `gemms` replaced.
inline nn::linear_recipe merge_gemms(const nn::linear_recipe& before, const nn::linear_recipe& taken,
                                     nn::gemm_scope gemms) {
  const bool forward = gemms == nn::gemm_scope::forward;
  return {forward ? taken.fprop : before.fprop, forward ? before.dgrad : taken.dgrad,
          forward ? before.wgrad : taken.wgrad};
}

/// Do GEMMs of that scope read per-tensor FP8, in the layers or the head?
inline bool has_fp8(const nn::recipe& r, nn::gemm_scope gemms) {
  const nn::linear_recipe none = nn::uniform_gemms({}, nn::operand_format::bf16);
  return nn::has_delayed(merge_gemms(none, r, gemms)) || nn::has_delayed(merge_gemms(none, nn::head_of(r), gemms));
}

/// A field common to both directions that is neither unset nor equal to the old recipe's.
inline std::optional<std::string> find_merge_fault(const nn::recipe& before, const nn::recipe& taken,
                                                   nn::gemm_scope gemms) {
  const auto differs = [&](auto field) { return taken.*field != before.*field && taken.*field != nn::recipe{}.*field; };
  const auto other = gemms == nn::gemm_scope::forward ? nn::gemm_scope::backward : nn::gemm_scope::forward;
  const char* field = nullptr;
  if (has_fp8(before, other) && has_fp8(taken, gemms) && before.fp8 != taken.fp8) field = "fp8";
  if (differs(&nn::recipe::activations)) field = "activations";
  if (differs(&nn::recipe::bf16_first_layers)) field = "bf16_first_layers";
  if (differs(&nn::recipe::bf16_last_layers)) field = "bf16_last_layers";
  if (differs(&nn::recipe::bf16_layers)) field = "bf16_layers";
  if (differs(&nn::recipe::adapters)) field = "adapters";
  if (differs(&nn::recipe::attention)) field = "attention";
  if (field == nullptr) return std::nullopt;
  return "recipe " + taken.name + " has another " + field + " than the phase before, and both directions share it";
}

/// Recipe of a phase that replaces the GEMMs of one direction, in layers and head. docs/reference/schedules.md lists
/// the source of each field.
inline nn::recipe merge_recipes(const nn::recipe& before, const nn::recipe& taken, nn::gemm_scope gemms) {
  if (gemms == nn::gemm_scope::all) return taken;
  nn::recipe r = before;
  r.name += "+" + std::string(to_string(gemms)) + ":" + taken.name;
  static_cast<nn::linear_recipe&>(r) = merge_gemms(before, taken, gemms);
  if (has_fp8(taken, gemms)) r.fp8 = taken.fp8;
  if (gemms == nn::gemm_scope::forward) r.deoscillation = taken.deoscillation;  // of fprop's w
  if (gemms == nn::gemm_scope::backward) r.backward_override = taken.backward_override;
  if (override_backward(r, r.backward_override) != r) r.backward_override = nn::backward_kind::none;
  const nn::linear_recipe head = merge_gemms(head_of(before), head_of(taken), gemms);
  r.head.reset();
  if (head_of(r) != head) r.head = head;
  return r;
}

}  // namespace detail

/// Refuses phases out of order, or that never begin; throws io::error.
inline void check_order(const std::vector<nn::resolved_phase>& phases, std::int64_t steps, const std::string& where) {
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const nn::resolved_phase& p = phases[i];
    const std::string at = detail::phase_field(i, "at") + ": ";
    const bool is_open = p.trigger && p.from_step == steps;  // the trigger alone decides
    if (p.from_step >= steps && !is_open) {
      throw io::error(where, at + "step " + std::to_string(p.from_step) + " does not come before the end of the run, " +
                                 std::to_string(steps) + " steps");
    }
    if (i == 0 && (p.from_step != 0 || p.trigger)) throw io::error(where, at + "the first phase must start at 0");
    if (i == 0) continue;
    const bool after_open = phases[i - 1].trigger && phases[i - 1].from_step == steps;
    if (after_open && !is_open) {
      throw io::error(where, at + "follows a phase whose trigger has no latest step");
    }
    if (p.from_step <= phases[i - 1].from_step && !is_open) {
      throw io::error(where, at + "step " + std::to_string(p.from_step) + " does not come after the phase before it");
    }
  }
}

/// Looks recipes up and turns fractions of a run into steps.
inline std::vector<nn::resolved_phase> resolve(const nn::schedule& s, std::int64_t steps, const std::string& where) {
  std::vector<nn::resolved_phase> resolved;
  if (!s.contracts.empty()) {
    if (const auto fault = nn::find_set_fault(s.contracts)) throw io::error(where, *fault);
  }
  const nn::contract_set* const set = nn::find_contract_set(s.contracts);
  nn::recipe plain;  // of the phase before, without the schedule's contracts
  for (std::size_t i = 0; i < s.phases.size(); ++i) {
    const nn::phase& p = s.phases[i];
    const auto field = [&](const char* name) { return detail::phase_field(i, name); };
    nn::resolved_phase r;
    r.from_step = detail::resolve_steps(p.at, steps, where, field("at"));
    if (p.trigger && p.at == 0.0) r.from_step = steps;
    r.cap = detail::resolve_steps(p.cap, steps, where, field("cap"));
    if (p.cap > 0 && r.cap == 0)
      throw io::error(where, field("cap") + ": is no step of a run of " + std::to_string(steps));
    if (p.cap > 0 && i + 1 < s.phases.size())
      throw io::error(where, field("cap") + ": only the last phase can end a run");
    if (i == 0 && p.gemms != nn::gemm_scope::all) {
      throw io::error(where, field("gemms") + ": the first phase has no phase before it to keep GEMMs of");
    }
    if (i == 0 && p.scales != nn::scale_handover::reset) {
      throw io::error(where, field("scales") + ": the first phase has no phase before it to take scales from");
    }
    const nn::recipe taken = p.own ? *p.own : load_recipe(p.recipe, where + ": " + field("recipe"));
    if (p.gemms != nn::gemm_scope::all && !p.effective) {
      const auto fault = detail::find_merge_fault(plain, taken, p.gemms);
      if (fault) throw io::error(where, field("gemms") + ": " + *fault);
    }
    r.recipe = i == 0 || p.effective ? taken : detail::merge_recipes(plain, taken, p.gemms);
    plain = r.recipe;
    if (set != nullptr) r.recipe = take_contracts(plain, *set);
    if (const auto fault = find_fault(r.recipe)) throw io::error(where, field("gemms") + ": " + *fault);
    if (steps > detail::most_random_steps && detail::rounds_stochastically(r.recipe)) {
      throw io::error(where, field("recipe") + ": " + r.recipe.name +
                                 " rounds stochastically, and its random words repeat after 16777216 steps");
    }
    r.gemms = p.gemms;
    r.scales = p.scales;
    r.trigger = p.trigger;
    resolved.push_back(std::move(r));
  }
  check_order(resolved, steps, where);
  return resolved;
}

}  // namespace rotoscale::train
