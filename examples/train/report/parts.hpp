// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Declarations that the report's files share: an arm as read from its log, the comparison of arms, the steps from logs
// to HTML. report.hpp is the interface.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rotoscale/io/json.hpp"
#include "rotoscale/nn/statistics.hpp"

namespace rotoscale::program::report_parts {

using json = nlohmann::ordered_json;
using nn::stall_ratio;

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
  maybe loss_after;         ///< of the same weights and windows
  std::string reason;       ///< "": its step was reached
  std::int64_t spread = 0;  ///< of several seeds, whose triggers fire at different steps: from the first to the last
};

/// Gradient norm over its difference from BF16's gradients, as a trigger measured it.
struct noise_point {
  std::int64_t step = 0;
  maybe ratio;
};

struct schedule_entry {
  std::int64_t from_step = 0;
  std::string name;
  std::string trigger;  ///< its kind; "": none
};

enum class arm_status { ok, stopped, diverged, incomplete };

/// A record of statistics.jsonl with numbers: of an operand (tensor and gemm), a gradient, or all gradients of a step.
struct observation {
  std::int64_t step = 0;
  std::string event;
  std::optional<std::int64_t> layer;  ///< none: the head, or a whole step
  std::string linear, tensor, gemm;   ///< empty: none
  std::map<std::string, double> numbers;
};

/// The result of one seed of an arm.
struct seed_result {
  json seed;  ///< of the start record; null: not in the log
  maybe final_loss;
  std::int64_t tokens = 0;
  arm_status status = arm_status::incomplete;
};

/// One log without superseded records, or the logs of several seeds with the means of their losses. Points are in order
/// of steps; an evaluation just before a switch and one just after it may share a step.
struct arm {
  std::string name;
  std::string file;
  std::size_t index = 0;           ///< position in the input: decides the colour, so ranking does not
  std::vector<seed_result> seeds;  ///< ascending, at least one
  json start;
  std::vector<schedule_entry> schedule;
  std::vector<train_point> train;
  std::vector<eval_point> evals;
  std::vector<switch_point> switches;
  std::vector<noise_point> noise;
  arm_status status = arm_status::incomplete;
  std::int64_t step = 0;
  std::int64_t tokens = 0;
  maybe seconds;
  maybe initial_loss;
  maybe final_loss;
  maybe best_loss;
  maybe average_loss;                 ///< of the weights' moving average, at the last evaluation
  std::vector<double> window_losses;  ///< of the last evaluation; empty for several seeds
  std::vector<observation> observations;
};

arm read_arm(const std::string& path);

/// "mxfp4_h16 -> fp8_delayed @620"
std::string recipe_text(const arm& a);
const char* status_text(arm_status status);
maybe tokens_per_second(const arm& a);
/// Do adapters train on a frozen base?
bool trains_adapters(const arm& a);
/// The section of a run's configuration that has the model's shape.
const char* model_section(const json& config);

// --- statistics.cpp ---------------------------------------------------------------------------------------------

/// The records of `file` that no resume superseded; empty without the file.
std::vector<observation> read_observations(const std::string& file);
/// statistics.csv: a line a record of every arm.
std::string statistics_csv(const std::vector<arm>& arms);

// --- seeds.cpp --------------------------------------------------------------------------------------------------

/// Least difference in nats that ranks two arms of one seed each. Of twelve arms of the demo's model with two seeds,
/// one arm's gap moved from 0.02 to 0.06, ten times the spread over validation windows.
inline constexpr double one_seed_resolution = 0.06;

/// A mean over seeds, or over pairs of equal seeds.
struct estimate {
  double mean = 0;
  int count = 0;
  maybe deviation;   ///< standard deviation, from two values on
  maybe half_width;  ///< of the mean's interval of 95 %, by Student's t
};

/// t with P(|T| < t) = 0.95 for `freedom` >= 1 degrees of freedom.
double student_t(int freedom);

/// Merges logs of one name as seeds of one arm. Throws io::error if their seeds are equal, or if anything else differs.
std::vector<arm> merge_seeds(std::vector<arm> logs);

struct comparison;
/// Final loss over seeds; nullopt if a seed has none.
std::optional<estimate> final_losses(const arm& a);
/// Final loss of a minus b, over pairs of equal seeds with equally many tokens. Single runs may have different seeds.
std::optional<estimate> final_gap(const arm& a, const arm& b);
/// Does the gap show which arm is lower? One pair must differ by one_seed_resolution; an interval must not contain
/// zero.
bool is_resolved(const estimate& gap);
bool has_several_seeds(const comparison& c);

