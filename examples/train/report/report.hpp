// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// `mini-llama report`: compares the logs of several training runs, one arm a log, and writes tables, plots and one
// self-contained HTML page. The output is a function of the logs alone (no clock), so a second run writes equal bytes.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace rotoscale::program {

struct report_options {
  /// JSON-lines files, or run directories that hold log.jsonl. Logs of one name are seeds of one arm. Or a study's
  /// directory, whose statistics are then written too (study/page.hpp).
  std::vector<std::string> logs;
  /// Directory for the results; created when missing.
  std::string out;
  /// Name of the arm that gaps are measured against. Empty: "bf16" when there is such an arm, else the first log.
  std::string baseline;
  /// Heading of report.html. Empty: a default.
  std::string title;
};

/// Writes summary.json, arms.csv, curves.csv, statistics.csv, report.html and plots.gnuplot. With gnuplot on PATH it
/// also writes the plots as .svg and .png. `table` receives the table. Arms are listed by final validation loss,
/// unranked ones last. Arms that seeds do not separate share a rank. Diverged and unfinished arms are reported, and the
/// result is 0 all the same. Throws io::error for logs that are missing, empty or not logs, naming file and record.
int write_report(const report_options& options, std::ostream& table);

}  // namespace rotoscale::program
