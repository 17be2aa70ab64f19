// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The plots, drawn by gnuplot. One script holds data and commands, so plots.gnuplot can be edited and run again by
// hand. Names from logs reach gnuplot in single quotes and with text markup off.

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>

#include "report/plot_parts.hpp"
#include "report/published.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/io/file.hpp"
#include "shell_word.hpp"

namespace rotoscale::program::report_parts {

namespace {

/// Okabe and Ito's palette without its yellow and black, which vanish on a light and on a dark page.
constexpr std::array<const char*, 6> palette = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};
constexpr std::array<int, 5> markers = {7, 5, 9, 13, 11};
constexpr const char* published_color = "#6A3D9A";

}  // namespace

std::string color_text(const series& s) {
  const char* const color = s.is_published  ? published_color
                            : s.is_baseline ? baseline_color
                                            : palette[s.color % palette.size()];
  return " lc rgb '" + std::string(color) + "'";
}

std::string style(const series& s) {
  const std::size_t turn = s.color / palette.size();
  int dash = s.is_baseline ? 1 : static_cast<int>(1 + turn % 4);
  int marker = s.is_baseline ? 7 : markers[(s.color + turn) % markers.size()];
  if (s.is_published) dash = 2;
  if (s.linear >= 0) dash = 1 + s.linear, marker = markers[static_cast<std::size_t>(s.linear) % markers.size()];
  return "with linespoints lw 1.8 ps 0.55 pt " + std::to_string(marker) + " dt " + std::to_string(dash) + color_text(s);
}

std::size_t color_of(const comparison& c, const arm& a) { return a.index - (a.index > c.base().index ? 1 : 0); }

std::string legend_name(const std::string& name) {
  constexpr std::size_t limit = 28;
  std::size_t end = 0;
  for (std::size_t count = 0; end < name.size(); ++end) {
    const bool starts_character = (static_cast<unsigned char>(name[end]) & 0xC0) != 0x80;
    if (starts_character && ++count > limit) return name.substr(0, end) + "…";
  }
  return name;
}

namespace {

std::string number(double value) { return exact(value); }

/// Enough for gnuplot's choice of ticks, about five to ten in the range.
int decimals(range r) { return std::clamp(static_cast<int>(-std::floor(std::log10((r.high - r.low) / 10))), 0, 6); }

}  // namespace

std::string frame(const std::string& title, const std::string& x_label, const std::string& y_label, range x, range y) {
  return "reset\nset encoding utf8\nset border 3 lw 1 lc rgb '#7A7A7A'\nset tics nomirror out scale 0.6\n"
         "set grid lt 1 lw 0.6 lc rgb '#B0808080'\n"
         "set key outside right top vertical Left reverse noenhanced samplen 2 spacing 1.25\n"
         "set lmargin 12\nset tmargin 5\nset bmargin 4\n"
         "set label 1 " +
         gnuplot_string(title) +
         " at graph 0, graph 1.11 left font ',15'\n"
         "set format y '%." +
         std::to_string(decimals(y)) +
         "f'\n"
         "set xlabel " +
         gnuplot_string(x_label) + "\nset ylabel " + gnuplot_string(y_label) +
         "\n"
         "set xrange [" +
         number(x.low) + ":" + number(x.high) +
         "]\n"
         "set yrange [" +
         number(y.low) + ":" + number(y.high) + "]\n";
}

std::string data_blocks(const std::string& id, const std::vector<series>& all) {
  std::string data;
  for (std::size_t i = 0; i < all.size(); ++i) {
    data += "$" + id + std::to_string(i) + " << END\n";
    for (const xy& p : all[i].points) data += number(p.x) + " " + number(p.y) + "\n";
    data += "END\n";
  }
  return data;
}

std::string plot_blocks(const std::string& id, const std::vector<series>& all, const std::string& before, bool titles) {
  std::string plot = "plot " + before;
  for (std::size_t i = 0; i < all.size(); ++i) {
    plot += (i > 0 || !before.empty() ? ", \\\n  " : "") + std::string("$") + id + std::to_string(i) + " using 1:2 " +
            style(all[i]) + (titles ? " title " + gnuplot_string(legend_name(all[i].title)) : " notitle");
  }
  return plot + "\n";
}

