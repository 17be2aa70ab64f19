// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "study/command.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <ostream>
#include <system_error>

#include "examples/standard_streams.hpp"
#include "front.hpp"
#include "options.hpp"
#include "report/report.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "shell_word.hpp"
#include "study/pool.hpp"
#include "study/results.hpp"
#include "trainer/resume.hpp"
#include "trainer/run_directory.hpp"
#include "trainer/signals.hpp"

namespace rotoscale::program {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

/// Arms with everything looked up: as their runs begin, but for the seed.
using resolved_arms = std::map<std::string, trainer_state>;

/// A schedule that the study's file holds goes to a file, which `train` reads.
std::string schedule_name(const study_directory& directory, const study_arm& a) {
  return a.schedule.is_string() ? a.schedule.get<std::string>() : directory.schedule(a.name).string();
}

/// The options of an arm's runs, as a file of `train --config`.
json options_of(const study_file& study, const study_directory& directory, const study_arm& a) {
  json options = study.options;
  options.merge_patch(a.options);
  options["name"] = a.name;
  options["schedule"] = schedule_name(directory, a);
  return options;
}

/// Writes what `train` reads. Throws io::error if an arm with runs has changed.
void write_arms(const study_file& study, const study_directory& directory, const std::string& where) {
  for (const fs::path& folder : directory.folders()) io::make_directories(folder);
  for (const study_arm& a : study.arms) {
    const auto write = [&](const fs::path& file, const json& content) {
      const bool has_runs = fs::exists(directory.run(a.name, 1)) || fs::exists(directory.failure(a.name, 1));
      if (has_runs && (!fs::exists(file) || io::read_json(file.string()) != content)) {
        throw io::error(where, a.name + ": is not the arm whose runs are in " + directory.path().string() + " (" +
                                   file.string() + "); give it another name");
      }
      io::write_json(file, content);
    };
    write(directory.options(a.name), options_of(study, directory, a));
    if (!a.schedule.is_string()) write(directory.schedule(a.name), a.schedule);
  }
}

/// Throws io::error if the fork's run would not equal one from the first step.
void check_fork(const study_arm& a, const trainer_state& own, const trainer_state& parent, const std::string& where) {
  const std::int64_t step = a.fork->step;
  const train_options& t = parent.run.train;
  const auto before = [&](const trainer_state& s) {
    std::vector<nn::resolved_phase> phases;
    for (const nn::resolved_phase& p : s.phases) {
      if (p.trigger) throw io::error(where, "a schedule with a trigger has no forks");
      if (p.from_step < step) phases.push_back(p);
    }
    return phases;
  };
  if (const auto change = find_phase_change(before(parent), before(own))) {
    throw io::error(where, "differs from " + a.fork->arm + " before step " + std::to_string(step) + ": " + *change);
  }
  const auto options = [](const trainer_state& s) {
    json options = io::to_json(s.run);
    options.erase("name");
    options.erase("schedule");
    return options;
  };
  if (options(own) != options(parent)) throw io::error(where, "its options are not those of " + a.fork->arm);
  const bool is_kept = step > 0 && step < t.steps && t.checkpoint_every > 0 && step % t.checkpoint_every == 0 &&
                       (t.steps - 1) / t.checkpoint_every - step / t.checkpoint_every + 1 < t.keep_checkpoints;
  if (is_kept) return;
  throw io::error(where, "the run of " + a.fork->arm + " keeps no checkpoint of step " + std::to_string(step) +
                             " (train.checkpoint_every, train.keep_checkpoints)");
}

/// Looks at every arm before any run begins. Throws io::error.
resolved_arms resolve_arms(const study_file& study, const study_directory& directory, const std::string& where) {
  resolved_arms arms;
  for (const study_arm& a : study.arms) {
    const std::string place = where + ": " + a.name;
    run_options run;
    const json options = options_of(study, directory, a);
    io::from_json(options, run, place + ".options");
    if (!run.init.empty()) {  // as train
      run.model.take(read_shape(train::find_weights(run.init)));
      run.model.take(options, place + ".options");
    }
    if (run.data.empty()) throw io::error(where, "options.data: missing, and no --data is given");
    for (const std::string& data : run.data) {
      if (!fs::exists(data)) throw io::error(data, "cannot open: no such file, of which " + a.name + " is to read");
    }
    field_names names;
    names.from_file(place + ".options", options);
    settle_targets(run, names);
    arms[a.name] = new_run(std::move(run), names);
    if (a.fork) check_fork(a, arms.at(a.name), arms.at(a.fork->arm), place + ".fork");
  }
  return arms;
}

/// One seed of an arm.
struct job {
  const study_arm* arm = nullptr;
  int seed = 0;
  bool begun = false, ended = false;

