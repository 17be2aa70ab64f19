// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The epilogue between a unit's sums and d (factors, c, bias, roundings), and the search for a dump's epilogue.
#pragma once

#include <string>
#include <vector>

#include "case.hpp"

namespace rotoscale::validate {

/// A kernel's use of its unit, with its epilogue. Results are rounded to `gemm.output`; d may store them in a wider
/// type.
struct kernel_use {
  gemm_options gemm;
  bool adds_after_rounding = false;  ///< the product is rounded to gemm.output before c and the bias are added

  bool transposed_d = false;  ///< d holds the transpose of each square result

  /// Code of element `e` of the result.
  std::uint64_t written(const gemm_case& x, index_t e) const {
    const index_t in = e % (x.m * x.n);
    return x.d.code(transposed_d ? e - in + in % x.n * x.m + in / x.n : e);
  }
  bool operator==(const kernel_use& o) const;
};

/// Converts a sum to its code in d.
class finisher {
 public:
  finisher(const gemm_case& x, const kernel_use& u);
  /// `c` is the old value of the element.
  std::uint64_t operator()(float sum, float c, index_t column) const;

 private:
  gemm_options product_, all_, stored_;  ///< first step, last (or only) step, and conversion to d's type
  bool has_two_steps_;
};

/// Some elements of D with their sums under one model, starting from +0 and from c.
struct sampled_sums {
  std::vector<index_t> elements;
  std::vector<float> from_zero, from_c;
  /// The sums with the start value of the use.
  const std::vector<float>& of(const kernel_use& u) const { return u.gemm.start_from_c ? from_c : from_zero; }
};

/// Epilogues that may have made d from these sums, the given one first. They vary the place where c enters, the bias,
/// and truncation. They also try alpha and beta suggested by the elements, a narrower type in a wider d, and a rounding
/// before the additions.
std::vector<kernel_use> possible_epilogues(const gemm_case& x, const kernel_use& given, const sampled_sums& sums);

/// The options that change `given` to `u`; empty if they are equal.
std::string options_of(const kernel_use& given, const kernel_use& u);
/// The number of those options.
int changes(const kernel_use& given, const kernel_use& u);

}  // namespace rotoscale::validate
