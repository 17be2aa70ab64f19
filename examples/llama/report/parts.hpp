// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the files of the report share: an arm as read from its log, the comparison of all arms, and the steps from logs
// to HTML. Private to the report; report.hpp is its interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/report.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::llama_program::report_parts {

using json = nlohmann::ordered_json;

/// A loss that may not exist: not reached, or not finite (JSON null).
using maybe = std::optional<double>;

// --- log.cpp ----------------------------------------------------------------------------------------------------

struct train_point {
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  maybe loss;
  maybe seconds;
};

struct eval_point {
  std::int64_t step = 0;
  std::optional<std::int64_t> tokens;
  maybe loss;
  std::string recipe;
};

struct switch_point {
  std::int64_t step = 0;
  std::string from;
  std::string to;
  maybe loss_before;
  maybe loss_after;    ///< of the same weights and windows
  std::string reason;  ///< "" where a step was reached
};

struct schedule_entry {
  std::int64_t from_step = 0;
  std::string name;
  std::string trigger;  ///< its kind; "" where the step alone decides
};

enum class arm_status { ok, stopped, diverged, incomplete };

/// One log without superseded records. Points are in order of steps; an evaluation just before a switch and one
/// just after it may share a step.
struct arm {
  std::string name;
  std::string file;
  std::size_t index = 0;  ///< position among the logs given: picks the colour, so it does not change with the ranking
  json start;
  std::vector<schedule_entry> schedule;
  std::vector<train_point> train;
  std::vector<eval_point> evals;
  std::vector<switch_point> switches;
  arm_status status = arm_status::incomplete;
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  maybe seconds;
  maybe initial_loss;
  maybe final_loss;
  maybe best_loss;
  std::vector<double> window_losses;
};

arm read_arm(const std::string& path);

/// "mxfp4_h16 -> fp8_delayed @620"
std::string recipe_text(const arm& a);
const char* status_text(arm_status status);
maybe tokens_per_second(const arm& a);

// --- compare.cpp ------------------------------------------------------------------------------------------------

struct standing {
  int rank = 0;  ///< 1 is the lowest final loss; 0: not ranked
  maybe ratio;   ///< final / initial
  maybe gap;     ///< final minus the baseline's final, after equally many tokens
  maybe error;   ///< paired standard error of the gap over validation windows
  maybe speed;   ///< tokens/s over the baseline's
};

struct comparison {
  std::vector<arm> arms;  ///< in order of the table
  std::vector<standing> standings;
  std::size_t baseline = 0;

  const arm& base() const { return arms[baseline]; }
};

struct difference {
  std::int64_t step = 0;
  double value = 0;
};

/// What an arm with a switch is measured against: the arm that ran the recipe switched to from the start, and the
/// twin that kept the recipe switched from. Either may be missing.
struct healing_partners {
  const arm* reference = nullptr;
  const arm* twin = nullptr;
};

comparison compare(std::vector<arm> arms, const std::string& baseline);

/// Standard error of mean(a - b) over validation windows, when both arms have the same (at least two) windows.
maybe paired_error(const arm& a, const arm& b);
maybe final_gap(const arm& a, const arm& b);

/// Validation loss of a minus that of b at every step at which both were evaluated.
std::vector<difference> gap_curve(const arm& a, const arm& b);
healing_partners find_partners(const comparison& c, const arm& healed);

/// The field of all start records when they agree, else null.
json shared_field(const comparison& c, const std::string& key);

// --- findings.cpp -----------------------------------------------------------------------------------------------

/// Paragraphs of plain text (not HTML), made from the numbers only.
std::vector<std::string> findings(const comparison& c);

// --- plot.cpp ---------------------------------------------------------------------------------------------------

struct plot {
  std::string id;  ///< file name without its ending
  std::string title;
  std::string caption;
  std::string script;  ///< gnuplot commands, without terminal and output
  std::string svg;     ///< for inlining into HTML; empty when gnuplot did not run
};

std::vector<plot> make_plots(const comparison& c);

/// Writes plots.gnuplot and runs it in `out`. Without gnuplot, or when it fails: one line on stderr, no svg.
void draw(std::vector<plot>& plots, const std::string& out);

// --- html.cpp ---------------------------------------------------------------------------------------------------

std::string html_page(const comparison& c, const std::vector<plot>& plots, const std::string& title);

// --- text.cpp ---------------------------------------------------------------------------------------------------

inline constexpr const char* none = "–";

std::string fixed(double value, int digits);
std::string fixed(const maybe& value, int digits);
/// With an explicit sign; a value that rounds to zero is "0.0000".
std::string signed_fixed(double value, int digits);
std::string gap_text(const standing& s, bool is_baseline);
/// Shortest text that reads back as the same number; empty for nothing.
std::string exact(const maybe& value);
std::string grouped(std::int64_t value);
std::string join(const std::vector<std::string>& items);
/// Control characters, which could steer a terminal or end a line, become spaces.
std::string one_line(std::string_view text);
std::string escape_html(std::string_view text);
std::string csv_field(std::string_view text);
std::string gnuplot_string(std::string_view text);
std::string text_table(const comparison& c);

}  // namespace rotoscale::llama_program::report_parts