  std::string name() const { return arm->name + " seed " + std::to_string(seed); }
};

class study_runner {
 public:
  study_runner(const study_options& options, study_file study, const study_directory& directory)
      : options_(options), study_(std::move(study)), directory_(directory) {
    // Seed by seed, so that an early end leaves whole pairs.
    for (int seed = 1; seed <= study_.seeds; ++seed) {
      for (const study_arm& a : study_.arms) {
        const bool done = is_done(a.name, seed);
        jobs_.push_back({&a, seed, done, done});
      }
    }
  }

  void print_budget(std::ostream& out, const resolved_arms& arms) const;
  void run(const resolved_arms& arms, std::ostream& out);
  /// Runs that are neither ok nor diverged.
  std::ptrdiff_t left() const {
    return std::count_if(jobs_.begin(), jobs_.end(), [&](const job& j) { return !is_done(j.arm->name, j.seed); });
  }

 private:
  bool is_done(const std::string& arm, int seed) const {
    const run_outcome outcome = outcome_of(directory_, arm, seed);
    return outcome == run_outcome::ok || outcome == run_outcome::diverged;
  }
  bool is_on_cpu() const { return device_ == "cpu"; }
  std::size_t slots() const;
  std::optional<process> next(std::size_t slot, const resolved_arms& arms);
  std::vector<std::string> command(const job& j, std::size_t slot, const resolved_arms& arms);
  std::string begin_fork(const job& j, const resolved_arms& arms) const;
  void end(std::size_t number, int code, std::ostream& out);
  void fail(const job& j, int code, const std::string& reason);
  const job* parent_of(const job& j) const;

  const study_options& options_;
  study_file study_;
  study_directory directory_;
  std::vector<job> jobs_;
  std::string device_ = choose_device();
  int ended_ = 0;