namespace {

std::string zero_line(const std::string& title) {
  return "0 with lines lw 1.2 lc rgb '" + std::string(baseline_color) + "' title " + gnuplot_string(legend_name(title));
}

std::string switch_marks(const std::vector<std::int64_t>& steps) {
  std::string s;
  int tag = 10;
  for (const std::int64_t step : steps) {
    const std::string at = std::to_string(step);
    s += "set arrow " + std::to_string(tag) + " from first " + at + ", graph 0 to first " + at +
         ", graph 1 nohead lw 1.2 dt 2 lc rgb '#7A7A7A'\nset label " + std::to_string(tag) + " 'switch at step " + at +
         "' at first " + at + ", graph 1.025 center font ',11'\n";
    ++tag;
  }
  return s;
}

std::vector<std::int64_t> switch_steps(const comparison& c) {
  std::vector<std::int64_t> steps;
  for (const arm& a : c.arms)
    for (const switch_point& s : a.switches) steps.insert(steps.end(), {s.step, s.step + s.spread});
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::int64_t last_step(const comparison& c) {
  std::int64_t last = 1;
  for (const arm& a : c.arms)
    if (!a.evals.empty()) last = std::max(last, a.evals.back().step);
  return last;
}

}  // namespace

range padded(const std::vector<double>& values, bool with_zero) {
  range r{with_zero || values.empty() ? 0 : values.front(), with_zero || values.empty() ? 0 : values.front()};
  for (const double v : values) r = {std::min(r.low, v), std::max(r.high, v)};
  const double margin = r.high > r.low ? 0.06 * (r.high - r.low) : std::max(1e-3, 0.01 * std::fabs(r.high));
  return {r.low - margin, r.high + margin};
}

namespace {

/// Notes points outside the frame.
std::string outside_text(const std::vector<series>& all, range x, range y) {
  std::size_t count = 0;
  for (const series& s : all)
    count += static_cast<std::size_t>(std::count_if(s.points.begin(), s.points.end(), [&](const xy& p) {
      return p.x >= x.low && p.x <= x.high && (p.y < y.low || p.y > y.high);
    }));
  if (count == 0) return "";
  return count == 1 ? " One point lies outside the frame."
                    : " " + std::to_string(count) + " points lie outside the frame.";
}

std::string after_space(const std::string& sentence) { return sentence.empty() ? "" : " " + sentence; }

bool finished(const arm& a) { return a.status == arm_status::ok || a.status == arm_status::stopped; }

/// Number of tokens from which the curves differ visibly: later losses span at most ten times the largest difference of
/// two arms. The last third of the evaluations is always shown. 0 for a single arm.
double tokens_where_arms_differ(const comparison& c) {
  std::map<std::int64_t, std::vector<double>> losses;
  for (const arm& a : c.arms) {
    for (const eval_point& e : a.evals) {
      if (finished(a) && e.loss && e.tokens) losses[*e.tokens].push_back(*e.loss);
    }
  }
  std::erase_if(losses, [](const auto& at) { return at.second.size() < 2; });
  if (losses.empty()) return 0;
  double low = 1e300, high = -1e300, difference = 0, from = 0;
  std::size_t later = 0;
  for (auto at = losses.rbegin(); at != losses.rend(); ++at, ++later) {
    const auto [least, most] = std::minmax_element(at->second.begin(), at->second.end());
    low = std::min(low, *least), high = std::max(high, *most), difference = std::max(difference, *most - *least);
    if (later < 2 || 3 * later < losses.size() || high - low <= 10 * difference) from = static_cast<double>(at->first);
  }
  return from;
}

void add_loss_plot(const comparison& c, std::vector<plot>& plots) {
  double most = 1;
  for (const arm& a : c.arms)
    for (const eval_point& e : a.evals) most = std::max(most, static_cast<double>(e.tokens.value_or(0)));
  const double unit = most >= 2e9 ? 1e9 : most >= 2e6 ? 1e6 : most >= 2e3 ? 1e3 : 1;
  const std::string unit_text = unit == 1e9   ? " (billions)"
                                : unit == 1e6 ? " (millions)"
                                : unit == 1e3 ? " (thousands)"
                                              : "";
  const double begin = tokens_where_arms_differ(c), from = begin < most ? begin : 0;
  std::vector<series> all;
  std::vector<double> framed;
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    const arm& a = c.arms[i];
    series s{a.name, color_of(c, a), i == c.baseline, {}};
    for (const eval_point& e : a.evals) {
      if (!e.loss || !e.tokens || static_cast<double>(*e.tokens) < from) continue;
      s.points.push_back({static_cast<double>(*e.tokens) / unit, *e.loss});
      // A diverged arm must not squeeze the others into a line.
      if (finished(a) || !a.initial_loss || *e.loss <= 1.1 * *a.initial_loss) framed.push_back(*e.loss);
    }
    if (!s.points.empty()) all.push_back(std::move(s));
  }
  if (all.empty()) return;
  const range x{from / unit, most / unit};
  const range y = padded(framed, false);
  plots.push_back({"val_loss", "Validation loss",
                   "Validation loss against training tokens, all arms" +
                       std::string(from > 0 ? ", from where they can be told apart (curves.csv has all)." : ".") +
                       outside_text(all, x, y) + after_space(windows_note(c)),
                   frame("Validation loss", "training tokens" + unit_text, "validation loss (nats per token)", x, y) +
                       plot_blocks("loss", all),
                   "", data_blocks("loss", all)});
}

std::vector<xy> as_points(const std::vector<difference>& curve) {
  std::vector<xy> points;
  for (const difference& d : curve) points.push_back({static_cast<double>(d.step), d.value});
  return points;
}

void add_gap_plot(const comparison& c, std::vector<plot>& plots) {
  const double last = static_cast<double>(last_step(c));
  std::vector<series> all;
  std::vector<double> framed;
  std::vector<double> every;
  for (std::size_t i = 0; i < c.arms.size(); ++i) {
    if (i == c.baseline) continue;
    series s{c.arms[i].name, color_of(c, c.arms[i]), false, as_points(gap_curve(c.arms[i], c.base()))};
    for (const xy& p : s.points) {
      every.push_back(p.y);
      if (p.x >= 0.1 * last && c.arms[i].status != arm_status::diverged) framed.push_back(p.y);
    }
    if (!s.points.empty()) all.push_back(std::move(s));
  }
  if (all.empty()) return;
  const range x{0, last};
  const range y = padded(framed.empty() ? every : framed, true);
  const std::string title = "Gap to " + c.base().name;
  plots.push_back({"gap", title,
                   "Validation loss minus that of " + c.base().name + " at the same step; below zero is better than " +
                       c.base().name + ". The frame fits the last 90 % of the run." + outside_text(all, x, y) +
                       after_space(windows_note(c)),
                   frame(title, "training step", "validation loss difference (nats per token)", x, y) +
                       switch_marks(switch_steps(c)) + plot_blocks("gap", all, zero_line(c.base().name)),
                   "", data_blocks("gap", all)});
}

/// One curve per healed arm and one per twin, each minus the arm that ran the recipe switched to from the start.
std::vector<series> healing_series(const comparison& c, std::string& reference_name) {
  std::vector<series> all;
  for (const arm& a : c.arms) {
    const arm* reference = find_partners(c, a).reference;
    if (reference == nullptr) continue;
    const bool mixed = !reference_name.empty() && reference_name != reference->name;
    reference_name = mixed ? "the arm of the recipe switched to" : reference->name;
  }
  const auto add = [&](const arm& a, const arm& reference) {
    const std::string title = reference.name == reference_name ? a.name : a.name + " − " + reference.name;
    if (std::any_of(all.begin(), all.end(), [&](const series& s) { return s.title == title; })) return;
    series s{title, color_of(c, a), &a == &c.base(), as_points(gap_curve(a, reference))};
    if (!s.points.empty()) all.push_back(std::move(s));
  };
  for (const arm& a : c.arms) {
    const healing_partners p = find_partners(c, a);
    if (p.reference != nullptr) add(a, *p.reference);
    if (p.reference != nullptr && p.twin != nullptr) add(*p.twin, *p.reference);
  }
  return all;
}

void add_healing_plot(const comparison& c, std::vector<plot>& plots) {
  const std::vector<std::int64_t> steps = switch_steps(c);
  if (steps.empty()) return;
  std::string reference;
  const std::vector<series> all = healing_series(c, reference);
  if (all.empty()) return;
  const double last = static_cast<double>(last_step(c));
  const double first = static_cast<double>(steps.front());
  // The effect of the switch needs more room after it than before it.
  range x{std::max(0.0, first - 0.6 * (last - first)), last};
  if (!(x.high > x.low)) x = {0.8 * last, last};
  std::vector<double> framed;
  for (const series& s : all)
    for (const xy& p : s.points)
      if (p.x >= x.low && p.x <= x.high) framed.push_back(p.y);
  const range y = padded(framed, true);
  plots.push_back(
      {"healing", "Healing",
       "Around the switch: validation loss minus that of " + reference +
           " at the same step, for the arm that switches and for its twin that does not.",
       frame("Healing: gap to " + reference, "training step", "validation loss difference (nats per token)", x, y) +
           switch_marks(steps) + plot_blocks("healing", all, zero_line(reference)),
       "", data_blocks("healing", all)});
}

/// The shapes of AMD's curve and of the healed arms that have one.
void add_healing_shape_plot(const comparison& c, std::vector<plot>& plots) {
  std::vector<series> all;
  std::vector<double> framed;
  std::string scales;
  const auto add = [&](series s, int decimals, const healing_shape& shape) {
    scales += (scales.empty() ? "" : "; ") + s.title + ": " +
              (shape.missing.empty() ? signed_fixed(shape.before, decimals) : shape.missing);
    for (const shape_point& p : shape.points) {
      if (std::fabs(p.time) > 0.4) continue;
      s.points.push_back({p.time, p.gap});
      framed.push_back(p.gap);
    }
    if (!s.points.empty()) all.push_back(std::move(s));
  };
  bool healed = false;
  for (const arm& a : c.arms) {
    if (a.switches.empty()) continue;
    healed = true;
    const healing_partners p = find_partners(c, a);
    const switch_point& at = a.switches.back();
    healing_shape shape;
    shape.missing = "no arm to compare";
    if (p.reference != nullptr)
      shape = measure_shape(gaps_around_switch(a, *p.reference, at), at.step + at.spread, last_step(c));
    add({a.name, color_of(c, a), &a == &c.base(), {}}, gap_decimals(a), shape);
  }
  if (!healed) return;
  series amd{"AMD, Llama 2 70B LoRA", 0, false, {}};
  amd.is_published = true;
  add(amd, 4, measure_shape(amd_gaps_around_switch(), amd_switch_step, amd_run_steps));
  plots.push_back({"healing_shape", "Shape of healing, with AMD's",
                   "Gap to the arm of the recipe switched to, as a share of the magnitude of the last gap before the "
                   "(last) switch, against time since the switch as a share of the run. These gaps, in nats: " +
                       scales +
                       ". AMD's curve is of another model: Llama 2 70B LoRA (MLPerf Training v6.0, MXFP4 healed to FP8 "
                       "after step 339 of 550, mean of three runs against the mean of ten FP8 runs of v5.1, whose "
                       "learning rate and schedule differ). Only shapes can be compared.",
                   frame("Shape of healing", "steps since the switch / steps of the run", "gap / gap before the switch",
                         {-0.4, 0.4}, padded(framed, true)) +
                       plot_blocks("shape", all, zero_line("FP8")),
                   "", data_blocks("shape", all)});
}

std::string whole_script(const std::vector<plot>& plots) {
  std::string s = "# Run in this directory: gnuplot -d plots.gnuplot\n";
  for (const plot& p : plots) {
    const std::string svg = p.statistics ? "1280,720" : "960,540", png = p.statistics ? "2134,1200" : "1600,900";
    s += "\n" + p.data + "set terminal svg size " + svg +
         " noenhanced font 'sans-serif,14' background '#ffffff' name '" + p.id + "'\nset output '" + p.id + ".svg'\n" +
         p.script +
         "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {\n"
         "  set terminal pngcairo size " +
         png +
         " noenhanced background rgb 'white' font 'sans,11' fontscale 1.7 "
         "linewidth 1.7 pointscale 1.7\n"
         "} else {\n  set terminal png size " +
         png + " noenhanced\n}\nset output '" + p.id + ".png'\n" + p.script + "unset output\n";
  }
  return s;
}

void remove_plots(const std::string& out) {
  std::vector<std::string> ids = {"val_loss", "gap", "healing", "healing_shape"};
  for (const std::string& id : statistics_plot_ids()) ids.push_back(id);
  for (const std::string& id : ids)
    for (const char* ending : {".svg", ".png"}) {
      std::error_code ignored;
      std::filesystem::remove(std::filesystem::path(out) / (id + ending), ignored);
    }
}

std::string last_line(std::string text) {
  while (!text.empty() && std::strchr("\r\n \t", text.back()) != nullptr) text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

/// Runs plots.gnuplot in `directory`. Returns the exit status and the last line of the output.
std::pair<int, std::string> run_gnuplot(const std::string& directory) {
  // -d: ignores the user's settings file, which could change the plots.
  const std::string command = "cd " + shell_word(directory) + " && LC_ALL=C gnuplot -d plots.gnuplot 2>&1 </dev/null";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return {1, "it cannot be started"};
  std::string message;
  for (int c; (c = std::fgetc(pipe)) != EOF;) message += static_cast<char>(c);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 1, last_line(message)};
}

}  // namespace

std::vector<plot> make_plots(const comparison& c) {
  std::vector<plot> plots;
  add_loss_plot(c, plots);
  add_gap_plot(c, plots);
  add_healing_plot(c, plots);
  add_healing_shape_plot(c, plots);
  add_statistics_plots(c, plots);
  return plots;
}

void draw(std::vector<plot>& plots, const std::string& out) {
  namespace fs = std::filesystem;
  // Old and half-written plots must not be taken for plots of this report.
  remove_plots(out);
  io::write_file_atomically(fs::path(out) / "plots.gnuplot", whole_script(plots));
  const auto [status, message] = run_gnuplot(fs::absolute(out).string());
  if (status != 0) {
    remove_plots(out);
    std::cerr << (status == 127 ? "gnuplot is not on PATH: plots skipped"
                                : "gnuplot failed: plots skipped (" + io::printable(message) + ")")
              << "\n";
    return;
  }
  for (plot& p : plots) p.svg = io::read_raw_file(fs::path(out) / (p.id + ".svg"));
}

}  // namespace rotoscale::program::report_parts
