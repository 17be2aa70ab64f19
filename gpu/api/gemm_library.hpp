// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMMs of FP16, BF16 and FP8 operands without block scales, by the vendor's library (cuBLASLt, hipBLASLt).
// C [m, n] = alpha * A · Bᵀ (+ beta * C) (+ bias), k contiguous. The interface is gemm.hpp's.
//
// A plan selects the library's algorithm once.
// - NVIDIA: the algorithm never splits K, so a plan gives the same bits every time. On an H200 these are the bits of
//   contract(), as measured by this project (docs/reference/matrix-units.md).
// - AMD: hipBLASLt does not tell how an algorithm accumulates along K. It is untested, and no bits are promised, not
//   even from run to run.
#pragma once

#include <memory>

#include "gemm.hpp"

namespace rotoscale::gpu {

/// Operands in device memory without block scales, row-major with k contiguous. Codes are aligned to 16 bytes, and rows
/// are `code_stride` apart, a multiple of 16. Formats: both FP16, both BF16, or each E4M3 or E5M2 (on gfx942 as FNUZ),
/// but not both E5M2. FP8 operands may have a factor, in device memory and aligned to 16 bytes.
struct plain_problem : gemm_result {
  gemm_operand a;                ///< [m, k]
  gemm_operand b;                ///< [n, k]
  bool fast_accumulate = false;  ///< NVIDIA, FP8: never promotes, instead of every 128 k
};

/// A plan for one shape.
class plain_gemm {
 public:
  /// No plan yet.
  plain_gemm();
  ~plain_gemm();
  /// Moves the plan.
  plain_gemm(plain_gemm&&) noexcept;
  /// Moves the plan.
  plain_gemm& operator=(plain_gemm&&) noexcept;

  /// Makes a plan for problems with p's extents, formats, strides, options and set of null pointers. Opens the library,
  /// which allocates: do not call it during stream capture. unsupported_device in a build without such a library.
  static status make(const plain_problem& p, plain_gemm& plan);

  /// Workspace of run in bytes.
  std::size_t workspace_bytes() const;

  /// Contract of the sums before the epilogue (alpha, C, bias, output). Null if the device's library was not measured
  /// (all of AMD's). Factors multiply each sum by their FP32 product.
  const gemm_contract_entry* contract() const;

  /// Computes p.out. `workspace` is as for gemm(). Allocates nothing and can be captured in a graph.
  status run(const plain_problem& p, void* workspace, std::size_t workspace_bytes, stream s) const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace rotoscale::gpu
