// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Comparing a kernel's results with a model's, explaining the first difference, and ranking models.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "case.hpp"
#include "code_distance.hpp"
#include "epilogue.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

/// Indices of an element of D.
struct output_index {
  index_t batch, row, column;
};
output_index index_of(const gemm_case& x, index_t element);

struct difference {
  index_t element;
  std::uint64_t want, got;
  std::int64_t ulps;  ///< distance of the codes in order; -1: one of them is NaN or Inf and the other is not
};

struct comparison {
  index_t elements = 0;
  index_t different = 0;
  /// By distance, in order: "0" (zeros of two signs), "1", "2", "3-4", ..., "Inf or NaN".
  std::vector<std::pair<std::string, index_t>> histogram;
  std::vector<difference> worst;  ///< the largest distances, at most ten
  std::optional<difference> first;
};

/// The code that element `e` of D has under `u`, by the definition.
std::uint64_t model_code(const gemm_case& x, const kernel_use& u, index_t e);

/// All of them.
output_tensor model_outputs(const gemm_case& x, const kernel_use& u, thread_pool& pool);

/// Are two codes of D the same result? A NaN's sign and payload differ between processors, so `any_nan` lets them.
bool same_result(const format& f, std::uint64_t want, std::uint64_t got, bool any_nan);

/// All elements of D against the model's.
comparison compare(const gemm_case& x, const kernel_use& u, bool any_nan, thread_pool& pool);

/// A trace of one element's computation, a line a step: products, alignment, what truncation lost, the accumulator.
std::vector<std::string> trace(const gemm_case& x, const gemm_options& o, const difference& d);

/// Why the unit cannot have computed this case, or an empty string. `has_tails`: a kernel around it pads K with zeros.
std::string mismatch(const mma_unit& unit, const gemm_case& x, bool has_tails);

struct explanation {
  std::string model;
  kernel_use use = {};  ///< around it
  mma_evidence evidence;
  std::string evidence_text;
  index_t explained = 0;
  index_t nan_bits = 0;  ///< further elements that differ in the bits of a NaN alone
  std::vector<bool> which = {};
};

/// Every unit that takes the case, with the epilogues that explain most of `sample` elements of D under it, ranked by
/// how many these are, then by how little differs from `u`.
std::vector<explanation> identify(const gemm_case& x, const kernel_use& u, bool has_tails, bool any_nan, index_t sample,
                                  thread_pool& pool);

/// Parameters near those of `unit`'s model, ranked by how many elements they explain; at most forty.
std::vector<explanation> fit(const gemm_case& x, const kernel_use& u, bool any_nan, index_t sample, thread_pool& pool);

/// For a reader: "published vectors of B200"; `device` may be empty.
std::string to_text(mma_evidence e, const char* device);
/// A model's parameters by the names of mma_model's fields, and the name of its sum in arXiv:2511.10909.
std::string describe(const mma_model& m);
std::string number(const format& f, std::uint64_t code);

}  // namespace rotoscale::validate
