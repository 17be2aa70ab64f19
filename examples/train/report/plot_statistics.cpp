// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Plots of statistics.jsonl. Each figure of operands has six panels, one for a GEMM and operand. Gradients have three,
// one for each reference. Each is drawn over training (means over decoder layers) and over depth (the last observed
// step).

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "report/plot_parts.hpp"

namespace rotoscale::program::report_parts {

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

/// References of gradients. The line at √3 excludes adapters' GEMMs, which are BF16.
struct gradient_reference {
  const char* id;
  const char* event;  ///< of statistics.jsonl
  const char* title;
  const char* caption;
  bool of_own_gemm;
};
constexpr gradient_reference gradient_references[] = {
    {"gradient", "gradient", "Weight gradients against FP32",
     "Weight gradients against an FP32 GEMM over the same tensors", true},
    {"noise", "noise", "Gradients against a backward pass in BF16",
     "Gradients against a forward and backward pass in BF16 on the same weights and tokens", false}};

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

/// Means of the values at each x, in order of x.
class means_by_x {
 public:
  void add(double x, double y) {
    sums_[x].first += y;
    ++sums_[x].second;
  }
  std::vector<xy> points() const {
    std::vector<xy> found;
    for (const auto& [x, sum] : sums_) found.push_back({x, sum.first / sum.second});
    return found;
  }

 private:
  std::map<double, std::pair<double, int>> sums_;
};

/// Mean over decoder layers of each observed step.
std::vector<xy> over_training(const arm& a, const filter& wanted, const char* key) {
  means_by_x means;
  for (const observation& o : a.observations) {
    const auto at = o.numbers.find(key);
    if (o.layer && wanted(o) && at != o.numbers.end()) means.add(static_cast<double>(o.step), at->second);
  }
  return means.points();
}

/// The four linear layers of a decoder layer, in statistics.jsonl and in the legend.
constexpr struct {
  const char *name, *title;
} linears[] = {{"qkv", "qkv"}, {"o", "o"}, {"gate_up", "gate-up"}, {"down", "down"}};

/// One linear layer at the last observed step, by decoder layer. Of several matrices (adapters) the mean.
std::vector<xy> over_depth(const arm& a, const filter& wanted, const char* key, const char* linear) {
  std::int64_t last = -1;
  for (const observation& o : a.observations) last = wanted(o) ? std::max(last, o.step) : last;
  means_by_x means;
  for (const observation& o : a.observations) {
    const auto at = o.numbers.find(key);
    if (o.step != last || !o.layer || o.linear != linear || !wanted(o) || at == o.numbers.end()) continue;
    means.add(static_cast<double>(*o.layer), at->second);
  }
  return means.points();
}

panel make_panel(const comparison& c, const std::string& title, const filter& wanted, const figure& f, bool depth,
                 bool of_own_gemm = true) {
  panel p{title, {}, f.log_scale, false};
  for (const arm& a : c.arms) {
    for (int linear = depth ? 0 : -1; linear < (depth ? static_cast<int>(std::size(linears)) : 0); ++linear) {
      series s{a.name, color_of(c, a), &a == &c.base(), {}, linear};
      s.points = depth ? over_depth(a, wanted, f.key, linears[linear].name) : over_training(a, wanted, f.key);
      if (f.log_scale) std::erase_if(s.points, [](const xy& q) { return !(q.y > 0); });
      if (s.points.empty()) continue;
      const bool has_line = std::string_view(f.key) == "norm_to_noise" && !(of_own_gemm && trains_adapters(a));
      p.marks_stall = p.marks_stall || has_line;
      p.all.push_back(std::move(s));
    }
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
      ":" + exact(x.high) + "]\n" + (depth && x.high <= 8 ? "set xtics 1\n" : "");
  for (std::size_t i = 0; i < panels.size(); ++i) {
    const std::string block = id + "_" + std::to_string(i) + "_";
    made.data += data_blocks(block, panels[i].all);
    s += panel_commands(panels[i], block);
  }
  std::vector<series> legend;
  for (const arm& a : c.arms) {
    if (!a.observations.empty()) legend.push_back({a.name, color_of(c, a), &a == &c.base(), {}});
  }
  for (int linear = 0; depth && linear < static_cast<int>(std::size(linears)); ++linear) {
    legend.push_back({linears[linear].title, 0, true, {}, linear});
  }
  s += "unset border\nunset tics\nunset grid\nunset title\nunset xlabel\nunset logscale y\nset xrange [0:1]\n"
       "set yrange [0:1]\nset key left center vertical Left reverse noenhanced samplen 2 spacing 1.25\nplot ";
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const bool color_alone = depth && legend[i].linear < 0;  // markers say which linear layer
    s += (i > 0 ? ", \\\n  " : "") + std::string("NaN ") +
         (color_alone ? "with lines lw 1.8" + color_text(legend[i]) : style(legend[i])) + " title " +
         gnuplot_string(legend_name(legend[i].title));
  }
  made.script = s + "\nunset multiplot\n";
  return made;
}

std::string plot_id(const char* figure_id, bool depth) {
  return std::string(figure_id) + (depth ? "_depth" : "_training");
}

std::string where(bool depth) {
  return depth ? " by decoder layer in the last observed step, a line for each linear layer"
               : " over training, means over the decoder layers' linear layers";
}

/// Three panels; none if no run was compared with that reference.
void add_gradient_plot(const comparison& c, const gradient_reference& reference, bool depth, std::vector<plot>& plots) {
  const auto has = [&](const arm& a) {
    return std::any_of(a.observations.begin(), a.observations.end(),
                       [&](const observation& o) { return o.event == reference.event; });
  };
  if (!reference.of_own_gemm && std::none_of(c.arms.begin(), c.arms.end(), has)) return;
  std::vector<panel> panels;
  for (const figure& f : gradient_figures) {
    panels.push_back(make_panel(
        c, f.title, [&](const observation& o) { return o.event == reference.event; }, f, depth, reference.of_own_gemm));
  }
  const bool marks_stall = std::any_of(panels.begin(), panels.end(), [](const panel& p) { return p.marks_stall; });
  const bool adapters = reference.of_own_gemm && std::any_of(c.arms.begin(), c.arms.end(), [](const arm& a) {
                          return trains_adapters(a) && !a.observations.empty();
                        });
  plots.push_back(make_plot(
      c, plot_id(reference.id, depth), reference.title,
      reference.caption + where(depth) + "." +
          (marks_stall ? " The dashed line is √3, below which training is expected to stall." : "") +
          (adapters ? " Where adapters train, their own GEMMs are BF16: noise of the quantized base is not in it."
                    : ""),
      depth, panels));
}

}  // namespace

std::vector<std::string> statistics_plot_ids() {
  std::vector<std::string> ids;
  for (const bool depth : {false, true}) {
    for (const figure& f : operand_figures) ids.push_back(plot_id(f.id, depth));
    for (const gradient_reference& r : gradient_references) ids.push_back(plot_id(r.id, depth));
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
    for (const gradient_reference& r : gradient_references) add_gradient_plot(c, r, depth, plots);
  }
}

}  // namespace rotoscale::program::report_parts
