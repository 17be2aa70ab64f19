// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Inputs for a kernel that tell models apart.
#pragma once

#include <filesystem>
#include <string>

#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

struct make_options {
  std::string model = "hopper-wgmma-fp8-f32";
  std::string a_format, b_format;   ///< empty: the first that the model takes
  long long m = 64, n = 64, k = 0;  ///< k 0: four instructions
  std::string kind = "all";         ///< a case_kind, or all of them, one a batch entry
  std::uint64_t seed = 1;
  bool with_d = false;  ///< adds the model's own result
};

/// Writes a, b, c and, where the model has them, scale_a and scale_b. Throws io::error.
void make_case(const std::filesystem::path& path, const make_options& o, thread_pool& pool);

}  // namespace rotoscale::validate
