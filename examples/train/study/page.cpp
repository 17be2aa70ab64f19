// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "study/page.hpp"

#include <algorithm>
#include <cmath>

#include "rotoscale/io/atomic_file.hpp"

namespace rotoscale::program {

namespace {

using namespace report_parts;
using study_statistics::interval;

constexpr double resolutions[] = {0.01, 0.003};  ///< nats, for the number of seeds that they need

maybe low(const std::optional<interval>& i) { return i ? maybe(i->low) : std::nullopt; }
maybe high(const std::optional<interval>& i) { return i ? maybe(i->high) : std::nullopt; }

std::string interval_text(const std::optional<interval>& i) {
  return i ? "[" + signed_fixed(i->low, 4) + ", " + signed_fixed(i->high, 4) + "]" : none;
}

std::string seeds_for(const maybe& deviation, double difference) {
  return deviation ? fixed(study_statistics::pairs_needed(*deviation, difference), 0) : none;
}

/// An arm's row in the tables.
struct arm_row {
  std::string name;
  int ok = 0, ended = 0, missed = 0;  ///< missed: of the ended ones, did not converge
  sample_summary final, last, average;

  const sample_summary& at(endpoint e) const {
    return e == endpoint::final ? final : e == endpoint::last ? last : average;
  }
  sample_summary gap;  ///< final loss minus the baseline's, over pairs; no pairs for the baseline
  maybe tokens;        ///< mean over the runs that reached the target
};

std::vector<arm_row> rows_of(const study_results& r) {
  std::vector<arm_row> rows;
  const losses_by_seed base = losses(r, r.study.baseline, endpoint::final);
  for (const study_arm& a : r.study.arms) {
    arm_row row;
    row.name = a.name;
    std::vector<double> tokens;
    for (const study_run* run : r.of(a.name)) {
      if (run->outcome == run_outcome::unfinished) continue;
      ++row.ended;
      row.ok += run->outcome == run_outcome::ok;
      const maybe reached = tokens_to_target(r, *run);
      if (reached) tokens.push_back(*reached);
      row.missed += !reached;
    }
    if (!tokens.empty()) row.tokens = study_statistics::mean(tokens);
    const losses_by_seed own = losses(r, a.name, endpoint::final);
    row.final = summarize(values_of(own));
    row.last = summarize(values_of(losses(r, a.name, endpoint::last)));
    row.average = summarize(values_of(losses(r, a.name, endpoint::average)));
    if (a.name != r.study.baseline) row.gap = summarize(paired_differences(own, base), true);
    rows.push_back(std::move(row));
  }
  return rows;
}

/// Column of the moving average's spread, in tables of studies that have one.
constexpr std::ptrdiff_t average_column = 5;

std::vector<std::string> head_of(const study_results& r) {
  std::vector<std::string> head = {"arm",
                                   "runs",
                                   "final",
                                   "s.d.",
                                   "s.d. last " + std::to_string(r.study.last_evaluations),
                                   "gap to " + r.study.baseline,
                                   "95 % (Student)",
                                   "95 % (bootstrap)",
                                   "seeds for 0.01",
                                   "0.003",
                                   "tokens to " + fixed(r.target, 4),
                                   "did not converge"};
  if (has_average(r)) head.insert(head.begin() + average_column, "s.d. average");
  return head;
}

std::vector<std::string> cells_of(const study_results& r, const arm_row& row) {
  const bool is_base = row.name == r.study.baseline;
  const std::string ended = std::to_string(row.ended), missed = std::to_string(row.missed);
  std::vector<std::string> cells = {row.name,
                                    row.ok == row.ended ? ended : std::to_string(row.ok) + " of " + ended,
                                    row.final.count > 0 ? fixed(row.final.mean, 4) : none,
                                    fixed(row.final.deviation, 4),
                                    fixed(row.last.deviation, 4),
                                    is_base             ? "baseline"
                                    : row.gap.count > 0 ? signed_fixed(row.gap.mean, 4)
                                                        : none,
                                    is_base ? "" : interval_text(row.gap.student),
                                    is_base ? "" : interval_text(row.gap.bootstrap),
                                    is_base ? "" : seeds_for(row.gap.deviation, resolutions[0]),
                                    is_base ? "" : seeds_for(row.gap.deviation, resolutions[1]),
                                    row.tokens ? grouped(std::llround(*row.tokens)) : none,
                                    row.missed == 0 ? "0" : missed + " of " + ended};
  if (has_average(r)) cells.insert(cells.begin() + average_column, fixed(row.average.deviation, 4));
  return cells;
}

/// The rules that the figures follow, in plain text.
std::string rules(const study_results& r) {
  const std::string target =
      r.study.target > 0 ? "stated by the study" : "the baseline's mean + 2 s.d. at its last evaluation";
  return "Losses in nats per token; gaps are means over pairs of equal seeds. Intervals hold one gap with 95 %: with " +
         std::to_string(r.study.arms.size()) +
         " arms some miss. Seeds for a difference: pairs that find it with a power of 80 % at 5 % (Student), from the "
         "spread of the pairs so far. Target: " +
         fixed(r.target, 4) + ", " + target +
         "; tokens by linear interpolation between evaluations, means over the runs that reached it. A run did not "
         "converge if it diverged or failed, or if no evaluation reached the target.";
}

/// Failed and diverged runs, a line each.
std::vector<std::string> lost_runs(const study_results& r) {
  std::vector<std::string> lines;
  for (const study_run& run : r.runs) {
    if (run.outcome != run_outcome::diverged && run.outcome != run_outcome::failed) continue;
    lines.push_back(run.arm + " seed " + std::to_string(run.seed) + ": " + name_of(run.outcome) +
                    (run.reason.empty() ? "" : ": " + one_line(run.reason)));
  }
  return lines;
}

std::string table_html(const std::string& caption, const std::vector<std::vector<std::string>>& rows) {
  std::string s = "<div class=\"scroll\">\n<table>\n<caption>" + escape_html(caption) + "</caption>\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    s += i == 0 ? "<thead><tr>" : "<tr>";
    for (std::size_t j = 0; j < rows[i].size(); ++j) {
      const std::string tag = i == 0 || j == 0 ? "th" : "td", name = j == 0 ? " class=\"name\"" : "";
      s += "<" + tag + name + ">" + escape_html(rows[i][j]) + "</" + tag + ">";
    }
    s += i == 0 ? "</tr></thead>\n<tbody>\n" : "</tr>\n";
  }
  return s + "</tbody>\n</table>\n</div>\n";
}

std::string runs_csv(const study_results& r) {
  std::string s = csv_line({"arm", "seed", "outcome", "record", "step", "tokens", "val_loss", "reason"});
  for (const study_run& run : r.runs) {
    if (run.outcome == run_outcome::unfinished) continue;
    const std::string seed = std::to_string(run.seed), outcome = name_of(run.outcome);
    for (const eval_point& e : run.evals) {
      s += csv_line({run.arm, seed, outcome, "eval", std::to_string(e.step), e.tokens ? std::to_string(*e.tokens) : "",
                     exact(e.loss), ""});
    }
    s += csv_line({run.arm, seed, outcome, "end", std::to_string(run.step), std::to_string(run.tokens),
                   exact(run.final_loss), run.reason});
  }
  return s;
}

std::string study_csv(const study_results& r) {
  std::string s = csv_line({"arm", "endpoint", "ended", "ok", "did_not_converge", "mean", "sd", "low", "high",
                            "tokens_to_target", "target"});
  for (const arm_row& row : rows_of(r)) {
    for (const endpoint e : endpoints_of(r)) {
      const sample_summary& x = row.at(e);
      s += csv_line({row.name, name_of(e), std::to_string(row.ended), std::to_string(row.ok),
                     std::to_string(row.missed), x.count > 0 ? exact(x.mean) : "", exact(x.deviation),
                     exact(low(x.student)), exact(high(x.student)), exact(row.tokens), exact(r.target)});
    }
  }
  return s;
}

/// Every pair of arms, the later one minus the earlier one.
std::string pairs_csv(const study_results& r) {
  std::string s = csv_line({"arm", "minus", "endpoint", "pairs", "difference", "sd", "student_low", "student_high",
                            "bootstrap_low", "bootstrap_high", "seeds_for_0.01", "seeds_for_0.003"});
  for (std::size_t i = 0; i < r.study.arms.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::string &a = r.study.arms[i].name, &b = r.study.arms[j].name;
      for (const endpoint e : endpoints_of(r)) {
        const sample_summary x = summarize(paired_differences(losses(r, a, e), losses(r, b, e)), true);
        const auto seeds = [&](double d) { return x.deviation ? seeds_for(x.deviation, d) : ""; };
        s += csv_line({a, b, name_of(e), std::to_string(x.count), x.count > 0 ? exact(x.mean) : "", exact(x.deviation),
                       exact(low(x.student)), exact(high(x.student)), exact(low(x.bootstrap)), exact(high(x.bootstrap)),
                       seeds(resolutions[0]), seeds(resolutions[1])});
      }
    }
  }
  return s;
}

