// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Makes inputs for a kernel that tell models apart.
#pragma once

#include <filesystem>
#include <string>

#include "compare.hpp"
#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

struct make_options {
  std::string model = "hopper-wgmma-fp8-f32";
  std::string a_format, b_format;   ///< empty: the first format that the model takes
  long long m = 64, n = 64, k = 0;  ///< k = 0: four instructions
  std::string kind = "all";         ///< a case_kind, or all of them, one per batch entry
  std::uint64_t seed = 1;
  bool with_d = false;  ///< adds the model's result
  bool with_c = true;   ///< adds c, the accumulators' start value
};

inline constexpr index_t largest_made_tensor = index_t{1} << 28;  ///< elements

/// Makes a, b, c and, if the model has scales, scale_a and scale_b. Throws io::error.
io::safetensors_writer make_case(const make_options& o, thread_pool& pool);

/// Writes inputs on which tied explanations of a dump differ, with the dump's formats, K and extents (at most 256).
/// There is a batch entry for each kind of case that separates some of them. `with_d` adds the first one's result.
///
/// Returns groups of explanations that agree on these inputs too. If no kind separates any, returns one group and
/// writes no file.
std::vector<std::vector<std::size_t>> tell_apart(const std::filesystem::path& path, const gemm_case& dump,
                                                 const std::vector<explanation>& tied, std::uint64_t seed, bool with_d,
                                                 thread_pool& pool);

}  // namespace rotoscale::validate
