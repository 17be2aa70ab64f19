// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer/state.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "format_text.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"
#include "rotoscale/train/recipe_fit.hpp"
#include "rotoscale/train/schedule.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

namespace {

/// Bytes of the machine's memory; 0: unknown.
std::size_t host_memory() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(size) : 0;
}

/// Throws io::error for a trigger that can never fire, before the run allocates anything.
void check_triggers(const std::vector<nn::resolved_phase>& phases, const run_options& run, const std::string& where) {
  if (const auto fault = train::find_trigger_fault(phases, triggered_run_of(run))) throw io::error(where, *fault);
}

/// fail(i, fault): throws, for the recipe of phase i.
template <class Function>
void check_phases(const trainer_state& s, const Function& fail) {
  for (std::size_t i = 0; i < s.phases.size(); ++i) {
    if (const auto fault = find_recipe_fault(s.run, s.phases[i].recipe)) fail(i, *fault);
  }
}

std::string recipe_field(const std::string& file, std::size_t i) {
  return file + ": phases[" + std::to_string(i) + "].recipe";
}

/// Throws io::error for phases that no schedule gives.
void check_phase_list(const std::vector<nn::resolved_phase>& phases, std::int64_t steps, const std::string& file) {
  for (std::size_t i = 0; i < phases.size(); ++i) {
    if (const auto fault = find_fault(phases[i].recipe)) throw io::error(recipe_field(file, i), *fault);
  }
  train::check_order(phases, steps, file);
}

/// The phases of a run of `steps` steps.
std::vector<nn::resolved_phase> resolve_phases(nn::schedule schedule, const run_options& run,
                                               const std::string& where) {
  if (!run.contracts.empty()) schedule.contracts = run.contracts;
  return train::resolve(schedule, run.train.steps, where);
}

/// "/0/recipe/fprop/x/policy" as "phases[0].recipe.fprop.x.policy".
std::string phase_key(const std::string& pointer) {
  const std::size_t end = pointer.find('/', 1);
  std::string key = "phases[" + pointer.substr(1, end - 1) + "]" + (end == pointer.npos ? "" : pointer.substr(end));
  std::replace(key.begin(), key.end(), '/', '.');
  return key;
}

}  // namespace

std::optional<std::string> find_recipe_fault(const run_options& run, const nn::recipe& r) {
  const train_options& t = run.train;
  auto fault =
      train::find_block_fault(run.architecture(), r, {index_t{t.batch} * t.sequence, index_t{t.head_chunk}, true});
  if (!fault && run.lora) fault = train::find_frozen_fault(run.architecture(), r);
  if (fault) fault = "recipe " + r.name + ": " + *fault;
  return fault;
}

void settle_targets(run_options& run, const field_names& names) {
  if (!run.lora || !run.adapter.empty() || names.has("lora.targets")) return;
  run.lora->targets = models::options_of(run.shape()).adapter_targets;
}

trainer_state new_run(run_options options, const field_names& names, given_files given,
                      std::vector<nn::resolved_phase> phases) {
  if (const auto fault = find_fault(options)) throw names.error(*fault);
  if (options.lora && options.init.empty() && given == given_files::needed) {
    throw names.error("init: is missing, adapters need a base");
  }
  trainer_state state;
  const std::string where = names.schedule() + " " + options.schedule;
  if (phases.empty()) {
    const nn::schedule schedule = train::load_schedule(options.schedule, names.schedule());
    state.phases = resolve_phases(schedule, options, where);
    if (options.name.empty()) options.name = schedule.name;
  } else {
    check_phase_list(phases, options.train.steps, where);
    state.phases = std::move(phases);
    if (options.name.empty()) options.name = state.phases.front().recipe.name;
  }
  check_triggers(state.phases, options, where);
  state.run = std::move(options);
  check_phases(state, [&](std::size_t i, const std::string& fault) {
    throw io::error(state.phases.size() == 1 ? names.schedule() : recipe_field(where, i), names.text(fault));
  });
  state.evaluation_due = evaluation_times(state.run.train).includes(0);
  return state;
}

nlohmann::ordered_json config_json(const trainer_state& state) {
  nlohmann::ordered_json json = io::to_json(state.run);
  json["effective_schedule"] = io::to_json(effective_schedule{state.run.schedule, state.run.train.steps, state.phases});
  return json;
}

std::optional<std::string> find_phase_change(const std::vector<nn::resolved_phase>& was,
                                             const std::vector<nn::resolved_phase>& is) {
  const auto old = io::to_json(was).flatten(), now = io::to_json(is).flatten();
  const auto text = [](const nlohmann::ordered_json& values, const std::string& key) {
    return values.contains(key) ? values.at(key).dump() : "absent";
  };
  for (const auto* either : {&old, &now}) {
    for (const auto& [key, value] : either->items()) {
      if (text(old, key) != text(now, key)) {
        return phase_key(key) + " was " + text(old, key) + ", is " + text(now, key);
      }
    }
  }
  return std::nullopt;
}

