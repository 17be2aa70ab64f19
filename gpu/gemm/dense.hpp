// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What gemm_bf16 and gemm_fp8 have in common: checks of operands as they lie, parts of K, the launch.
#pragma once

#include "gpu/api/gemm_definition.hpp"
#include "gpu/gemm/check.hpp"
#include "gpu/gemm/dense_kernels.hpp"

namespace rotoscale::gpu::detail {

/// Rows in memory that the copy engine takes.
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

/// Bytes for the sums of parts of K, enough for any smaller k as well, which may have more parts.
inline std::size_t dense_workspace_bytes(index_t m, index_t n, index_t k, int split_k, const device_info& device) {
  if (m < 1 || n < 1 || k < 1 || split_k < 1 || k > max_gemm_extent) return 0;
  const index_t grains = (k + traits_of(device.arch).grain - 1) / traits_of(device.arch).grain;
  const index_t parts = grains < split_k ? grains : split_k;
  return parts > 1 ? sizeof(float) * static_cast<std::size_t>(m * n) * static_cast<std::size_t>(parts) : 0;
}

/// Parts of K and their workspace.
struct dense_parts {
  int split_k;
  void* workspace;
  std::size_t workspace_bytes;
};

/// Multiplies operands that check_dense takes under `contract`, which `device` has a kernel for.
inline status run_dense(const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                        const gemm_contract_entry& contract, const dense_parts& p, const device_info& device,
                        stream stream) {
  if (a.k != b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  const bool narrow = r.stored == formats::bf16;
  if (status s = check_pointer(r.out, narrow ? 2 : 4, "r.out"); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (p.split_k < 1 || p.split_k > max_parts) return {error_code::bad_option, "split_k", "must be 1 to 64"};
  const std::size_t needed = dense_workspace_bytes(a.rows, b.rows, a.k, p.split_k, device);
  if (status s = check_workspace(p.workspace, p.workspace_bytes, needed, 256); !s.ok()) return s;
  const gemm_options o = contract_options(contract, find_unit(contract.unit)->model);
  gemm_arguments g = make_arguments(r, static_cast<int>(a.rows), static_cast<int>(b.rows));
  g.nan_bits = o.model.nan_bits;
  g.factor_a = a.factor;
  g.factor_b = b.factor;
  const split parts = split_of(a.k, p.split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  g.partial = static_cast<float*>(p.workspace);
  g.k = static_cast<int>(a.k);
  g.part_k = parts.part_k;
  const status s = multiply_dense(a, b, o, g, device, stream);
  return s.ok() && g.parts > 1 ? finish_parts(g, stream) : s;
}

}  // namespace rotoscale::gpu::detail
