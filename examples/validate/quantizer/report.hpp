// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tasks on a quantizer's dump and their reports, for the program and the Python package.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "check.hpp"
#include "command.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::validate {

inline constexpr std::size_t max_listed = 20;

struct checked_dump {
  quantizer_dump dump;
  quantizer q;
  dump_report result;
  std::vector<std::string> notes;  ///< on parts of the dump that are easily misread
};
/// Compares a dump. Throws io::error for bad input, as identify_quantizer does.
checked_dump check_quantizer(const quantizer_options& o, const io::safetensors_file& file, thread_pool& pool);

/// Candidates for a dump, and whether one explains all of it.
struct identified_dump {
  dump_ranking ranking;
  std::size_t tied = 0;              ///< number of leading candidates that explain the same runs
  std::size_t best = 0;              ///< index of the candidate that explains the sample and most of the dump; else 0
  std::optional<dump_report> whole;  ///< the best on the whole dump, if it explains the sample
  bool accepted = false;             ///< the best explains the whole dump
  quantizer_dump dump = {};
  quantizer q = {};                     ///< of the options
  std::vector<std::string> notes = {};  ///< on parts of the dump that are easily misread

  const std::vector<dump_explanation>& all() const { return ranking.all; }
  index_t looked_at() const { return static_cast<index_t>(all().front().which.size()); }
  bool explains_half() const { return all().front().explained != 0 && 2 * all().front().explained >= looked_at(); }
  bool explains_sample() const { return all().front().explained == looked_at(); }
};
/// Ranks the candidates for a dump. If none explains it with a scale per row, square blocks are tried.
identified_dump identify_quantizer(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                                   thread_pool& pool);

/// The options that compare a dump with this candidate.
std::string options_to_paste(const dump_explanation& e);

/// The fields of --report. `input` names the file.
nlohmann::ordered_json report_of(const std::string& input, const checked_dump& c);
nlohmann::ordered_json report_of(const std::string& input, const std::string& preset, const identified_dump& found);
nlohmann::ordered_json report_of(const std::string& input, const std::string& preset, const dump_report& result);

}  // namespace rotoscale::validate
