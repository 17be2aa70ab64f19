// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Plain GEMMs, FP16, BF16 and FP8 without block scales, by the vendor's library (cuBLASLt, hipBLASLt), behind the
// interface of gemm.hpp: C [m, n] = alpha * A · Bᵀ (+ beta * C) (+ bias), k contiguous. The library's algorithm is
// chosen once, when a plan is made. On NVIDIA it never cuts K: a plan gives the same bits every time, and on an H200
// those of contract(), which this project measured (docs/reference/matrix-units.md). hipBLASLt cannot be asked how an algorithm
// goes along K; nobody here has run it, and of its sums nothing is stated, not even that two runs agree.
#pragma once

#include <memory>

#include "gemm.hpp"

namespace rotoscale::gpu {

/// Operands in device memory without block scales, row-major with k contiguous, codes aligned to 16 bytes and rows
/// `code_stride` apart, a multiple of 16: a and b both FP16, both BF16, or each E4M3 or E5M2 but not both E5M2 (on
/// gfx942 in FNUZ form). FP8 operands may have a factor, in device memory and aligned to 16 bytes.
struct plain_problem : gemm_result {
  gemm_operand a;                ///< [m, k]
  gemm_operand b;                ///< [n, k]
  bool fast_accumulate = false;  ///< NVIDIA, FP8: sums stay in the matrix unit, else FP32 takes them every 128 k
};

/// A GEMM of the vendor's library for one shape.
class plain_gemm {
 public:
  /// No plan yet.
  plain_gemm();
  ~plain_gemm();
  /// Moves the plan.
  plain_gemm(plain_gemm&&) noexcept;
  /// Moves the plan.
  plain_gemm& operator=(plain_gemm&&) noexcept;

  /// A plan for problems like `p`: its extents, formats, strides, options and which pointers are null count. Opens the
  /// library, which allocates: not while a stream is captured. unsupported_device in a build without such a library.
  static status make(const plain_problem& p, plain_gemm& plan);

  /// Bytes of device memory that run needs.
  std::size_t workspace_bytes() const;

  /// What the sums before the last step (alpha, C, bias, output) are, by name among gemm_contracts; null where nobody
  /// has measured the device's library (all of AMD's). With factors each sum is then multiplied by their FP32 product.
  const gemm_contract_entry* contract() const;

  /// Computes p.out. `workspace` as in gemm_mxfp4. Allocates nothing, can be captured in a graph.
  status run(const plain_problem& p, void* workspace, std::size_t workspace_bytes, stream s) const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace rotoscale::gpu
