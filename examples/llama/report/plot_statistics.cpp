// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Plots of statistics.jsonl: for each figure of an operand six panels, one a GEMM and operand, and for weight gradients
// three; over training (means over decoder layers) and over depth (the last observed step).

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "report/plot_parts.hpp"

namespace rotoscale::llama_program::report_parts {

namespace {

struct figure {
  const char* id;
  const char* key;  ///< in statistics.jsonl
  const char* title;
  bool log_scale;
};
constexpr figure operand_figures[] = {{"sqnr", "sqnr_db", "SQNR (dB)", false},
                                      {"flushed", "flushed", "Share flushed to zero", false},
                                      {"saturated", "saturated", "Share saturated", false},
                                      {"crest", "rotated_crest", "Crest factor of what the blocks saw", false},
                                      {"amax", "amax", "Amax", true},
                                      {"spread", "spread_mean", "Spread of block scales along a row (binades)", false}};
constexpr figure gradient_figures[] = {{"", "relative_error", "Relative error", false},
                                       {"", "cosine", "Cosine", false},
                                       {"", "norm_to_noise", "Norm to quantization noise", true}};

struct operand_name {
  const char* tensor;
  const char* gemm;
  const char* title;
};
constexpr operand_name operands[] = {{"x", "fprop", "fprop: x"},   {"w", "fprop", "fprop: w"},
                                     {"dy", "dgrad", "dgrad: dy"}, {"w", "dgrad", "dgrad: w"},
                                     {"dy", "wgrad", "wgrad: dy"}, {"x", "wgrad", "wgrad: x"}};

struct panel {
  std::string title;
  std::vector<series> all;
  bool log_scale = false;
  bool marks_stall = false;
};

using filter = std::function<bool(const observation&)>;

/// Mean over decoder layers of each observed step.
std::vector<xy> over_training(const arm& a, const filter& wanted, const char* key) {
  std::map<std::int64_t, std::pair<double, int>> sums;
  for (const observation& o : a.observations) {
    const auto at = o.numbers.find(key);
    if (!o.layer || !wanted(o) || at == o.numbers.end()) continue;
    sums[o.step].first += at->second;
    ++sums[o.step].second;
  }
  std::vector<xy> points;
  for (const auto& [step, sum] : sums) points.push_back({static_cast<double>(step), sum.first / sum.second});
  return points;
}

/// The last observed step; a layer's four linear layers follow each other at quarters.
std::vector<xy> over_depth(const arm& a, const filter& wanted, const char* key) {
  const auto place = [](const std::string& linear) {
    constexpr const char* order[] = {"qkv", "o", "gate_up", "down"};
    return static_cast<double>(std::find(std::begin(order), std::end(order), linear) - std::begin(order)) / 4;
  };
  std::int64_t last = -1;
  for (const observation& o : a.observations) last = std::max(last, o.step);
  std::vector<xy> points;
  for (const observation& o : a.observations) {
    const auto at = o.numbers.find(key);
    if (o.step != last || !o.layer || !wanted(o) || at == o.numbers.end()) continue;
    points.push_back({static_cast<double>(*o.layer) + place(o.linear), at->second});
  }
  std::sort(points.begin(), points.end(), [](const xy& p, const xy& q) { return p.x < q.x; });
  return points;
}

panel make_panel(const comparison& c, const std::string& title, const filter& wanted, const figure& f, bool depth) {
  panel p{title, {}, f.log_scale, false};
  for (const arm& a : c.arms) {
    series s{a.name, color_of(c, a), &a == &c.base(), {}};
    s.points = depth ? over_depth(a, wanted, f.key) : over_training(a, wanted, f.key);
    if (f.log_scale) std::erase_if(s.points, [](const xy& q) { return !(q.y > 0); });
    if (s.points.empty()) continue;
    // Adapters' own GEMMs are BF16: the line is not about their noise.
    p.marks_stall = p.marks_stall || (std::string_view(f.key) == "norm_to_noise" && !trains_adapters(a));
    p.all.push_back(std::move(s));
  }
  return p;
}

range x_range(const std::vector<panel>& panels) {
  range x{0, 1};
  for (const panel& p : panels)
    for (const series& s : p.all)
      for (const xy& q : s.points) x.high = std::max(x.high, q.x);
  return x;
}

std::string panel_commands(const panel& p, const std::string& id) {
  std::vector<double> values;
  for (const series& s : p.all)
    for (const xy& q : s.points) values.push_back(p.log_scale ? std::log10(q.y) : q.y);
  if (p.marks_stall) values.push_back(std::log10(stall_ratio));
  range y = padded(values, false);
  if (p.log_scale) y = {std::pow(10, y.low), std::pow(10, y.high)};
  std::string s = "set title " + gnuplot_string(p.title) + "\n";
  s += p.log_scale ? "set logscale y\nset format y '%.0e'\n" : "unset logscale y\nset format y '%g'\n";
  s += "set yrange [" + exact(y.low) + ":" + exact(y.high) + "]\n";
  if (p.all.empty()) return s + "plot NaN notitle\n";
  const std::string line =
      p.marks_stall ? exact(stall_ratio) + " with lines lw 1.2 dt 2 lc rgb '" + baseline_color + "' notitle" : "";
  return s + plot_blocks(id, p.all, line, false);
}

/// All panels, with the legend in the last place.
plot make_plot(const comparison& c, const std::string& id, const std::string& title, const std::string& caption,
               bool depth, const std::vector<panel>& panels) {
  plot made{id, title, caption, "", "", "", true};
  const range x = x_range(panels);
  std::string s =
      "reset\nset encoding utf8\nset border 3 lw 1 lc rgb '#7A7A7A'\nset tics nomirror out scale 0.6\n"
      "set grid lt 1 lw 0.6 lc rgb '#B0808080'\nunset key\nset multiplot layout " +
      std::string(panels.size() > 3 ? "2,4" : "1,4") + " columnsfirst title " + gnuplot_string(title) +
      " font ',15'\nset xlabel '" + (depth ? "decoder layer" : "training step") + "'\nset xrange [" + exact(x.low) +
      ":" + exact(x.high) + "]\n";
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const std::string block = id + "_" + std::to_string(i) + "_";
    made.data += data_blocks(block, panels[i].all);
    s += panel_commands(panels[i], block);
  }
  std::vector<series> legend;
  for (const arm& a : c.arms) {
    if (!a.observations.empty()) legend.push_back({a.name, color_of(c, a), &a == &c.base(), {}});
  }
  s += "unset border\nunset tics\nunset grid\nunset title\nunset xlabel\nunset logscale y\nset xrange [0:1]\n"
       "set yrange [0:1]\nset key left center vertical Left reverse noenhanced samplen 2 spacing 1.25\nplot ";
  for (std::size_t i = 0; i < legend.size(); ++i) {
    s += (i > 0 ? ", \\\n  " : "") + std::string("NaN ") + style(legend[i]) + " title " +
         gnuplot_string(legend_name(legend[i].title));
  }
  made.script = s + "\nunset multiplot\n";
  return made;
}

std::string plot_id(const char* figure_id, bool depth) {
  return std::string(figure_id) + (depth ? "_depth" : "_training");
}

std::string where(bool depth) {
  return depth ? " at each linear layer (query-key-value, output, gate-up, down) in the last observed step"
               : " over training, means over the decoder layers' linear layers";
}

}  // namespace