  /// "auto" becomes cpu where there is no device.
  std::string choose_device() const {
    if (options_.device.name != "auto") return options_.device.name;
    device_choice first = options_.device;
    first.number = options_.device_numbers.front();
    const std::string description = choose_backend(first).ops->description();
    return description.starts_with("cpu") ? "cpu" : "auto";
  }
};

std::size_t study_runner::slots() const {
  if (!is_on_cpu()) return options_.device_numbers.size() * static_cast<std::size_t>(std::max(1, options_.jobs));
  if (options_.jobs > 0) return static_cast<std::size_t>(options_.jobs);
  device_choice cpu;
  cpu.name = "cpu";
  return static_cast<std::size_t>(choose_backend(cpu).ops->threads());
}

double tokens_per_step(const train_options& t) { return 1.0 * t.batch * t.accumulate * t.sequence; }

/// Steps that a run does not do, as it continues another one.
std::int64_t forked_steps(const study_arm& a) { return a.fork ? a.fork->step : 0; }

/// Training tokens of a run.
double tokens_of(const trainer_state& s, const study_arm& a) {
  return static_cast<double>(s.run.train.steps - forked_steps(a)) * tokens_per_step(s.run.train);
}

/// Tokens as passes take time: an evaluation is a forward pass, a third of a step's work.
double work_of(const trainer_state& s, const study_arm& a) {
  const train_options& t = s.run.train;
  const double steps = static_cast<double>(t.steps - forked_steps(a));
  const double windows = steps / static_cast<double>(t.eval_every) * t.eval_windows + t.final_eval_windows;
  return tokens_of(s, a) + windows * t.sequence / 3;
}

void study_runner::print_budget(std::ostream& out, const resolved_arms& arms) const {
  double tokens = 0, tokens_left = 0, work_left = 0, done_tokens = 0, done_seconds = 0;
  for (const job& j : jobs_) {
    const trainer_state& state = arms.at(j.arm->name);
    tokens += tokens_of(state, *j.arm);
    if (j.ended) continue;
    tokens_left += tokens_of(state, *j.arm);
    work_left += work_of(state, *j.arm);
  }
  const std::size_t runs = static_cast<std::size_t>(left());
  if (runs < jobs_.size()) {
    const study_results done = read_results(directory_.path());
    for (const study_arm& a : study_.arms) {
      const double before = static_cast<double>(forked_steps(a)) * tokens_per_step(arms.at(a.name).run.train);
      for (const study_run* run : done.of(a.name)) {
        if (run->seconds > 0) done_tokens += static_cast<double>(run->tokens) - before;
        done_seconds += run->seconds;
      }
    }
  }
  const auto count = [](double x) { return report_parts::grouped(static_cast<std::int64_t>(x)); };
  out << study_.name << ": " << study_.arms.size() << " arms x " << study_.seeds << " seeds = " << jobs_.size()
      << " runs, " << count(tokens) << " tokens; " << runs << " runs, " << count(tokens_left) << " tokens are left\n"
      << slots() << " at once on " << device_ << "; ";
  const bool is_measured = done_seconds > 0;
  const double rate = is_measured ? done_tokens / done_seconds : study_.tokens_per_s;
  if (rate > 0) {
    const double seconds = work_left / rate / static_cast<double>(std::clamp<std::size_t>(runs, 1, slots()));
    out << "about " << report_parts::fixed(seconds / 60, 1) << " minutes at " << count(rate) << " tokens/s a run ("
        << (is_measured ? "measured here" : "stated by the study") << ")\n";
  } else {
    out << "no rate is known before a run has ended (tokens_per_s states one)\n";
  }
  out.flush();
}

const job* study_runner::parent_of(const job& j) const {
  if (!j.arm->fork) return nullptr;
  for (const job& other : jobs_) {
    if (other.seed == j.seed && other.arm->name == j.arm->fork->arm) return &other;
  }
  return nullptr;
}

void study_runner::fail(const job& j, int code, const std::string& reason) {
  io::write_json(directory_.failure(j.arm->name, j.seed), {{"code", code}, {"reason", reason}});
}

/// A checkpoint of the parent's run with the phases of the arm. Returns its directory.
std::string study_runner::begin_fork(const job& j, const resolved_arms& arms) const {
  const fs::path from = run_directory(directory_.run(j.arm->fork->arm, j.seed)).checkpoint(j.arm->fork->step);
  const fs::path to = directory_.fork(j.arm->name, j.seed);
  trainer_state state = read_trainer_state(from);
  const trainer_state& own = arms.at(j.arm->name);
  state.run.name = own.run.name;
  state.run.schedule = own.run.schedule;
  state.phases = own.phases;
  io::make_directories(to.parent_path());
  io::atomic_directory copy(to);
  for (const auto& file : fs::directory_iterator(from)) {
    if (file.path().filename() != "trainer_state.json")
      fs::copy_file(file.path(), copy.path() / file.path().filename());
  }
  io::write_json(copy.path() / "trainer_state.json", io::to_json(state));
  copy.commit();
  return to.string();
}

std::vector<std::string> study_runner::command(const job& j, std::size_t slot, const resolved_arms& arms) {
  const std::string run = directory_.run(j.arm->name, j.seed).string();
  std::vector<std::string> words = {"train"};
  const auto add = [&](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  if (!j.arm->fork) {
    add({"--config", directory_.options(j.arm->name).string(), "--seed", std::to_string(j.seed), "--out", run,
         "--auto-resume"});
  } else if (!fs::exists(run) || find_resume_points(run).empty()) {
    add({"--resume", begin_fork(j, arms), "--out", run});
  } else {
    add({"--resume", run});
  }
  add({"--no-progress", "--device", device_});
  if (is_on_cpu()) {
    add({"--threads", "1"});
  } else {
    add({"--device-number", std::to_string(options_.device_numbers[slot % options_.device_numbers.size()])});
  }
  return words;
}

std::optional<process> study_runner::next(std::size_t slot, const resolved_arms& arms) {
  if (options_.stop_after > 0) {
    const auto begun = std::count_if(jobs_.begin(), jobs_.end(), [](const job& j) { return j.begun && !j.ended; });
    if (ended_ + begun >= options_.stop_after) return std::nullopt;
  }
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    job& j = jobs_[i];
    const job* const parent = parent_of(j);
    if (j.begun || (parent != nullptr && !parent->ended)) continue;
    j.begun = true;
    if (parent != nullptr && outcome_of(directory_, parent->arm->name, parent->seed) != run_outcome::ok) {
      fail(j, exit_bad_input, parent->name() + ", which it continues, gave no checkpoint");
      j.ended = true;
      continue;
    }
    fs::remove(directory_.failure(j.arm->name, j.seed));
    return process{i, command(j, slot, arms), directory_.output(j.arm->name, j.seed)};
  }
  return std::nullopt;
}

/// The last line that a process has said as this program, without its name and advice.
std::string reason_of(const fs::path& output) {
  if (!fs::exists(output)) return "no message";
  const std::string text = io::read_raw_file(output), mark = std::string(program_name) + ": ";
  const std::size_t at = text.rfind(mark);
  if (at == text.npos) return "no message";
  const std::string line = text.substr(at + mark.size(), text.find('\n', at) - at - mark.size());
  return line.substr(0, line.find("; "));
}

void study_runner::end(std::size_t number, int code, std::ostream& out) {
  job& j = jobs_[number];
  j.ended = true;
  ++ended_;
  fs::remove_all(directory_.fork(j.arm->name, j.seed));
  const fs::path output = directory_.output(j.arm->name, j.seed);
  if (code == exit_ok) {
    const auto log = report_parts::read_arm(directory_.run(j.arm->name, j.seed).string());
    out << j.name() << ": final loss " << report_parts::fixed(log.final_loss, 4) << "\n";
  } else {
    const std::string reason = reason_of(output);
    // A run that a signal has ended goes on later.
    if (code != exit_interrupted && code < 128) fail(j, code, reason);
    out << j.name() << ": exit code " << code << ": " << reason << "\n";
  }
  out.flush();
}

void study_runner::run(const resolved_arms& arms, std::ostream& out) {
  run_processes(
      slots(), [&](std::size_t slot) { return next(slot, arms); },
      [&](std::size_t number, int code) { end(number, code, out); });
}

/// Keeps other studies out of the directory. The file stays open, and processes inherit it: the lock holds until the
/// last has ended.
void lock(const study_directory& directory) {
  const int file = ::open(directory.lock().c_str(), O_RDWR | O_CREAT, 0666);
  if (file < 0) throw io::error(directory.lock().string(), "cannot write: " + std::generic_category().message(errno));
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw io::error(directory.path().string(), "another study is running there, or its runs have not ended yet");
  }
}

