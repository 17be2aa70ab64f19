// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches GEMMs of operands without block scales, and holds the BF16 kernels.
#include "gpu/gemm/dense.hpp"

#include "gpu/gemm/dense_kernels.hpp"
#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

status run_dense(const gemm_operand& a, const gemm_operand& b, const sum_output& r, const gemm_contract_entry& contract,
                 const dense_parts& p, const device_info& device, stream stream) {
  if (a.k != b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  if (status s = check_sum_output(r, a.rows, b.rows); !s.ok()) return s;
  if (status s = check_stream(stream); !s.ok()) return s;
  if (p.split_k < 1 || p.split_k > max_parts) return {error_code::bad_option, "split_k", "must be 1 to 64"};
  const std::size_t needed = dense_workspace_bytes(a.rows, b.rows, a.k, p.split_k, contract);
  if (status s = check_workspace(p.workspace, p.workspace_bytes, needed, 256); !s.ok()) return s;
  const gemm_options o = contract_options(contract, find_unit(contract.unit)->model);
  gemm_arguments g = make_arguments(r, static_cast<int>(a.rows), static_cast<int>(b.rows));
  g.nan_bits = o.model.nan_bits;
  g.factor_a = a.factor;
  g.factor_b = b.factor;
  const split parts = split_of(a.k, p.split_k, static_cast<int>(contract.split_grain));
  g.parts = parts.parts;
  g.partial = static_cast<float*>(p.workspace);
  g.k = static_cast<int>(a.k);
  g.part_k = parts.part_k;
  const status s = multiply_dense(a, b, o, g, device, stream);
  return s.ok() && g.parts > 1 ? finish_parts(g, stream) : s;
}

}  // namespace rotoscale::gpu::detail
