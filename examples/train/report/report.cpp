// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The report's frame: reads the logs, compares the arms, and writes summary.json, the CSV files, the plots and the
// page.

#include "report/report.hpp"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <map>
#include <ostream>

#include "report/parts.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/same_file.hpp"
#include "study/page.hpp"

namespace rotoscale::program {

namespace {

using namespace report_parts;

json seeds_of(const arm& a) {
  json seeds = json::array();
  for (const seed_result& s : a.seeds) seeds.push_back(s.seed);
  return seeds;
}

json interval_of(const std::optional<estimate>& e) {
  if (!e || !e->half_width) return json();
  return {e->mean - *e->half_width, e->mean + *e->half_width};
}

json summary(const comparison& c) {
  json arms = json::array();
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    const standing& p = c.standings[i];
    arms.push_back({{"name", a.name},
                    {"recipe", recipe_text(a)},
                    {"final_val_loss", io::to_json(a.final_loss)},
                    {"best_val_loss", io::to_json(a.best_loss)},
                    {"seeds", seeds_of(a)},
                    {"sd_over_seeds", p.final ? io::to_json(p.final->deviation) : json()},
                    {"rank", p.rank > 0 ? json(p.rank) : json()},
                    {"gap_to_baseline", p.gap ? json(p.gap->mean) : json()},
                    {"gap_interval_95", interval_of(p.gap)},
                    {"tokens", a.tokens},
                    {"tokens_per_s", io::to_json(tokens_per_second(a))},
                    {"seconds", io::to_json(a.seconds)}});
  }
  return {{"arms", arms},
          {"commit", shared_field(c, "commit")},
          {"seed", shared_field(c, "seed")},
          {"threads", shared_field(c, "threads")}};
}

std::string arms_csv(const comparison& c) {
  std::string s = csv_line({"rank", "name", "recipe", "status", "final_val_loss", "best_val_loss", "tokens",
                            "tokens_per_s", "seconds", "initial_val_loss", "final_over_initial", "gap_to_baseline",
                            "seeds", "sd_over_seeds", "gap_pairs", "gap_half_width_95", "window_standard_error"});
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    const standing& p = c.standings[i];
    s += csv_line({p.rank > 0 ? std::to_string(p.rank) : "", a.name, recipe_text(a), status_text(a.status),
                   exact(a.final_loss), exact(a.best_loss), std::to_string(a.tokens), exact(tokens_per_second(a)),
                   exact(a.seconds), exact(a.initial_loss), exact(p.ratio), p.gap ? exact(p.gap->mean) : "",
                   std::to_string(a.seeds.size()), p.final ? exact(p.final->deviation) : "",
                   p.gap ? std::to_string(p.gap->count) : "", p.gap ? exact(p.gap->half_width) : "",
                   exact(p.window_error)});
  }
  return s;
}

/// Mean of the last 20 logged training losses: single batches are too noisy to compare.
std::map<std::int64_t, maybe> smoothed_training_loss(const arm& a) {
  constexpr std::size_t length = 20;
  std::map<std::int64_t, maybe> smooth;
  std::deque<double> window;
  for (const train_point& p : a.train) {
    if (!p.loss) {
      smooth[p.step] = std::nullopt;
      continue;
    }
    window.push_back(*p.loss);
    if (window.size() > length) window.pop_front();
    // Summed again each time, so that no rounding error builds up along the run.
    double sum = 0;
    for (const double loss : window) sum += loss;
    smooth[p.step] = sum / static_cast<double>(window.size());
  }
  return smooth;
}

/// One line per step with a training or a validation loss. A switch that was evaluated on both sides has two.
std::string curves_csv(const comparison& c) {
  std::string s = csv_line({"arm", "step", "tokens", "val_loss", "train_loss_smoothed"});
  for (const arm& a : c.arms) {
    const auto smooth = smoothed_training_loss(a);
    const auto train_text = [&](std::int64_t step) {
      const auto at = smooth.find(step);
      return at == smooth.end() ? "" : exact(at->second);
    };
    auto eval = a.evals.begin();
    const auto add_evals = [&](std::int64_t last) {
      for (; eval != a.evals.end() && eval->step <= last; ++eval)
        s += csv_line({a.name, std::to_string(eval->step), eval->tokens ? std::to_string(*eval->tokens) : "",
                       exact(eval->loss), train_text(eval->step)});
    };
    for (const train_point& p : a.train) {
      add_evals(p.step);
      const bool written = eval != a.evals.begin() && std::prev(eval)->step == p.step;
      if (!written) s += csv_line({a.name, std::to_string(p.step), std::to_string(p.tokens), "", train_text(p.step)});
    }
    add_evals(INT64_MAX);
  }
  return s;
}

/// Reads the study if its directory is all that is given; the runs that are ok become the logs of the report.
std::optional<study_results> take_study(report_options& options) {
  if (options.logs.size() != 1 || !std::filesystem::exists(study_directory(options.logs[0]).file())) {
    return std::nullopt;
  }
  study_results r = read_results(options.logs[0], options.baseline);
  options.baseline = losses(r, r.study.baseline, endpoint::final).empty() ? "" : r.study.baseline;
  if (options.title.empty()) options.title = r.study.name;
  std::vector<std::string> logs;
  for (const study_run& run : r.runs) {
    if (run.outcome != run_outcome::ok) continue;
    logs.push_back(study_directory(r.directory).run(run.arm, run.seed).string());
  }
  if (logs.empty()) throw io::error(options.logs[0], "no run of the study is complete");
  options.logs = std::move(logs);
  return r;
}

/// Throws io::error if a file of the report is one of the logs.
void require_other_files(const report_options& options) {
  namespace fs = std::filesystem;
  std::vector<fs::path> outputs, logs;
  for (const char* name :
       {"summary.json", "arms.csv", "curves.csv", "statistics.csv", "report.html", "plots.gnuplot"}) {
    outputs.push_back(fs::path(options.out) / name);
  }
  for (const std::string& log : options.logs) {
    std::error_code failed;
    if (!fs::is_directory(log, failed)) logs.push_back(log);
  }
  io::require_no_input(outputs, logs);
}

}  // namespace

int write_report(const report_options& given, std::ostream& table) {
  namespace fs = std::filesystem;
  if (given.logs.empty()) throw io::error("report: no logs given");
  if (given.out.empty()) throw io::error("report: no output directory given");
  report_options options = given;
  const std::optional<study_results> study = take_study(options);
  require_other_files(options);
  std::vector<arm> arms;
  for (const std::string& path : options.logs) arms.push_back(read_arm(path));
  const comparison c = compare(std::move(arms), options.baseline);

  std::error_code failure;
  fs::create_directories(options.out, failure);
  if (failure) throw io::error(options.out + ": cannot create directory: " + failure.message());
  const fs::path out = options.out;
  io::write_json(out / "summary.json", summary(c));
  io::write_file_atomically(out / "arms.csv", arms_csv(c));
  io::write_file_atomically(out / "curves.csv", curves_csv(c));
  io::write_file_atomically(out / "statistics.csv", statistics_csv(c.arms));
  std::vector<plot> plots = make_plots(c);
  if (study) {
    write_study_files(*study, out);
    for (plot& p : plots) {
      if (p.id == "gap") p = study_gap_plot(*study);
    }
  }
  draw(plots, options.out);
  const std::string title = options.title.empty() ? "Low-precision training, compared" : options.title;
  io::write_file_atomically(out / "report.html", html_page(c, plots, title, study ? study_html(*study) : ""));
  table << (study ? study_text(*study) : text_table(c));
  return 0;
}

}  // namespace rotoscale::program
