// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tasks on a GEMM's tensors and their reports, for the program and the Python package.
#pragma once

#include <string>
#include <vector>

#include "applicable.hpp"
#include "compare.hpp"
#include "kernel_options.hpp"
#include "ranking.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::validate {

/// Sample size without --sample: elements of a GEMM's result, runs of elements of a dump.
inline constexpr index_t default_sample = 20000, default_dump_sample = 512;

/// The kernel that a case claims to come from.
struct gemm_request : use_options {
  std::string model;  ///< name of a unit; empty: the kernel's
  case_options files;
  bool any_nan = false;  ///< any NaN matches a NaN
  option_names given;    ///< names of all given options
};

struct checked_gemm {
  gemm_case x;
  comparison result;
  std::vector<std::string> steps;  ///< trace of the first difference
};
/// Compares d with the model. Throws io::error for bad input, as identify_gemm does.
checked_gemm check_gemm(const gemm_request& o, const io::safetensors_file& file, thread_pool& pool);

struct ranked_gemm {
  gemm_case x;
  ranking r;
};
/// Ranks units (verb::identify) or parameters near the unit's (verb::fit).
ranked_gemm identify_gemm(const gemm_request& o, const io::safetensors_file& file, verb v, index_t sample,
                          thread_pool& pool);

/// Notes on inputs that are easily misread.
std::vector<std::string> notes_on(const gemm_case& x);

/// The fields of --report, after `input`.
nlohmann::ordered_json report_of(const std::string& input, const gemm_request& o, const checked_gemm& c);
nlohmann::ordered_json report_of(const std::string& input, const gemm_request& o, const ranked_gemm& c);

}  // namespace rotoscale::validate
