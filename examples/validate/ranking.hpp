// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The results of --identify and --fit for a GEMM, as text and as a report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::validate {

/// Explanations of a result, best first.
struct ranking {
  const char* what;                       ///< "models" or "parameters"
  kernel_use given;                       ///< the use relative to which explanations name options
  std::vector<explanation> all;           ///< at least one
  index_t elements = 0;                   ///< elements of the result, of which explanations may cover only a sample
  std::size_t tied = 0;                   ///< number of leading explanations with the same explained elements, if any
  std::size_t best = 0;                   ///< among these, the one with the fewest differences in all elements
  std::optional<index_t> different = {};  ///< number of those differences; unknown if no explanation covers the sample
  std::string told_file = {};             ///< file of --tell-apart, if requested
  std::vector<std::vector<std::size_t>> told = {};  ///< groups that the file tells apart; empty: not written

  index_t looked_at() const { return static_cast<index_t>(all.front().which.size()); }
  bool is_sample() const { return looked_at() < elements; }
  bool is_identical() const { return different == 0; }
  /// True if the tied explanations cover half of the elements. With less, telling them apart is pointless: alpha and
  /// beta derived from elements explain a few elements of any data.
  bool explains_half() const { return 2 * (all.front().explained + all.front().nan_bits) >= looked_at(); }
};

/// Ranks the explanations of d or of a sample of it. An explanation of the whole sample is compared with all of d.
ranking ranking_of(const char* what, const gemm_case& x, const kernel_use& given, std::vector<explanation> all,
                   bool any_nan, thread_pool& pool);

void print(const ranking& r);

/// Adds the ranking to the report.
void add_to(nlohmann::ordered_json& report, const ranking& r);

/// Writes the file of --report. Bytes that are not UTF-8, which JSON requires, become U+FFFD.
void write_report(const std::string& path, const nlohmann::ordered_json& report);

}  // namespace rotoscale::validate
