// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What --identify and --fit found of a GEMM, for a reader and for a report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::validate {

/// Explanations of a result, the best first.
struct ranking {
  const char* what;                       ///< "models" or "parameters"
  kernel_use given;                       ///< beside which explanations have options
  std::vector<explanation> all;           ///< at least one
  index_t elements = 0;                   ///< of the result; explanations are of these, or of a sample
  std::size_t tied = 0;                   ///< the first so many explain the same elements, if any
  std::size_t best = 0;                   ///< of these the one under which fewest of all elements differ
  std::optional<index_t> different = {};  ///< so many; unknown where a sample has been looked at that none explains
  std::string told_file = {};             ///< --tell-apart's, if it was asked for
  std::vector<std::vector<std::size_t>> told = {};  ///< those that it tells apart; empty: it was not written

  index_t looked_at() const { return static_cast<index_t>(all.front().which.size()); }
  bool is_sample() const { return looked_at() < elements; }
  bool is_identical() const { return different == 0; }
  /// Do the tied ones explain enough for it to matter which of them it was? Alpha and beta are made of elements, so
  /// that some of them explain a few of anything.
  bool explains_half() const { return 2 * (all.front().explained + all.front().nan_bits) >= looked_at(); }
};

/// Ranks what explains a sample, or all, of d. What explains all of a sample is compared with the whole of d.
ranking ranking_of(const char* what, const gemm_case& x, const kernel_use& given, std::vector<explanation> all,
                   bool any_nan, thread_pool& pool);

void print(const ranking& r);

/// The report's fields.
void add_to(nlohmann::ordered_json& report, const ranking& r);

/// Writes --report's file. Bytes of names that are not UTF-8, as JSON has to be, become U+FFFD.
void write_report(const std::string& path, const nlohmann::ordered_json& report);

}  // namespace rotoscale::validate