trainer_state read_trainer_state(const fs::path& checkpoint) {
  const std::string path = (checkpoint / "trainer_state.json").string();
  trainer_state state;
  io::from_json(io::read_json(path), state, path);
  if (const auto fault = find_fault(state.run)) throw io::error(path, *fault);
  if (state.phases.empty() || state.step < 0 || state.step > state.run.train.steps || state.skipped_steps < 0 ||
      state.rollbacks < 0) {
    throw io::error(path, "not the state of a run of mini-llama");
  }
  check_phase_list(state.phases, state.run.train.steps, path);
  check_triggers(state.phases, state.run, path);
  const bool is_phase = state.phase >= 0 && state.phase < static_cast<std::int64_t>(state.phases.size()) &&
                        state.phase_start >= 0 && state.phase_start <= state.step;
  if (!is_phase) throw io::error(path, "phase, phase_start: not those of a run of mini-llama");
  const nn::resolved_phase* const next = state.next_phase();
  if (next != nullptr && next->from_step < state.step) {
    throw io::error(path, "phase: the next one began at step " + std::to_string(next->from_step));
  }
  check_phases(state, [&](std::size_t i, const std::string& fault) { throw io::error(recipe_field(path, i), fault); });
  return state;
}

train::session_options session_options_for(const run_options& run, std::size_t memory_limit, bool statistics,
                                           const std::string& async_checkpoints) {
  const train_options& t = run.train;
  train::session_options o;
  o.model.batch = t.batch;
  o.model.sequence = t.sequence;
  o.model.head_chunk = t.head_chunk;
  o.model.lora = run.lora;
  o.model.statistics = statistics;
  from_string(t.recompute, o.model.recompute);  // find_fault has looked at both
  from_string(t.stored_activations, o.model.kept);
  o.micro_batches = t.accumulate;
  o.optimizer = {static_cast<float>(t.beta1),
                 static_cast<float>(t.beta2),
                 static_cast<float>(t.epsilon),
                 static_cast<float>(t.weight_decay),
                 t.clip,
                 static_cast<float>(t.average_decay)};
  o.memory_limit = memory_limit;
  // After the only checkpoint no step remains to resume.
  const bool goes_on = t.checkpoint_every > 0 && t.checkpoint_every < t.steps;
  if (async_checkpoints == "on") o.snapshot = train::snapshot_use::required;
  if (async_checkpoints == "auto" && goes_on) o.snapshot = train::snapshot_use::if_it_fits;
  o.host_memory = host_memory();
  return o;
}

train::triggered_run triggered_run_of(const run_options& run) {
  return {run.train.steps, evaluation_times(run.train), run.architecture().layers,
          run.lora ? std::optional(run.lora->first_linear()) : std::nullopt};
}

std::vector<nn::recipe> recipes_of(const trainer_state& state, bool statistics_noise) {
  std::vector<nn::recipe> recipes;
  for (std::size_t i = 0; i < state.phases.size(); ++i) {
    const nn::recipe& own = state.phases[i].recipe;
    recipes.push_back(own);
    const auto* const next = i + 1 < state.phases.size() ? &state.phases[i + 1].trigger : nullptr;
    const bool triggered = next != nullptr && *next && (*next)->kind == nn::trigger_kind::gradient_noise;
    if (!triggered && !(statistics_noise && train::has_noise(own, triggered_run_of(state.run)))) continue;
    recipes.push_back(train::noise_reference(own));
    recipes.push_back(own);
  }
  return recipes;
}

std::string memory_table(const nn::memory_plan& plan) {
  std::string table;
  const auto line = [&](std::string_view name, std::size_t bytes) {
    table += format_text("%-12s %16zu bytes %12.1f MiB\n", std::string(name).c_str(), bytes,
                         static_cast<double>(bytes) * 0x1p-20);
  };
  for (const auto& entry : enum_names<nn::memory_category>::table) line(entry.name, plan[entry.value]);
  line("device", plan.of_kind(nn::memory_kind::device));
  line("total", plan.total());
  return table;
}

std::string checkpoint_line(const nn::memory_plan& plan) {
  const bool async = plan[nn::memory_category::snapshot] != 0;
  return std::string("checkpoints  ") +
         (async ? "asynchronous: steps go on while one is written\n" : "synchronous: steps wait for each\n");
}

std::string parameter_line(const run_options& run) {
  const train::parameter_list list(run.architecture(), nullptr, run.lora);
  return "parameters   " + std::to_string(list.count()) + ", " + std::to_string(list.trained_count()) +
         " of them train\n";
}

double decay_steps(const train_options& o) { return static_cast<double>(o.decay_steps > 0 ? o.decay_steps : o.steps); }

double warmup_steps(const train_options& o) {
  return std::round(o.warmup < 1.0 ? o.warmup * decay_steps(o) : o.warmup);
}

double learning_rate(const train_options& o, std::int64_t step) {
  const double decay = decay_steps(o), warmup = warmup_steps(o);
  const auto now = static_cast<double>(step);
  if (now < warmup) return o.learning_rate * (now + 1) / warmup;
  const double rest = std::max(1.0, decay - warmup);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(now - warmup, rest) / rest));  // 0.5 is exact
  return o.learning_rate * std::fma(1.0 - o.final_learning_rate, cosine, o.final_learning_rate);
}

nn::step_inputs step_inputs_for(const trainer_state& state) {
  const train_options& o = state.run.train;
  nn::step_inputs now;
  now.seed = o.seed;
  now.step = static_cast<std::uint64_t>(state.step);
  now.learning_rate = static_cast<float>(learning_rate(o, state.step));
  const auto t = static_cast<double>(state.step + 1);
  now.bias_correction1 = static_cast<float>(1.0 - std::pow(o.beta1, t));
  now.bias_correction2 = static_cast<float>(1.0 - std::pow(o.beta2, t));
  return now;
}

}  // namespace rotoscale::program
