// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Merges runs of several seeds into one arm, whose losses are means over seeds. The difference of two arms is estimated
// from pairs of equal seeds, which have the same data and initial weights.

#include <algorithm>
#include <cmath>

#include "report/parts.hpp"
#include "rotoscale/io/error.hpp"
#include "study/statistics.hpp"

namespace rotoscale::program::report_parts {

namespace {

/// Fields that logs of one arm must share: all but the seed and the run's path.
json identity(const arm& a) {
  json config = a.start.value("config", json());
  if (config.is_object() && config.contains("train") && config["train"].is_object()) config["train"].erase("seed");
  return {{"config", config}, {"schedule", a.start.value("schedule", json())}};
}

maybe mean_of(const std::vector<arm>& runs, maybe arm::*field) {
  double sum = 0;
  for (const arm& a : runs) {
    if (!(a.*field)) return std::nullopt;
    sum += *(a.*field);
  }
  return sum / static_cast<double>(runs.size());
}

/// Points that all runs have (they are in order of steps), with the mean of a loss that all have.
/// `same` tells points of one step apart.
template <class Point, class Same>
std::vector<Point> mean_points(const std::vector<arm>& runs, std::vector<Point> arm::*points, maybe Point::*loss,
                               const Same& same) {
  std::vector<Point> means;
  for (Point p : runs.front().*points) {
    double sum = 0;
    std::size_t count = 0;
    for (const arm& a : runs) {
      auto at = std::lower_bound((a.*points).begin(), (a.*points).end(), p.step,
                                 [](const Point& q, std::int64_t step) { return q.step < step; });
      while (at != (a.*points).end() && at->step == p.step && !same(p, *at)) ++at;
      if (at == (a.*points).end() || at->step != p.step || !((*at).*loss)) continue;
      sum += *((*at).*loss);
      ++count;
    }
    if (count != runs.size()) continue;
    p.*loss = sum / static_cast<double>(count);
    means.push_back(p);
  }
  return means;
}

/// Mean losses of the n-th switch of all runs, which share a schedule. A trigger may give each seed a different step.
switch_point merge_switch(const std::vector<arm>& runs, std::size_t n) {
  switch_point merged = runs.front().switches[n];
  std::int64_t last = merged.step;
  double before = 0, after = 0;
  std::vector<std::string> reasons;
  for (const arm& a : runs) {
    const switch_point& s = a.switches[n];
    merged.step = std::min(merged.step, s.step);
    last = std::max(last, s.step);
    before += s.loss_before.value_or(std::nan(""));
    after += s.loss_after.value_or(std::nan(""));
    const std::string kind = s.reason.empty() ? "step" : s.reason.substr(0, s.reason.find(' '));
    if (std::find(reasons.begin(), reasons.end(), kind) == reasons.end()) reasons.push_back(kind);
  }
  const auto mean = [&](double sum) {
    return std::isfinite(sum) ? maybe(sum / static_cast<double>(runs.size())) : std::nullopt;
  };
  merged.loss_before = mean(before);
  merged.loss_after = mean(after);
  merged.reason = reasons == std::vector<std::string>{"step"} ? "" : join(reasons);
  merged.spread = last - merged.step;
  return merged;
}

/// Evaluations that every seed has.
std::vector<switch_point> merge_switches(const std::vector<arm>& runs) {
  std::vector<switch_point> merged;
  const auto has = [&](const arm& a) { return a.switches.size() > merged.size(); };
  while (std::all_of(runs.begin(), runs.end(), has)) merged.push_back(merge_switch(runs, merged.size()));
  return merged;
}

arm_status worst_status(const std::vector<arm>& runs) {
  for (const arm_status s : {arm_status::diverged, arm_status::incomplete, arm_status::stopped}) {
    if (std::any_of(runs.begin(), runs.end(), [&](const arm& a) { return a.status == s; })) return s;
  }
  return arm_status::ok;
}

arm merge(std::vector<arm> runs) {
  std::sort(runs.begin(), runs.end(), [](const arm& a, const arm& b) { return a.seeds[0].seed < b.seeds[0].seed; });
  arm merged = runs.front();
  if (runs.size() == 1) return merged;
  merged.seeds.clear();
  json seeds = json::array();
  for (const arm& a : runs) {
    if (identity(a) != identity(merged)) {
      throw io::error(a.file + ": arm \"" + a.name + "\" differs from " + merged.file +
                      " in more than its seed; give it another name");
    }
    merged.seeds.push_back(a.seeds[0]);
    seeds.push_back(a.seeds[0].seed);
    merged.index = std::min(merged.index, a.index);
  }
  merged.start["seed"] = seeds;
  merged.train =
      mean_points(runs, &arm::train, &train_point::loss, [](const train_point&, const train_point&) { return true; });
  merged.evals = mean_points(runs, &arm::evals, &eval_point::loss,
                             [](const eval_point& p, const eval_point& q) { return p.recipe == q.recipe; });
  merged.switches = merge_switches(runs);
  merged.status = worst_status(runs);
  merged.seconds = mean_of(runs, &arm::seconds);
  merged.initial_loss = mean_of(runs, &arm::initial_loss);
  merged.final_loss = mean_of(runs, &arm::final_loss);
  merged.best_loss = mean_of(runs, &arm::best_loss);
  merged.window_losses.clear();
  for (const arm& a : runs) {
    merged.step = std::min(merged.step, a.step);
    merged.tokens = std::min(merged.tokens, a.tokens);
  }
  return merged;
}

estimate estimate_of(const std::vector<double>& values) {
  estimate e;
  e.count = static_cast<int>(values.size());
  if (values.empty()) return e;
  e.mean = study_statistics::mean(values);
  if (values.size() < 2) return e;
  e.deviation = study_statistics::deviation(values);
  e.half_width = student_t(e.count - 1) * *e.deviation / std::sqrt(static_cast<double>(values.size()));
  return e;
}

}  // namespace

double student_t(int freedom) { return study_statistics::student_quantile(0.95, freedom); }

std::vector<arm> merge_seeds(std::vector<arm> logs) {
  std::vector<std::vector<arm>> groups;
  for (std::size_t i = 0; i < logs.size(); ++i) {
    logs[i].index = i;
    arm& log = logs[i];
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g[0].name == log.name; });
    if (group == groups.end()) {
      groups.push_back({std::move(log)});
      continue;
    }
    for (const arm& other : *group) {
      if (other.seeds[0].seed != log.seeds[0].seed) continue;
      throw io::error(log.file + ": arm \"" + log.name + "\" was already read from " + other.file +
                      " with the same seed; each log must have its own name or seed");
    }
    group->push_back(std::move(log));
  }
  std::vector<arm> arms;
  for (std::vector<arm>& g : groups) arms.push_back(merge(std::move(g)));
  for (std::size_t i = 0; i < arms.size(); ++i) arms[i].index = i;
  return arms;
}

std::optional<estimate> final_losses(const arm& a) {
  std::vector<double> losses;
  for (const seed_result& s : a.seeds) {
    if (!s.final_loss) return std::nullopt;
    losses.push_back(*s.final_loss);
  }
  return estimate_of(losses);
}

std::optional<estimate> final_gap(const arm& a, const arm& b) {
  std::vector<double> differences;
  const bool single = a.seeds.size() == 1 && b.seeds.size() == 1;
  for (const seed_result& x : a.seeds) {
    for (const seed_result& y : b.seeds) {
      if ((x.seed != y.seed && !single) || !x.final_loss || !y.final_loss || x.tokens != y.tokens) continue;
      differences.push_back(*x.final_loss - *y.final_loss);
    }
  }
  if (differences.empty()) return std::nullopt;
  return estimate_of(differences);
}

bool is_resolved(const estimate& gap) {
  if (!gap.half_width) return std::fabs(gap.mean) > one_seed_resolution;
  return std::fabs(gap.mean) > *gap.half_width;
}

bool has_several_seeds(const comparison& c) {
  return std::any_of(c.arms.begin(), c.arms.end(), [](const arm& a) { return a.seeds.size() > 1; });
}

}  // namespace rotoscale::program::report_parts