/// An evaluation of several runs: by seed; of two at one step, as at a switch, the later one.
struct curve_step {
  std::optional<std::int64_t> tokens;
  losses_by_seed losses;
};

std::map<std::int64_t, curve_step> curve_of(const study_results& r, const std::string& arm) {
  std::map<std::int64_t, curve_step> curve;
  for (const study_run* run : r.of(arm)) {
    if (run->outcome != run_outcome::ok) continue;
    for (const eval_point& e : run->evals) {
      if (!e.loss) continue;
      curve_step& at = curve[e.step];
      if (e.tokens) at.tokens = e.tokens;
      at.losses[run->seed] = *e.loss;
    }
  }
  return curve;
}

sample_summary gap_at(const std::map<std::int64_t, curve_step>& base, std::int64_t step, const losses_by_seed& own) {
  const auto at = base.find(step);
  return at == base.end() ? sample_summary() : summarize(paired_differences(own, at->second.losses));
}

std::string intervals_csv(const study_results& r) {
  std::string s = csv_line(
      {"arm", "step", "tokens", "runs", "mean", "sd", "low", "high", "gap", "gap_pairs", "gap_low", "gap_high"});
  const auto base = curve_of(r, r.study.baseline);
  for (const study_arm& a : r.study.arms) {
    for (const auto& [step, at] : curve_of(r, a.name)) {
      const sample_summary x = summarize(values_of(at.losses));
      const sample_summary gap = a.name == r.study.baseline ? sample_summary() : gap_at(base, step, at.losses);
      s += csv_line({a.name, std::to_string(step), at.tokens ? std::to_string(*at.tokens) : "", std::to_string(x.count),
                     exact(x.mean), exact(x.deviation), exact(low(x.student)), exact(high(x.student)),
                     gap.count > 0 ? exact(gap.mean) : "", gap.count > 0 ? std::to_string(gap.count) : "",
                     exact(low(gap.student)), exact(high(gap.student))});
    }
  }
  return s;
}

}  // namespace

