// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Whole GEMMs of a device against gemm(): kernels with a known order along K, and the vendor's library, whose order is
// found by trying candidates.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/probe/cases.hpp"
#include "rotoscale/gemm.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::probe {

/// rows × k codes, contiguous along k, as gemm() takes them.
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

/// One way to go along K.
struct k_order {
  const mma_unit* unit = nullptr;
  gemm_options options;                       ///< for FP64 only how K is split is looked at
  rounding operands = rounding::toward_zero;  ///< FP32 to TF32, before the unit cuts what is left
};

std::string to_text(const k_order& order, std::int64_t k);

/// Rows of A and of B that a comparison looks at, every result of which is computed by the model.
struct gemm_sample {
  std::vector<std::int64_t> rows, columns;
};

/// `count` rows and columns at random, or all of them where there are no more.
gemm_sample make_sample(const probed_gemm& p, std::int64_t count, std::uint64_t seed);

/// These rows and columns as a problem of their own, codes_d among them.
probed_gemm gathered(const probed_gemm& p, const gemm_sample& sample);

/// How many results of a (gathered) problem the order gives, bit for bit.
std::int64_t explained(const probed_gemm& p, const k_order& order, thread_pool& pool);

/// Orders to try for a library's kernel, the likely ones first.
std::vector<k_order> candidate_orders(const probed_gemm& p, bool fp16_accumulator);

struct gemm_run {
  std::vector<std::int64_t> sizes{64, 128, 256, 512, 1024, 2048, 4096};  ///< m = n = k
  std::string filter;                                                    ///< of instructions and of the library's types
  int algorithms = 8;                                                    ///< of the library, for each problem
  std::uint64_t seed = 1;
  /// Called with a sample of what no order explains.
  std::function<void(const std::string& name, const probed_gemm& sample)> unexplained;
};

/// Runs and compares all; prints a line each. True if all kernels of a known order were reproduced.
bool compare_gemms(const gemm_run& run, thread_pool& pool, std::ostream& out);

}  // namespace rotoscale::probe
