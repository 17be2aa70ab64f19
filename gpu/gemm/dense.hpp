// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Common to gemm_bf16 and gemm_fp8: operand checks, split-K workspace, launch (dense.cpp).
#pragma once

#include "gpu/api/gemm_definition.hpp"
#include "gpu/gemm/check.hpp"
#include "rotoscale/gemm_contracts.hpp"

namespace rotoscale::gpu::detail {

/// Checks that rows in memory are whole 16-byte vectors. Returns the first error.
inline status check_dense(const gemm_operand& x, bool first) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  if (x.rows < 1 || x.k < 1 || x.rows > max_gemm_extent || x.k > max_gemm_extent) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "extents must be 1 to 2^20"};
  }
  if (x.code_order != placement::row_major || x.code_stride < x.row_bytes() || x.code_stride % 16 != 0) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  return check_pointer(x.codes, 16, named("a.codes", "b.codes"));
}

/// Bytes for the sums of the parts of K. They suffice for any smaller k, which may have more parts.
inline std::size_t dense_workspace_bytes(index_t m, index_t n, index_t k, int split_k,
                                         const gemm_contract_entry& contract) {
  if (m < 1 || n < 1 || k < 1 || split_k < 1 || k > max_gemm_extent) return 0;
  const index_t grains = (k + contract.split_grain - 1) / contract.split_grain;
  const index_t parts = grains < split_k ? grains : split_k;
  return parts > 1 ? sizeof(float) * static_cast<std::size_t>(m * n) * static_cast<std::size_t>(parts) : 0;
}

/// Split-K and its workspace.
struct dense_parts {
  int split_k;
  void* workspace;
  std::size_t workspace_bytes;
};

/// Multiplies operands that passed check_dense under `contract`, which `device` must support.
status run_dense(const gemm_operand& a, const gemm_operand& b, const sum_output& r, const gemm_contract_entry& contract,
                 const dense_parts& p, const device_info& device, stream stream);

}  // namespace rotoscale::gpu::detail
