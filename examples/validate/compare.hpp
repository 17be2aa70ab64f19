// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Compares a kernel's result with a model, explains the first difference, and ranks models.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "case.hpp"
#include "code_distance.hpp"
#include "epilogue.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::validate {

/// Position of an element of D.
struct output_index {
  index_t batch, row, column;
};
output_index index_of(const gemm_case& x, index_t element);

struct difference {
  index_t element;
  std::uint64_t want, got;
  std::int64_t ulps;  ///< distance of the codes in order; -1: one is NaN or Inf, the other is not
};

struct comparison {
  index_t elements = 0;
  index_t different = 0;
  /// Counts by distance, in this order: "0" (zeros of different sign), "1", "2", "3-4", ..., "Inf or NaN".
  std::vector<std::pair<std::string, index_t>> histogram;
  std::vector<difference> worst;  ///< the ten largest distances
  std::optional<difference> first;
  double rms = 0;       ///< root mean square of kernel - model, Inf and NaN left out
  double relative = 0;  ///< largest |kernel - model| / |model|, for a finite model other than 0
};

/// Code of element `e` of D under `u`, by the definition.
std::uint64_t model_code(const gemm_case& x, const kernel_use& u, index_t e);

/// The codes of all elements of D.
output_tensor model_outputs(const gemm_case& x, const kernel_use& u, thread_pool& pool);

/// Are two codes of D the same result? `any_nan` accepts any NaN for a NaN: processors differ in sign and payload.
bool same_result(const format& f, std::uint64_t want, std::uint64_t got, bool any_nan);

/// Compares all elements of D with the model's.
comparison compare(const gemm_case& x, const kernel_use& u, bool any_nan, thread_pool& pool);

/// Trace of one element's computation, a line per step: products, alignment, bits lost by truncation, accumulator.
std::vector<std::string> trace(const gemm_case& x, const gemm_options& o, const difference& d);

/// The reason why the unit cannot have computed this case, or an empty string. `has_tails`: the kernel pads K with
/// zeros.
std::string mismatch(const mma_unit& unit, const gemm_case& x, bool has_tails);

struct explanation {
  std::string model;
  kernel_use use = {};  ///< the kernel's use of the unit
  mma_evidence evidence;
  std::string evidence_text;
  index_t explained = 0;
  index_t nan_bits = 0;  ///< elements that differ only in the bits of a NaN
  std::vector<bool> which = {};
};

/// Ranks every unit that takes the case, each with the epilogues that explain most of `sample` elements of D. The rank
/// is the number of explained elements, then the number of changes from `u`.
std::vector<explanation> identify(const gemm_case& x, const kernel_use& u, bool has_tails, bool any_nan, index_t sample,
                                  thread_pool& pool);

/// Ranks parameters near `unit`'s model by the number of elements that they explain; returns at most forty.
std::vector<explanation> fit(const gemm_case& x, const kernel_use& u, bool any_nan, index_t sample, thread_pool& pool);

/// Evidence as text, for example "published vectors of B200". `device` may be empty.
std::string to_text(mma_evidence e, const char* device);
/// A model's parameters, by the names of mma_model's fields, and its sum's name in arXiv:2511.10909.
std::string describe(const mma_model& m);
std::string number(const format& f, std::uint64_t code);

}  // namespace rotoscale::validate
