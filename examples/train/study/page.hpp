// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tables, CSV files and the plot of a study, which join the report's.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/plot_parts.hpp"
#include "study/results.hpp"

namespace rotoscale::program {

/// The table of arms for a terminal, and the rules in words.
std::string study_text(const study_results& r);
/// The same and the table of pairs as sections of the page.
std::string study_html(const study_results& r);
/// Writes runs.csv, study.csv, pairs.csv, intervals.csv and results.json.
void write_study_files(const study_results& r, const std::filesystem::path& out);
/// Gaps to the baseline along the curves with their intervals; without data if there are no pairs.
report_parts::plot study_gap_plot(const study_results& r);

}  // namespace rotoscale::program
