// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a kernel does between its unit's sums and d: factors, c, a bias, roundings; and which of it a dump shows.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"

namespace rotoscale::validate {

/// How a kernel uses a unit, and what it does with the sums. `gemm.output` is what results are rounded to; d may hold
/// them in a wider type.
struct kernel_use {
  gemm_options gemm;
  bool adds_after_rounding = false;  ///< the product is rounded to gemm.output before c and the bias are added

  bool operator==(const kernel_use& o) const;
};

/// From a sum to its code in d.
class finisher {
 public:
  finisher(const gemm_case& x, const kernel_use& u);
  /// `c`: what stood there.
  std::uint64_t operator()(float sum, float c, index_t column) const;

 private:
  gemm_options product_, all_, stored_;  ///< the first step, the last or only one, and how d holds its result
  bool has_two_steps_;
};

/// Elements of d, and their sums under one model: from +0, and from c.
struct sampled_sums {
  std::vector<index_t> elements;
  std::vector<float> from_zero, from_c;
  /// Where the use has accumulators start.
  const std::vector<float>& of(const kernel_use& u) const { return u.gemm.start_from_c ? from_c : from_zero; }
};

/// Uses that may have made d from these sums: the given one first; others by where c enters, the bias, alpha and beta
/// that these elements suggest, a narrower type in a wider d, truncation, and a rounding before what is added.
std::vector<kernel_use> possible_epilogues(const gemm_case& x, const kernel_use& given, const sampled_sums& sums);

/// The options that turn `given` into `u`, empty where they are equal.
std::string options_of(const kernel_use& given, const kernel_use& u);
/// How many they are.
int changes(const kernel_use& given, const kernel_use& u);

}  // namespace rotoscale::validate
