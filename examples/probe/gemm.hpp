// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Compares whole GEMMs of a device with gemm(). The order along K is known for the probe's kernels. For the vendor's
// library it is found by trying candidates.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/probe/cases.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::probe {

/// Operand of gemm(): rows × k codes, contiguous along k.
inline gemm_operand make_operand(const format& element, const std::vector<std::uint8_t>& codes, std::int64_t rows,
                                 std::int64_t k) {
  gemm_operand o;
  o.element = stored_format(element);
  o.rows = rows;
  o.k = k;
  o.codes = codes.data();
  o.code_stride = k * element_bytes(o.element);
  return o;
}

/// One order of sums along K.
struct k_order {
  const mma_unit* unit = nullptr;
  gemm_options options;                       ///< FP64: only the split of K is used
  rounding operands = rounding::toward_zero;  ///< rounding of FP32 to TF32, before the instruction truncates
};

std::string to_text(const k_order& order, std::int64_t k);

/// Rows of A and of B whose products a comparison computes with the model.
struct gemm_sample {
  std::vector<std::int64_t> rows, columns;
};

/// `count` random rows and columns, or all if there are fewer.
gemm_sample make_sample(const probed_gemm& p, std::int64_t count, std::uint64_t seed);

/// The sampled rows and columns as a problem, with their codes_d.
probed_gemm gathered(const probed_gemm& p, const gemm_sample& sample);

/// Number of results of a (gathered) problem that the order gives, bit for bit.
std::int64_t explained(const probed_gemm& p, const k_order& order, thread_pool& pool);

/// Candidate orders of a library's kernel, likely ones first.
std::vector<k_order> candidate_orders(const probed_gemm& p, bool fp16_accumulator);

struct gemm_run {
  std::vector<std::int64_t> sizes{64, 128, 256, 512, 1024, 2048, 4096};  ///< m = n = k
  /// substring of instruction names and library types
  std::string filter;
  int algorithms = 8;                                                    ///< algorithms of the library for each problem
  std::uint64_t seed = 1;
  /// Receives a sample of each GEMM that no order explains.
  std::function<void(const std::string& name, const probed_gemm& sample)> unexplained;
};

/// Runs and compares all GEMMs and prints one line each. True if every kernel of known order was reproduced.
bool compare_gemms(const gemm_run& run, thread_pool& pool, std::ostream& out);

}  // namespace rotoscale::probe
