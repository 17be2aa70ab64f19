// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "study/results.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <ostream>

#include "rotoscale/io/error.hpp"

namespace rotoscale::program {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;
using report_parts::arm;
using report_parts::arm_status;
using report_parts::eval_point;
using report_parts::fixed;
using report_parts::maybe;
using report_parts::signed_fixed;

constexpr int results_schema = 1;

/// Has a run of that directory logged anything yet?
bool has_log(const fs::path& run) {
  std::error_code failed;
  const auto size = fs::file_size(run / "log.jsonl", failed);
  return !failed && size > 0;
}

run_outcome outcome_of(const std::optional<arm>& log, const fs::path& failure) {
  if (log && log->status == arm_status::ok) return run_outcome::ok;
  if (log && log->status == arm_status::diverged) return run_outcome::diverged;
  return fs::exists(failure) ? run_outcome::failed : run_outcome::unfinished;
}

/// Options and effective recipes: all that decides a run's losses but its seed and its data.
json definition_of(const arm& log) {
  json config = log.start.value("config", json::object());
  for (const char* key : {"name", "data", "schedule", "tokenizer", "init", "adapter"}) config.erase(key);
  if (config.contains("train")) {
    for (const char* key : {"seed", "checkpoint_every", "keep_checkpoints"}) config["train"].erase(key);
  }
  return {{"options", config}, {"schedule", log.start.value("schedule", json())}};
}

/// A fork's curve: its parent's evaluations up to `step`, then its own.
std::vector<eval_point> join_evaluations(const std::vector<eval_point>& parent, std::int64_t step,
                                         const std::vector<eval_point>& own) {
  std::vector<eval_point> all;
  const bool has_step = !own.empty() && own.front().step <= step;
  for (const eval_point& e : parent) {
    if (e.step < step || (e.step == step && !has_step)) all.push_back(e);
  }
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

/// `r` has the runs of earlier arms already, a fork's parent among them.
study_run read_run(const study_results& r, const study_arm& a, int seed) {
  const study_directory directory(r.directory);
  study_run run;
  run.arm = a.name;
  run.seed = seed;
  std::optional<arm> log;
  if (has_log(directory.run(a.name, seed))) log = report_parts::read_arm(directory.run(a.name, seed).string());
  const fs::path failure = directory.failure(a.name, seed);
  run.outcome = outcome_of(log, failure);
  if (run.outcome != run_outcome::ok && fs::exists(failure)) {
    run.reason = io::read_json(failure.string()).value("reason", std::string());
  }
  if (!log) return run;
  run.evals = log->evals;
  run.step = log->step;
  run.tokens = log->tokens;
  run.seconds = log->seconds.value_or(0);
  run.definition = definition_of(*log);
  if (run.outcome == run_outcome::ok) {
    run.final_loss = log->final_loss;
    run.average_loss = log->average_loss;
  }
  const fs::path state = directory.run(a.name, seed) / "trainer_state.json";
  if (fs::exists(state)) run.definition["data"] = io::read_json(state.string()).value("data_fingerprint", json());
  if (!a.fork) return run;
  for (const study_run& parent : r.runs) {
    if (parent.arm != a.fork->arm || parent.seed != seed) continue;
    run.evals = join_evaluations(parent.evals, a.fork->step, run.evals);
    run.definition["data"] = parent.definition.value("data", json());
  }
  return run;
}

/// The mean + 2 s.d. of the baseline's final losses.
double default_target(const study_results& r) {
  const sample_summary base = summarize(values_of(losses(r, r.study.baseline, endpoint::final)));
  return base.mean + 2 * base.deviation.value_or(0);
}

}  // namespace

std::vector<const study_run*> study_results::of(const std::string& arm) const {
  std::vector<const study_run*> found;
  for (const study_run& run : runs) {
    if (run.arm == arm) found.push_back(&run);
  }
  return found;
}

sample_summary summarize(const std::vector<double>& values, bool with_bootstrap) {
  sample_summary s;
  s.count = static_cast<int>(values.size());
  if (values.empty()) return s;
  s.mean = study_statistics::mean(values);
  if (values.size() < 2) return s;
  s.deviation = study_statistics::deviation(values);
  s.student = study_statistics::student_interval(values);
  if (with_bootstrap) s.bootstrap = study_statistics::bootstrap_interval(values);
  return s;
}

run_outcome outcome_of(const study_directory& directory, const std::string& arm, int seed) {
  const fs::path run = directory.run(arm, seed);
  return outcome_of(has_log(run) ? std::optional(report_parts::read_arm(run.string())) : std::nullopt,
                    directory.failure(arm, seed));
}

study_results read_results(const fs::path& directory, const std::string& baseline) {
  study_results r;
  r.directory = directory;
  r.study = read_study(study_directory(directory).file());
  if (!baseline.empty()) r.study.baseline = baseline;
  std::vector<std::string> names;
  for (const study_arm& a : r.study.arms) names.push_back(a.name);
  if (std::find(names.begin(), names.end(), r.study.baseline) == names.end()) {
    throw io::error("baseline \"" + baseline + "\"", "no such arm" + io::did_you_mean(baseline, names));
  }
  for (const study_arm& a : r.study.arms) {
    for (int seed = 1; seed <= r.study.seeds; ++seed) r.runs.push_back(read_run(r, a, seed));
  }
  r.target = r.study.target > 0 ? r.study.target : default_target(r);
  return r;
}

bool has_average(const study_results& r) {
  return std::any_of(r.runs.begin(), r.runs.end(), [](const study_run& run) { return run.average_loss.has_value(); });
}

std::vector<endpoint> endpoints_of(const study_results& r) {
  std::vector<endpoint> all = {endpoint::final, endpoint::last};
  if (has_average(r)) all.push_back(endpoint::average);
  return all;
}

losses_by_seed losses(const study_results& r, const std::string& arm, endpoint which) {
  losses_by_seed found;
  for (const study_run* run : r.of(arm)) {
    if (run->outcome != run_outcome::ok || !run->final_loss) continue;
    if (which != endpoint::last) {
      const maybe& loss = which == endpoint::final ? run->final_loss : run->average_loss;
      if (loss) found[run->seed] = *loss;
      continue;
    }
    std::vector<double> last;
    for (const eval_point& e : run->evals) {
      if (e.loss) last.push_back(*e.loss);
    }
    const auto count = std::min(last.size(), static_cast<std::size_t>(r.study.last_evaluations));
    if (count > 0) found[run->seed] = study_statistics::mean(std::span(last).last(count));
  }
  return found;
}

std::vector<double> values_of(const losses_by_seed& losses) {
  std::vector<double> values;
  for (const auto& [seed, loss] : losses) values.push_back(loss);
  return values;
}

std::vector<double> paired_differences(const losses_by_seed& a, const losses_by_seed& b) {
  std::vector<double> differences;
  for (const auto& [seed, loss] : a) {
    const auto other = b.find(seed);
    if (other != b.end()) differences.push_back(loss - other->second);
  }
  return differences;
}

maybe tokens_to_target(const study_results& r, const study_run& run) {
  std::vector<study_statistics::curve_point> curve;
  for (const eval_point& e : run.evals) {
    if (e.loss && e.tokens) curve.push_back({static_cast<double>(*e.tokens), *e.loss});
  }
  return r.target > 0 && run.outcome == run_outcome::ok ? study_statistics::tokens_to(curve, r.target) : std::nullopt;
}

const char* name_of(endpoint which) {
  switch (which) {
    case endpoint::final: return "final";
    case endpoint::last: return "last_mean";
    case endpoint::average: break;
  }
  return "average";
}

const char* name_of(run_outcome outcome) {
  switch (outcome) {
    case run_outcome::ok: return "ok";
    case run_outcome::diverged: return "diverged";
    case run_outcome::failed: return "failed";
    case run_outcome::unfinished: break;
  }
  return "unfinished";
}

json stored_results(const study_results& r) {
  json arms = json::array();
  for (const study_arm& a : r.study.arms) {
    json definition, runs = json::array();
    for (const study_run* run : r.of(a.name)) {
      if (run->outcome == run_outcome::unfinished) continue;
      if (definition.is_null()) definition = run->definition;
      runs.push_back(
          {{"seed", run->seed}, {"outcome", name_of(run->outcome)}, {"final", io::to_json(run->final_loss)}});
    }
    arms.push_back({{"name", a.name}, {"definition", definition}, {"runs", runs}});
  }
  return {{"schema", results_schema}, {"study", r.study.name}, {"arms", arms}};
}

namespace {

struct stored_arm {
  std::map<std::int64_t, double> losses;  ///< by seed
  int runs = 0;
  int lost() const { return runs - static_cast<int>(losses.size()); }
};

stored_arm read_stored(const json& a, const std::string& where) {
  stored_arm s;
  if (!a.contains("runs") || !a["runs"].is_array()) throw io::error(where, "no \"runs\": not the results of a study");
  for (const json& run : a["runs"]) {
    ++s.runs;
    if (run.is_object() && run.contains("final") && run["final"].is_number())
      s.losses[run.value("seed", std::int64_t{0})] = run["final"].get<double>();
  }
  return s;
}

/// Losses of the seeds that both have.
struct paired_losses {
  std::vector<double> was, is, difference;
};

paired_losses pairs_of(const stored_arm& was, const stored_arm& is) {
  paired_losses p;
  for (const auto& [seed, loss] : is.losses) {
    const auto old = was.losses.find(seed);
    if (old == was.losses.end()) continue;
    p.was.push_back(old->second);
    p.is.push_back(loss);
    p.difference.push_back(loss - old->second);
  }
  return p;
}

void require_same_definition(const json& stored, const json& here, const std::string& arm, const std::string& where) {
  const json old = stored.flatten(), now = here.flatten();
  for (const json* either : {&old, &now}) {
    for (const auto& [key, value] : either->items()) {
      if (old.contains(key) && now.contains(key) && old[key] == now[key]) continue;
      throw io::error(where, arm + key + " was " + (old.contains(key) ? old[key].dump() : "absent") + ", is " +
                                 (now.contains(key) ? now[key].dump() : "absent"));
    }
  }
}

}  // namespace

json read_stored_results(const fs::path& path) {
  json stored = io::read_json(path.string());
  if (!stored.is_object() || stored.value("schema", json()) != results_schema || !stored.contains("arms") ||
      !stored["arms"].is_array()) {
    throw io::error(path.string(), "not the results.json of a study of this version");
  }
  return stored;
}

bool accept_results(const study_results& r, const json& stored, const std::string& where, std::ostream& out) {
  const json& arms = stored["arms"];
  const double level = 1 - 0.05 / static_cast<double>(std::max<std::size_t>(1, arms.size()));  // Bonferroni
  const json here = stored_results(r);
  bool all = true;
  for (const json& a : arms) {
    const std::string name = a.value("name", std::string());
    const auto own =
        std::find_if(here["arms"].begin(), here["arms"].end(), [&](const json& x) { return x["name"] == name; });
    if (own == here["arms"].end()) throw io::error(where, "the study here has no arm '" + io::printable(name) + "'");
    const stored_arm was = read_stored(a, where), is = read_stored(*own, where);
    if (was.runs < 2 || is.runs < 2) throw io::error(where, name + ": needs two finished runs there and here");
    require_same_definition(a.value("definition", json()), own->value("definition", json()), name, where);
    const std::string counts = name + ": " + std::to_string(was.lost()) + " of " + std::to_string(was.runs) +
                               " runs without a loss were stored, here " + std::to_string(is.lost()) + " of " +
                               std::to_string(is.runs);
    bool agrees = (was.lost() == was.runs) == (is.lost() == is.runs) && (was.lost() > 0 || is.lost() == 0);
    const paired_losses pairs = pairs_of(was, is);
    if (pairs.is.size() < 2) {
      out << counts << (agrees ? ": agrees\n" : ": DIFFERS\n");
      all = all && agrees;
      continue;
    }
    const double difference = study_statistics::mean(pairs.difference);
    const double half = study_statistics::student_interval(pairs.difference, level).high - difference;
    out << name << ": stored " << fixed(study_statistics::mean(pairs.was), 4) << ", here "
        << fixed(study_statistics::mean(pairs.is), 4) << ", difference " << signed_fixed(difference, 4)
        << ", interval ±" << fixed(half, 4) << (std::abs(difference) <= half ? ": agrees\n" : ": DIFFERS\n");
    if (!agrees) out << counts << ": DIFFERS\n";
    all = all && agrees && std::abs(difference) <= half;
  }
  return all;
}

}  // namespace rotoscale::program
