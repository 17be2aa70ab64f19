// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The commands train and plan.
#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>

#include "begin_run.hpp"
#include "clock.hpp"
#include "commands.hpp"
#include "continue_run.hpp"
#include "device.hpp"
#include "front.hpp"
#include "rank_team.hpp"
#include "read_arguments.hpp"

namespace rotoscale::program {
namespace {

namespace fs = std::filesystem;

/// Calls f. Options without a kernel are named by their flags or file.
template <class Function>
std::invoke_result_t<Function> naming_flags(const field_names& names, const Function& f) {
  try {
    return f();
  } catch (const std::invalid_argument& e) {
    throw io::error(names.text(e.what()));
  }
}

/// Throws io::error if an option names a step beyond the run.
void check_steps(const arguments& a, std::int64_t steps) {
  const std::string has = "the run has " + std::to_string(steps) + " steps (--steps)";
  if (a.session.stop_at > steps) throw io::error("--stop-at", std::to_string(a.session.stop_at) + ": " + has);
  if (!a.digest_steps.empty() && parse_steps(a.digest_steps, "--digest-steps").first >= steps) {
    throw io::error("--digest-steps", a.digest_steps + ": " + has);
  }
}

/// Does this run, or the run that it resumes, take digests?
bool takes_digests(const arguments& a) {
  if (!a.digest_steps.empty()) return true;
  const fs::path from = a.resume.empty() && a.session.auto_resume ? a.session.out : a.resume;
  for (const fs::path& run : {from, from.parent_path(), from.parent_path().parent_path()}) {
    const fs::path digests = run_directory(run).digests();
    if (!run.empty() && fs::exists(digests)) return !read_digest_steps(digests).empty();
  }
  return false;
}

/// Trains as this process's part of the ranks.
int train(int argc, char** argv, arguments& a, rank_team& team) {
  a.device.keeps_codes = takes_digests(a);
  const chosen_backend& device = team.open(a.device);
  team.link(a);
  nn::digest_observer digests(*device.ops);
  std::optional<digest_recorder> recorder;
  const auto watch = [&](const trainer_state& state) {
    check_steps(a, state.run.train.steps);
    team.check(state, a);
    if (a.digest_steps.empty()) return;
    recorder.emplace(digests, parse_steps(a.digest_steps, "--digest-steps"), run_directory(a.session.out).digests());
    a.session.watcher = &*recorder;
  };
  a.session.threads = device.ops->threads();
  a.session.progress = !a.no_progress && team.leads();
  a.session.began_ms = milliseconds_since_1970();
  if (!a.resume.empty()) {
    check_resume_flags(argc, argv);
    return resume(device, team, a, find_resume_points(a.resume), nullptr, watch);
  }
  if (a.session.out.empty()) throw io::error("--out", "is required");
  if (a.session.auto_resume && a.session.overwrite) throw io::error("--auto-resume", "excludes --overwrite");
  settle_statistics(a);
  const trainer_state state = begin(a, given_files::needed);
  a.session.passed_keys = a.passed_keys;
  a.session.inputs = {a.config, a.model_config, a.session.synthetic_recipe};
  find_synthetic_recipe(a, state);
  if (a.session.auto_resume && fs::exists(a.session.out)) {
    const std::vector<resume_point> points = find_resume_points(a.session.out);
    if (!points.empty()) return resume(device, team, a, points, &state, watch);
  }
  watch(state);
  const auto t = naming_flags(a.names, [&] { return std::make_unique<trainer>(*device.ops, state, a.session); });
  device.say_note();
  return team.run(*t, a, state);
}

/// Predicts a step of many GPUs.
int plan_cluster(const arguments& a, const trainer_state& state) {
  const chosen_backend device = choose_backend(a.device);
  train::session_options options =
      session_options_for(state.run, 0, a.session.statistics_every > 0, a.session.async_checkpoints);
  options.divides_frozen = a.session.divide_frozen;
  from_string(a.session.shard, options.shard);
  from_string(a.session.reduce, options.reduce);
  const nn::recipe& recipe = state.phases.front().recipe;
  train::model counted(*device.ops, state.run.architecture(), options.model);
  nn::memory_cursor counting;
  counted.weights().set_shards({{0, counted.parameters().arena_size()}}, options.shard);
  naming_flags(a.names, [&] { counted.lay_out(counting, recipe); });
  predicted_run run;
  run.flops_per_token = model_flops_per_token(counted, state.run.train.sequence);
  run.trained = static_cast<double>(counted.parameters().arena_size());
  run.gathered = static_cast<double>(train::bytes_gathered(counted.weights()));
  run.reduces_once = options.reduce == train::gradient_reduction::library;
  run.reduces_each = options.shard == train::shard_level::gradients;
  for (const train::weight_location& w : counted.weights().locations()) {
    const bool is_divided = options.divides_frozen && !w.trains && counted.parameters()[w.number].linear >= 0;
    run.frozen += is_divided ? static_cast<double>(w.bytes) : 0;
  }
  run.backward = state.run.lora ? 0.5 : 2.0 / 3;  // FLOP, if frozen weights have no gradients
  run.groups = state.run.architecture().layers + 1;
  run.tokens = state.run.train.batch * state.run.train.sequence;
  run.microbatches = state.run.train.accumulate;
  run.memory = [&](nn::communicator& rank, int own) {
    options.micro_batches = own;
    options.model.statistics &= rank.rank() == 0;
    return train::plan_session(*device.ops, state.run.architecture(), options, {recipe}, &rank);
  };
  cluster planned = a.planned;
  planned.gpus = std::max(1, a.gpus);
  predict(planned, run, std::cout);
  return exit_ok;
}

}  // namespace

int train(int argc, char** argv, arguments& a) {
  try {
    rank_team team(a);
    return team.run_process([&] { return train(argc, argv, a, team); });
  } catch (const nn::rank_failure& e) {
    std::cout.flush();
    end(e);
  }
}

int plan(arguments& a) {
  settle_statistics(a);
  const trainer_state state = begin(a, given_files::none);
  const std::optional<nn::recipe> synthetic = find_synthetic_recipe(a, state);
  if (!a.planned.profile.empty()) return plan_cluster(a, state);
  rank_team team(a);
  team.check(state, a);
  const chosen_backend& device = team.open(a.device);
  train::session_options options = session_options_for(state.run, a.session.memory_limit,
                                                       a.session.statistics_every > 0, a.session.async_checkpoints);
  options.micro_batches /= a.session.ranks;
  options.divides_frozen = a.session.divide_frozen;
  from_string(a.session.shard, options.shard);
  from_string(a.session.reduce, options.reduce);
  const auto plan_of = [&](nn::communicator* rank) {
    return naming_flags(a.names, [&] {
      return train::plan_session(*device.ops, state.run.architecture(), options,
                                 recipes_of(state, a.session, synthetic), rank);
    });
  };
  const nn::memory_plan planned = plan_of(a.session.communicator);
  device.say_note();
  std::cout << memory_table(planned) << checkpoint_line(planned) << parameter_line(state.run);
  options.model.statistics = false;  // rank 0 alone has them
  std::cout << team.memory_lines(plan_of);
  const std::size_t limit = a.session.memory_limit;
  if (limit != 0 && planned.total() > limit) {
    throw io::error("--memory-limit", train::over_budget(planned, limit).what());
  }
  return exit_ok;
}

}  // namespace rotoscale::program