std::string study_text(const study_results& r) {
  std::vector<std::vector<std::string>> rows = {head_of(r)};
  for (const arm_row& row : rows_of(r)) rows.push_back(cells_of(r, row));
  std::string s = aligned(rows, {0}) + rules(r) + "\n";
  for (const std::string& lost : lost_runs(r)) s += lost + "\n";
  return s;
}

std::string study_html(const study_results& r) {
  std::vector<std::vector<std::string>> rows = {head_of(r)}, pairs = {{"pair", "pairs", "difference", "s.d.",
                                                                       "95 % (Student)", "95 % (bootstrap)"}};
  for (const arm_row& row : rows_of(r)) rows.push_back(cells_of(r, row));
  for (std::size_t i = 0; i < r.study.arms.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const std::string &a = r.study.arms[i].name, &b = r.study.arms[j].name;
      const sample_summary x =
          summarize(paired_differences(losses(r, a, endpoint::final), losses(r, b, endpoint::final)), true);
      pairs.push_back({a + " − " + b, std::to_string(x.count), x.count > 0 ? signed_fixed(x.mean, 4) : none,
                       fixed(x.deviation, 4), interval_text(x.student), interval_text(x.bootstrap)});
    }
  }
  std::string s = "<section>\n<h2>Arms over seeds</h2>\n<p>" + escape_html(r.study.question) + "</p>\n" +
                  table_html(rules(r), rows);
  for (const std::string& lost : lost_runs(r)) s += "<p>" + escape_html(lost) + "</p>\n";
  return s + "</section>\n<section>\n<h2>Pairs of arms</h2>\n" +
         table_html("Differences of final losses over equal seeds.", pairs) + "</section>\n";
}

void write_study_files(const study_results& r, const std::filesystem::path& out) {
  io::write_file_atomically(out / "runs.csv", runs_csv(r));
  io::write_file_atomically(out / "study.csv", study_csv(r));
  io::write_file_atomically(out / "pairs.csv", pairs_csv(r));
  io::write_file_atomically(out / "intervals.csv", intervals_csv(r));
  io::write_json(out / "results.json", stored_results(r));
}

plot study_gap_plot(const study_results& r) {
  const auto base = curve_of(r, r.study.baseline);
  std::string data, command;
  std::vector<double> framed;
  double last = 1;
  std::size_t count = 0;
  for (const study_arm& a : r.study.arms) {
    if (a.name == r.study.baseline) continue;
    std::string block;
    const auto curve = curve_of(r, a.name);
    for (const auto& [step, at] : curve) {
      const sample_summary gap = gap_at(base, step, at.losses);
      if (gap.count == 0) continue;
      const interval i = gap.student.value_or(interval{gap.mean, gap.mean});
      block +=
          exact(static_cast<double>(step)) + " " + exact(gap.mean) + " " + exact(i.low) + " " + exact(i.high) + "\n";
      last = std::max(last, static_cast<double>(step));
      if (10 * step >= base.rbegin()->first) framed.insert(framed.end(), {i.low, i.high});
    }
    if (block.empty()) continue;
    const std::string name = "$band" + std::to_string(count);
    data += name + " << END\n" + block + "END\n";
    const series s{a.name, count++, false, {}};
    command += ", \\\n  " + name + " using 1:3:4 with filledcurves fs transparent solid 0.2 noborder" + color_text(s) +
               " notitle, \\\n  " + name + " using 1:2 " + style(s) + " title " + gnuplot_string(legend_name(a.name));
  }
  plot p{"gap", "", "", "", "", data};
  if (count == 0) return p;
  p.title = "Gap to " + r.study.baseline;
  p.caption = "Validation loss minus that of " + r.study.baseline +
              " at the same step: mean over pairs of seeds, and its interval of 95 % (Student) at each evaluation. The "
              "frame fits the last 90 % of the run; intervals.csv has all.";
  p.script =
      frame(p.title, "training step", "validation loss difference (nats per token)", {0, last}, padded(framed, true)) +
      "plot 0 with lines lw 1.2 lc rgb '" + baseline_color + "' title " +
      gnuplot_string(legend_name(r.study.baseline)) + command + "\n";
  return p;
}

}  // namespace rotoscale::program