std::vector<std::string> statistics_plot_ids() {
  std::vector<std::string> ids;
  for (const bool depth : {false, true}) {
    for (const figure& f : operand_figures) ids.push_back(plot_id(f.id, depth));
    ids.push_back(plot_id("gradient", depth));
  }
  return ids;
}

void add_statistics_plots(const comparison& c, std::vector<plot>& plots) {
  if (std::none_of(c.arms.begin(), c.arms.end(), [](const arm& a) { return !a.observations.empty(); })) return;
  for (const bool depth : {false, true}) {
    for (const figure& f : operand_figures) {
      std::vector<panel> panels;
      for (const operand_name& name : operands) {
        panels.push_back(make_panel(
            c, name.title,
            [&](const observation& o) {
              return o.event == "operand" && o.tensor == name.tensor && o.gemm == name.gemm;
            },
            f, depth));
      }
      plots.push_back(make_plot(c, plot_id(f.id, depth), f.title, f.title + where(depth) + ".", depth, panels));
    }
    std::vector<panel> panels;
    for (const figure& f : gradient_figures) {
      panels.push_back(make_panel(
          c, f.title, [](const observation& o) { return o.event == "gradient"; }, f, depth));
    }
    const bool marks_stall = std::any_of(panels.begin(), panels.end(), [](const panel& p) { return p.marks_stall; });
    const bool adapters = std::any_of(c.arms.begin(), c.arms.end(),
                                      [](const arm& a) { return trains_adapters(a) && !a.observations.empty(); });
    plots.push_back(make_plot(
        c, plot_id("gradient", depth), "Weight gradients against FP32",
        "Weight gradients against an FP32 GEMM over the same tensors" + where(depth) + "." +
            (marks_stall ? " The dashed line is √3, below which training is expected to stall." : "") +
            (adapters ? " Where adapters train, their own GEMMs are BF16: noise of the quantized base is not in it."
                      : ""),
        depth, panels));
  }
}

}  // namespace rotoscale::llama_program::report_parts
