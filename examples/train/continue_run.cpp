// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "continue_run.hpp"

#include <algorithm>
#include <memory>

#include "begin_run.hpp"
#include "data/own_tokenizer.hpp"
#include "examples/standard_streams.hpp"
#include "front.hpp"
#include "rotoscale/io/jsonl.hpp"
#include "shell_word.hpp"

namespace rotoscale::program {
namespace {

namespace fs = std::filesystem;

/// Statistics continue as before the resume, unless flags change them.
void choose_statistics(arguments& a, const fs::path& file) {
  const statistics_choice old = read_statistics_choice(file);
  a.session.statistics_every = old.every;
  if (!a.flags.contains("--statistics-noise")) a.session.statistics_noise = old.noise;
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

/// Applies the changes that a resumed run allows: places of its files, and more steps. With --auto-resume the command
/// line states all options (`wanted`), and only the last may differ.
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

}  // namespace

int resume(const chosen_backend& device, rank_team& team, arguments& a, const std::vector<resume_point>& points,
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
    trainer_state state;
    try {
      state = read_state(points[i]);
      const std::int64_t steps = state.run.train.steps;
      take_changes(a, wanted, state);
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
      t = std::make_unique<trainer>(*device.ops, state, a.session, points[i]);
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
    return team.run(*t, a, state, points[i]);
  }
  throw io::error(a.resume, "holds neither checkpoints nor trainer_state.json: nothing to resume");
}

}  // namespace rotoscale::program