// --- compare.cpp ------------------------------------------------------------------------------------------------

struct standing {
  int rank = 0;                   ///< 1 + the arms whose final loss is lower beyond doubt (is_resolved); 0: not ranked
  maybe ratio;                    ///< final / initial
  std::optional<estimate> final;  ///< over seeds
  std::optional<estimate> gap;    ///< final minus the baseline's final, after equally many tokens
  maybe window_error;  ///< standard error of the gap over validation windows: of the evaluation, not of the run
  maybe speed;         ///< tokens/s over the baseline's
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

/// Gaps around a switch. A point at the switch's step is on the side of its recipe.
struct gaps_around {
  std::vector<difference> before, after;
};

/// Arms to compare with an arm that switched: `reference` ran the new recipe from the start, `twin` kept the old one.
/// Either may be missing.
struct healing_partners {
  const arm* reference = nullptr;
  const arm* twin = nullptr;
};

comparison compare(std::vector<arm> arms, const std::string& baseline);

/// Standard error of mean(a - b) over validation windows, when both arms have the same (at least two) windows.
maybe window_error(const arm& a, const arm& b);

/// Validation loss of a minus b, at every step at which both were evaluated.
std::vector<difference> gap_curve(const arm& a, const arm& b);
gaps_around gaps_around_switch(const arm& a, const arm& b, const switch_point& at);
healing_partners find_partners(const comparison& c, const arm& healed);

/// The field of all start records if they agree, else null.
json shared_field(const comparison& c, const std::string& key);

// --- findings.cpp -----------------------------------------------------------------------------------------------

/// Paragraphs of plain text (not HTML), from the numbers only.
std::vector<std::string> findings(const comparison& c);

// --- plot.cpp ---------------------------------------------------------------------------------------------------

struct plot {
  std::string id;  ///< file name without its ending
  std::string title;
  std::string caption;
  std::string script;       ///< gnuplot commands, without terminal and output
  std::string svg;          ///< for inlining into HTML; empty when gnuplot did not run
  std::string data = {};    ///< gnuplot's data blocks, for each terminal once
  bool statistics = false;  ///< plots statistics of quantization: larger, in a separate section
};

std::vector<plot> make_plots(const comparison& c);

/// Writes plots.gnuplot and runs it in `out`. Without gnuplot, or when it fails: one line on stderr, no svg.
void draw(std::vector<plot>& plots, const std::string& out);

// --- html.cpp ---------------------------------------------------------------------------------------------------

/// `study`: sections in HTML that precede the ranking.
std::string html_page(const comparison& c, const std::vector<plot>& plots, const std::string& title,
                      const std::string& study = "");

// --- text.cpp ---------------------------------------------------------------------------------------------------

inline constexpr const char* none = "–";

std::string fixed(double value, int digits);
std::string fixed(const maybe& value, int digits);
/// With an explicit sign; a value that rounds to zero is "0.0000".
std::string signed_fixed(double value, int digits);
std::string gap_text(const standing& s, bool is_baseline);
/// Decimals of a gap: two for one seed, otherwise enough for two digits of the interval's half width.
int gap_decimals(const maybe& half_width);
/// Decimals of a point of a gap's curve, which has no interval.
int gap_decimals(const arm& a);
/// "+0.01", or with several seeds "+0.0123 [+0.0100, +0.0146]".
std::string estimate_text(const estimate& e);
/// Number of seeds with their status: "1", "3", "2 of 3".
std::string seeds_text(const arm& a);
/// A sentence, for table and curves, if the last evaluation has more windows than earlier ones; "" otherwise.
std::string windows_note(const comparison& c);
/// Explains ranks and brackets, for tables.
std::string table_note(const comparison& c);
/// Shortest text that reads back as the same number; empty for nothing.
std::string exact(const maybe& value);
std::string grouped(std::int64_t value);
std::string join(const std::vector<std::string>& items);
/// Control characters, which could steer a terminal or end a line, become spaces.
std::string one_line(std::string_view text);
std::string escape_html(std::string_view text);
/// Quoted as RFC 4180 requires.
std::string csv_field(std::string_view text);
/// Fields as a line.
std::string csv_line(const std::vector<std::string>& fields);
std::string gnuplot_string(std::string_view text);
/// Rows of equal length as columns; those in `left` are aligned at their left.
std::string aligned(const std::vector<std::vector<std::string>>& rows, const std::vector<std::size_t>& left);
std::string text_table(const comparison& c);

}  // namespace rotoscale::program::report_parts
