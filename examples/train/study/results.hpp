// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Results of a study's runs, and figures derived from them: endpoints, pairs, tokens to the target, stored results.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/parts.hpp"
#include "study/statistics.hpp"
#include "study/study.hpp"

namespace rotoscale::program {

enum class run_outcome { ok, diverged, failed, unfinished };

struct study_run {
  std::string arm;
  int seed = 0;
  run_outcome outcome = run_outcome::unfinished;
  std::string reason;                           ///< of a failed or diverged run
  std::vector<report_parts::eval_point> evals;  ///< a fork's begin with its parent's
  report_parts::maybe final_loss;               ///< of a run that is ok
  report_parts::maybe average_loss;             ///< the same of the weights' moving average
  std::int64_t step = 0, tokens = 0;
  double seconds = 0;                 ///< of its steps
  nlohmann::ordered_json definition;  ///< compared by acceptance: options, effective recipes, fingerprint of the data
};

/// A loss for each run that is ok, to compare arms by.
enum class endpoint {
  final,   ///< the last evaluation
  last,    ///< mean of the last evaluations
  average  ///< the last evaluation of the weights' moving average
};

struct study_results {
  study_file study;
  std::filesystem::path directory;
  std::vector<study_run> runs;  ///< by arm, then by seed
  double target = 0;            ///< nats; 0: unknown, as no run of the baseline is ok

  std::vector<const study_run*> of(const std::string& arm) const;
};

/// Losses of an arm by seed; a run that is not ok has none.
using losses_by_seed = std::map<int, double>;

/// A sample with its mean, spread and intervals of 95 %.
struct sample_summary {
  int count = 0;
  double mean = 0;
  report_parts::maybe deviation;
  std::optional<study_statistics::interval> student, bootstrap;
};

sample_summary summarize(const std::vector<double>& values, bool with_bootstrap = false);

/// Outcome of a run, by its log and its failure file.
run_outcome outcome_of(const study_directory& directory, const std::string& arm, int seed);

/// Reads the runs of a study's directory, however many there are. `baseline`: another one than the file's, or empty.
/// Throws io::error.
study_results read_results(const std::filesystem::path& directory, const std::string& baseline = "");

/// Does a run have the loss of a moving average?
bool has_average(const study_results& r);
/// Endpoints that a study has.
std::vector<endpoint> endpoints_of(const study_results& r);
losses_by_seed losses(const study_results& r, const std::string& arm, endpoint which);
std::vector<double> values_of(const losses_by_seed& losses);
/// Of a minus b, over the seeds that both have.
std::vector<double> paired_differences(const losses_by_seed& a, const losses_by_seed& b);
/// Tokens until a run's evaluations reach the target.
report_parts::maybe tokens_to_target(const study_results& r, const study_run& run);

const char* name_of(endpoint which);
const char* name_of(run_outcome outcome);

/// results.json: the losses of all runs and what was run, for --accept.
nlohmann::ordered_json stored_results(const study_results& r);

/// A file of them. Throws io::error.
nlohmann::ordered_json read_stored_results(const std::filesystem::path& path);

/// Compares with stored results, and prints a line for each arm. Returns whether all means agree. Throws io::error
/// where arms, options, recipes or data are others.
bool accept_results(const study_results& r, const nlohmann::ordered_json& stored, const std::string& where,
                    std::ostream& out);

}  // namespace rotoscale::program