/// The study to do, in a directory that may have it.
study_file find_study(const study_options& o, const study_directory& directory, const std::string& where) {
  const bool exists = fs::exists(directory.file());
  if (o.resume.empty() && o.file.empty()) throw io::error("study", "needs a study's file");
  if (!o.resume.empty() && !exists) throw io::error("--resume " + o.resume, "no study.json there");
  if (o.resume.empty() && exists) throw io::error("--out " + o.out, "has a study already, which --resume continues");
  if (o.resume.empty() && fs::exists(o.out) && !(fs::is_directory(o.out) && fs::is_empty(o.out))) {
    throw io::error("--out " + o.out, "is not an empty directory");
  }
  study_file study = read_study(where);
  if (o.seeds > 0) study.seeds = o.seeds;
  if (!o.data.empty()) study.options["data"] = o.data;
  return study;
}

/// Removes what prepare() writes.
void clear(const study_directory& directory) {
  for (const fs::path& folder : directory.folders()) fs::remove_all(folder);
  fs::remove(directory.file());
  fs::remove(directory.lock());
}

/// Writes and checks the arms. A new study that is refused leaves nothing.
resolved_arms prepare(const study_file& study, const study_directory& directory, const std::string& where,
                      bool is_new) {
  try {
    write_arms(study, directory, where);
    resolved_arms arms = resolve_arms(study, directory, where);
    io::write_json(directory.file(), study_json(study));
    return arms;
  } catch (const io::error&) {
    if (is_new) clear(directory);
    throw;
  }
}

}  // namespace

int run_study(const study_options& o, std::ostream& out) {
  if (o.out.empty() == o.resume.empty()) throw io::error("study", "needs either --out or --resume");
  const study_directory directory(o.out.empty() ? o.resume : o.out);
  const std::string where = o.file.empty() ? directory.file().string() : o.file;
  const study_file study = find_study(o, directory, where);
  const json stored = o.accept.empty() ? json() : read_stored_results(o.accept);

  io::new_directories made(directory.path());
  lock(directory);
  const resolved_arms arms = prepare(study, directory, where, o.resume.empty());
  study_runner runner(o, study, directory);
  runner.print_budget(out, arms);
  if (o.budget) {
    if (o.resume.empty()) clear(directory);
    return exit_ok;
  }
  made.keep();
  try {
    runner.run(arms, out);
  } catch (const interruption& i) {
    print_error(program_name, signal_name(i.signal) + "; to go on: mini-llama study --resume " +
                                  shell_word(directory.path().string()));
    return exit_interrupted;
  }
  write_report({{directory.path().string()}, (directory.path() / "report").string(), "", ""}, out);
  if (const auto left = runner.left(); left > 0) {
    out << left << " runs are left: mini-llama study --resume " << shell_word(directory.path().string()) << "\n";
  }
  if (o.accept.empty()) return exit_ok;
  return accept_results(read_results(directory.path()), stored, o.accept, out) ? exit_ok : exit_differs;
}

}  // namespace rotoscale::program
