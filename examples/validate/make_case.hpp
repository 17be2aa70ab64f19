// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Inputs for a kernel that tell models apart.
#pragma once

#include <filesystem>
#include <string>

#include "compare.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

struct make_options {
  std::string model = "hopper-wgmma-fp8-f32";
  std::string a_format, b_format;   ///< empty: the first that the model takes
  long long m = 64, n = 64, k = 0;  ///< k 0: four instructions
  std::string kind = "all";         ///< a case_kind, or all of them, one a batch entry
  std::uint64_t seed = 1;
  bool with_d = false;  ///< adds the model's own result
  bool with_c = true;   ///< adds c, from which accumulators start
};

inline constexpr index_t largest_made_tensor = index_t{1} << 28;  ///< elements

/// Makes a, b, c and, where the model has them, scale_a and scale_b. Throws io::error.
io::safetensors_writer make_case(const make_options& o, thread_pool& pool);

/// Writes inputs of the dump's formats, K and (to 256) extents on which explanations that tie there differ: the kinds
/// of case that tell some of them apart, a batch entry each. `with_d`: with the first one's result. Returns groups of
/// explanations that give the same results on it as well; one group, and no file, where no kind tells any apart.
std::vector<std::vector<std::size_t>> tell_apart(const std::filesystem::path& path, const gemm_case& dump,
                                                 const std::vector<explanation>& tied, std::uint64_t seed, bool with_d,
                                                 thread_pool& pool);

}  // namespace rotoscale::validate
