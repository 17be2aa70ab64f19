// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Parts of gnuplot commands. Private to the report's plots.
#pragma once

#include "report/parts.hpp"

namespace rotoscale::program::report_parts {

struct xy {
  double x = 0;
  double y = 0;
};

struct series {
  std::string title;
  std::size_t color = 0;
  bool is_baseline = false;
  std::vector<xy> points;
  int linear = -1;            ///< of a depth plot: which linear layer, shown by marker and dash
  bool is_published = false;  ///< of another model
};

struct range {
  double low = 0;
  double high = 0;
};

inline constexpr const char* baseline_color = "#7A7A7A";

/// " lc rgb '#0072B2'".
std::string color_text(const series& s);
/// Line, marker and colour.
std::string style(const series& s);
/// Colours go to the arms other than the baseline, in the order of the logs.
std::size_t color_of(const comparison& c, const arm& a);
/// A long name in the legend would leave no room for the curves; the table has it in full.
std::string legend_name(const std::string& name);
/// Room for all given values and for zero when asked, with a margin; never empty.
range padded(const std::vector<double>& values, bool with_zero);
/// Commands that set up a plot: title, labels, ranges, grid and legend.
std::string frame(const std::string& title, const std::string& x_label, const std::string& y_label, range x, range y);
/// Named blocks, $id0, $id1 and so on.
std::string data_blocks(const std::string& id, const std::vector<series>& all);
/// The plot command that draws them.
std::string plot_blocks(const std::string& id, const std::vector<series>& all, const std::string& before = "",
                        bool titles = true);

/// Plots of quantization over training and over depth, for runs with statistics.
void add_statistics_plots(const comparison& c, std::vector<plot>& plots);
/// File names of all possible plots.
std::vector<std::string> statistics_plot_ids();

}  // namespace rotoscale::program::report_parts
