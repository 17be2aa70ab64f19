// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mini-llama: trains, evaluates and samples small Llamas under low-precision recipes, and compares runs.
// Exit codes: exit_codes.hpp.

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "arguments.hpp"
#include "checkpoint_commands.hpp"
#include "clock.hpp"
#include "data/own_tokenizer.hpp"
#include "device_failure.hpp"
#include "examples/standard_streams.hpp"
#include "exit_codes.hpp"
#include "profile.hpp"
#include "recipes.hpp"
#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "rotoscale/train/schedule.hpp"
#include "shell_word.hpp"

namespace rotoscale::llama_program {
namespace {

namespace fs = std::filesystem;

/// Gives a new run on text the tokenizer of its initial model, unless an option names one.
void settle_tokenizer(run_options& run) {
  if ((run.init.empty() && run.tokenizer.empty()) || run.data.empty() || are_token_files(data_of(run))) return;
  if (run.tokenizer.empty()) {
    const fs::path directory = llama::find_weights(run.init).directory;
    const std::string own = tokenizer_of_model(directory.empty() ? "." : directory, run.vocabulary());
    if (own != bytes_name) run.tokenizer = own;
  }
  if (begins_with_token(run.begin_of_text, run.tokenizer)) run.begin_of_text = "yes";
}

void say_preset_change(const trainer_state& state) {
  if (const auto change = find_preset_change(state)) print_error(program_name, *change);
}

/// Creates the state of a new run. `given`: does the command need the files? A plan needs only the shape.
trainer_state begin(const arguments& a, given_files given) {
  // A plan with --model-config needs nothing of the weights, which may not exist here.
  if (given == given_files::needed || a.model_config.empty()) check_init(a, given);
  run_options options = a.run;
  if (!a.schedule_override.empty()) options.schedule = a.schedule_override;
  if (options.contracts == native_contracts) options.contracts = choose_backend(a.device).ops->properties().contracts;
  if (given == given_files::needed) settle_tokenizer(options);
  std::vector<nn::resolved_phase> phases;
  if (a.schedule && a.schedule->is_of(options) && !a.flags.contains("--contracts")) phases = a.schedule->phases;
  trainer_state state = new_run(std::move(options), a.names, given, std::move(phases));
  say_preset_change(state);
  return state;
}

/// Returns the checked recipe of the synthetic warm-up of a new run.
std::optional<nn::recipe> find_synthetic_recipe(const arguments& a, const trainer_state& state) {
  const char* const flag = "--synthetic-recipe";
  if (a.session.synthetic_warmup == 0 && a.flags.contains(flag)) {
    throw io::error(flag, "needs --synthetic-warmup and its number of steps");
  }
  std::optional<nn::recipe> found = synthetic_recipe_of(a.session, state);
  if (!found) return found;
  const auto fault = find_recipe_fault(state.run, *found);
  if (fault) throw io::error(flag, a.names.text(*fault));
  return found;
}

/// Statistics continue as before the resume, unless flags change them.
void choose_statistics(arguments& a, const fs::path& file) {
  const statistics_choice old = read_statistics_choice(file);
  a.session.statistics_every = old.every;
  if (!a.flags.contains("--statistics-noise")) a.session.statistics_noise = old.noise;
}

/// Applies and checks the command line's statistics options.
void settle_statistics(arguments& a) {
  if (a.statistics_every) a.session.statistics_every = *a.statistics_every;
  if (a.session.statistics_every > 0 || !a.session.statistics_noise) return;
  if (a.flags.contains("--statistics-noise")) {
    throw io::error("--statistics-noise", "needs observed steps (--statistics-every)");
  }
  a.session.statistics_noise = false;  // was the resumed run's
}

/// Applies the new paths of a run's files.
void move_files(const run_options& moved, trainer_state& state) {
  take_new_places(moved, state.run, state.run);
  if (!moved.init.empty()) state.resolved_init.clear();
  if (!moved.adapter.empty()) state.resolved_adapter.clear();
}

/// Gives a resumed run more steps, if nothing so far depended on their number.
void lengthen(const field_names& names, std::int64_t steps, trainer_state& state) {
  train_options& own = state.run.train;
  const std::string given = names.name("train.steps") + " " + std::to_string(steps);
  if (steps < own.steps) {
    throw io::error(given,
                    "the run has " + std::to_string(own.steps) + ", and can only be made longer (--stop-at ends it)");
  }
  if (steps > own.steps && own.decay_steps == 0) {
    throw io::error(given, "the learning rate of the run fell until step " + std::to_string(own.steps) +
                               ", its end; only a run that begins with --decay-steps can be made longer");
  }
  if (!state.phases.empty() && state.phases.back().cap > 0) {
    throw io::error(given, "the last phase of the run's schedule ends it after " +
                               std::to_string(state.phases.back().cap) + " steps");
  }
  for (nn::resolved_phase& phase : state.phases) {
    if (phase.trigger && phase.from_step == own.steps) phase.from_step = steps;  // no latest step
  }
  own.steps = steps;
  if (const auto fault = find_fault(state.run)) throw names.error(*fault);
}

/// What a resumed run may be given anew: places of its files, and more steps. With --auto-resume the command line
/// states all options (`wanted`), and only the last may differ.
void take_changes(const arguments& a, const trainer_state* wanted, trainer_state& state) {
  train_options& own = state.run.train;
  if (wanted == nullptr) {
    move_files(a.run, state);
    if (a.flags.contains("--max-epochs")) own.max_epochs = a.run.train.max_epochs;
    if (a.flags.contains("--steps")) lengthen(a.names, a.run.train.steps, state);
    return;
  }
  const std::int64_t steps = wanted->run.train.steps;
  if (steps <= own.steps) return require_same_run(*wanted, a.names, state, a.session.out);
  own.max_epochs = std::max(own.max_epochs, wanted->run.train.max_epochs);
  lengthen(a.names, steps, state);
  try {
    require_same_run(*wanted, a.names, state, a.session.out);
  } catch (const io::error& e) {  // a phase that starts at a fraction of the run, or an option
    throw io::error(std::string(e.what()) + "; --resume " + shell_word(a.session.out) + " --steps " +
                    std::to_string(steps) + " keeps the run's own");
  }
}

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

/// Resumes from the first undamaged checkpoint of `points`. Later ones count only with --auto-resume; `wanted` then has
/// the command line's options. `watch` begins to record digests if the run asks for them.
int resume(const chosen_backend& device, arguments& a, const std::vector<resume_point>& points,
           const trainer_state* wanted, const std::function<void(const trainer_state&)>& watch) {
  if (!points.empty()) {
    // Checked before checkpoints are read, because a process that writes the run would remove old ones.
    const fs::path &run = points[0].run, out = a.session.out.empty() ? run : fs::path(a.session.out);
    if (out.empty()) throw io::error(a.resume, "is in no run's checkpoints/; --out says where it is to go on");
    if (fs::weakly_canonical(out) == fs::weakly_canonical(run)) io::require_no_writer(run_directory(run).log());
  }
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::string next = i + 1 < points.size() ? points[i + 1].name() : "";
    std::unique_ptr<trainer> t;
    try {
      trainer_state state = read_state(points[i]);
      const std::int64_t steps = state.run.train.steps;
      take_changes(a, wanted, state);
      say_preset_change(state);
      a.session.lengthens = state.run.train.steps > steps;
      const bool given = wanted == nullptr && !a.run.tokenizer.empty();
      a.session.tokenizer = given ? "" : find_tokenizer(state.run.tokenizer, points[i].checkpoint);
      // A run that was killed before its first records has no file that tells.
      const fs::path statistics = run_directory(points[i].run).statistics();
      if (!points[i].checkpoint.empty() || fs::exists(statistics)) choose_statistics(a, statistics);
      settle_statistics(a);
      if (a.digest_steps.empty()) a.digest_steps = read_digest_steps(run_directory(points[i].run).digests());
      if (a.session.out.empty()) a.session.out = points[i].run.string();
      watch(state);
      t = std::make_unique<trainer>(*device.ops, std::move(state), a.session, points[i]);
    } catch (const damaged_checkpoint& e) {
      const bool begins = !next.empty() && points[i + 1].checkpoint.empty();
      if (next.empty() || (begins && wanted == nullptr)) {
        throw io::error(std::string(e.what()) + "; there is no older checkpoint" +
                        (begins ? ": --auto-resume, with the run's options, begins again" : ""));
      }
      if (wanted == nullptr)
        throw io::error(std::string(e.what()) + "; the one before it: --resume " + shell_word(next));
      print_error(program_name, std::string(e.what()) + "; going on from " + next);
      continue;
    }
    device.say_note();
    return t->run();
  }
  throw io::error(a.resume, "holds neither checkpoints nor trainer_state.json: nothing to resume");
}

int train(int argc, char** argv, arguments& a) {
  const chosen_backend device = choose_backend(a.device);
  nn::digest_observer digests(*device.ops);
  std::optional<digest_recorder> recorder;
  const auto watch = [&](const trainer_state& state) {
    check_steps(a, state.run.train.steps);
    if (a.digest_steps.empty()) return;
    recorder.emplace(digests, parse_steps(a.digest_steps, "--digest-steps"), run_directory(a.session.out).digests());
    a.session.watcher = &*recorder;
  };
  a.session.threads = device.ops->threads();
  a.session.progress = !a.no_progress;
  a.session.began_ms = milliseconds_since_1970();
  if (!a.resume.empty()) {
    check_resume_flags(argc, argv);
    return resume(device, a, find_resume_points(a.resume), nullptr, watch);
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
    if (!points.empty()) return resume(device, a, points, &state, watch);
  }
  watch(state);
  const auto t = naming_flags(a.names, [&] { return std::make_unique<trainer>(*device.ops, state, a.session); });
  device.say_note();
  return t->run();
}

/// Prints the memory of train in the words of its log. Nothing is allocated.
int plan(arguments& a) {
  settle_statistics(a);
  const trainer_state state = begin(a, given_files::none);
  const std::optional<nn::recipe> synthetic = find_synthetic_recipe(a, state);
  const chosen_backend device = choose_backend(a.device);
  const nn::memory_plan planned = naming_flags(a.names, [&] {
    return llama::plan_session(*device.ops, state.run.architecture(),
                               session_options_for(state.run, a.session.memory_limit, a.session.statistics_every > 0,
                                                   a.session.async_checkpoints),
                               recipes_of(state, a.session, synthetic));
  });
  device.say_note();
  std::cout << memory_table(planned) << checkpoint_line(planned) << parameter_line(state.run);
  const std::size_t limit = a.session.memory_limit;
  if (limit != 0 && planned.total() > limit) {
    throw io::error("--memory-limit", llama::over_budget(planned, limit).what());
  }
  return exit_ok;
}

int profile_run(const arguments& a) {
  return profile(begin(a, given_files::none), a.device, {a.profile_operations, a.session.memory_limit}, std::cout);
}

int run(int argc, char** argv) {
  arguments a;
  parse_arguments(argc, argv, a);
  const std::string command = argv[1];
  if (command == "train") return train(argc, argv, a);
  if (command == "plan") return plan(a);
  if (command == "eval") return evaluate_checkpoint(a);
  if (command == "profile") return profile_run(a);
  if (command == "replay") return replay(a.replay, std::cout);
  if (command == "sample") return sample_checkpoint(a);
  if (command == "merge") return merge(a.merge);
  if (command == "convert") return convert(a.convert);
  if (command == "tokenizer") return run_tokenizer(a.tokens, std::cout);
  if (command == "recipes") return list_recipes(std::cout);
  if (command == "study") return run_study(a.study, std::cout);
  if (command == "report") return write_report(a.report, std::cout);
  throw io::error(command, "is a command that nothing runs");
}

}  // namespace
}  // namespace rotoscale::llama_program

int main(int argc, char** argv) {
  using namespace rotoscale;
  occupy_standard_streams();
  fail_beyond_file_limit();
  fail_at_closed_pipe();
  try {
    const int code = llama_program::run(argc, argv);
    finish_standard_output();
    return code;
  } catch (const io::error& e) {
    print_error(llama_program::program_name, e.what());
  } catch (const llama::over_budget& e) {
    print_error(llama_program::program_name, std::string("--memory-limit: ") + e.what() + ", by category:");
    std::cerr << llama_program::memory_table(e.plan());
  } catch (const std::bad_alloc&) {
    print_error(llama_program::program_name,
                "out of memory; plan says what a run takes, and --memory-limit refuses one that takes more");
    return llama_program::exit_device;
  } catch (const llama_program::device_failure& e) {
    print_error(llama_program::program_name, std::string(e.what()) + "; no file is written; its memory, by category:");
    std::cerr << llama_program::memory_table(e.plan());
    return llama_program::exit_device;
  } catch (const nn::backend_error& e) {
    print_error(llama_program::program_name, e.what());
    if (e.of_device()) return llama_program::exit_device;
  } catch (const std::exception& e) {
    print_error(llama_program::program_name, e.what());
  }
  return llama_program::exit_bad_input;
}
