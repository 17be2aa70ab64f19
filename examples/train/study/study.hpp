// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A study: arms x seeds of `mini-llama train`, described by one JSON file (docs/guide/study.md). Here are the file and
// the names in a study's directory; results.hpp has what its runs gave, command.hpp the command.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/io/json.hpp"

namespace rotoscale::program {

/// Where an arm leaves another one: it begins with the checkpoint of that arm's run with the same seed.
struct study_fork {
  std::string arm;
  std::int64_t step = 0;
};

template <class Visitor>
void describe(Visitor&& v, study_fork& f) {
  v("arm", f.arm, "arm whose run is continued");
  v("step", f.step, "step of its checkpoint");
}

struct study_arm {
  std::string name;
  std::optional<study_fork> fork;
  nlohmann::ordered_json schedule = "bf16";  ///< a name, or the content of a recipe's or schedule's file
  nlohmann::ordered_json options = nlohmann::ordered_json::object();  ///< of config.json, over the study's
};

template <class Visitor>
void describe(Visitor&& v, study_arm& a) {
  v("name", a.name, "of the arm, in file names");
  v("fork", a.fork, "another arm's checkpoint to begin with");
}

struct study_file {
  std::string name = "study";
  std::string question;
  int seeds = 4;
  std::string baseline;
  double target = 0;
  int last_evaluations = 5;
  double tokens_per_s = 0;
  std::vector<study_arm> arms;
  nlohmann::ordered_json options = nlohmann::ordered_json::object();  ///< of config.json, for all arms
};

template <class Visitor>
void describe(Visitor&& v, study_file& s) {
  v("name", s.name, "title of the report");
  v("question", s.question, "what the study asks");
  v("seeds", s.seeds, "runs of each arm, with seeds from 1");
  v("baseline", s.baseline, "arm that gaps refer to (default: the first)");
  v("target", s.target, "validation loss in nats for tokens to target; 0: the baseline's mean + 2 s.d.");
  v("last_evaluations", s.last_evaluations, "evaluations whose mean is the second endpoint");
  v("tokens_per_s", s.tokens_per_s, "rate of one run, for the budget before any run has ended");
  v("arms", s.arms, "what is compared");
}

/// Reads and checks a study's file; throws io::error. Options and schedules are checked by what runs them.
study_file read_study(const std::filesystem::path& path);
/// The file's content.
nlohmann::ordered_json study_json(study_file study);

class study_directory {
 public:
  explicit study_directory(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file() const { return path_ / "study.json"; }
  /// Folders of a study. It also has study.json, the lock and the report.
  std::vector<std::filesystem::path> folders() const { return {path_ / "arms", path_ / "schedules", runs()}; }
  std::filesystem::path lock() const { return path_ / "study.lock"; }
  std::filesystem::path runs() const { return path_ / "runs"; }
  std::filesystem::path run(const std::string& arm, int seed) const {
    return runs() / (arm + "-" + std::to_string(seed));
  }
  /// Output of a run's last process.
  std::filesystem::path output(const std::string& arm, int seed) const { return run_file(arm, seed, ".out"); }
  /// Exit code and reason of a run that gave no loss.
  std::filesystem::path failure(const std::string& arm, int seed) const { return run_file(arm, seed, ".failed"); }
  /// The checkpoint that a run begins with, until it has its own.
  std::filesystem::path fork(const std::string& arm, int seed) const {
    return path_ / "forks" / (arm + "-" + std::to_string(seed));
  }
  std::filesystem::path options(const std::string& arm) const { return path_ / "arms" / (arm + ".json"); }
  std::filesystem::path schedule(const std::string& arm) const { return path_ / "schedules" / (arm + ".json"); }

 private:
  std::filesystem::path run_file(const std::string& arm, int seed, const char* ending) const {
    return runs() / (arm + "-" + std::to_string(seed) + ending);
  }

  std::filesystem::path path_;
};

}  // namespace rotoscale::program
