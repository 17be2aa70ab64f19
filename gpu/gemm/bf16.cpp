// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher of gpu/api/gemm_bf16.hpp.
#include "gpu/api/gemm_bf16.hpp"
#include "gpu/gemm/check.hpp"
#include "gpu/gemm/dense_kernels.hpp"

namespace rotoscale::gpu {

namespace {

status check_dense(const gemm_operand& x, bool first) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  if (x.element != formats::bf16 || x.block != 0 || x.factor != nullptr) {
    return {error_code::bad_option, named("a.element", "b.element"), "must be BF16 without scales or a factor"};
  }
  if (x.rows < 1 || x.k < 1 || x.rows > max_gemm_extent || x.k > max_gemm_extent) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "extents must be 1 to 2^20"};
  }
  if (x.code_order != placement::row_major || x.code_stride < x.row_bytes() || x.code_stride % 16 != 0) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"),
            "must be a multiple of 16, at least a row's bytes"};
  }
  return check_pointer(x.codes, 16, named("a.codes", "b.codes"));
}

}  // namespace

const gemm_contract_entry* bf16_contract(const device_info& device) {
  const arch_traits& traits = traits_of(device.arch);
  return traits.multiplies_dense_bf16 ? find_contract(traits.bf16) : nullptr;
}

std::size_t gemm_bf16_workspace_bytes(index_t m, index_t n, index_t k, int split_k, const device_info& device) {
  if (m < 1 || n < 1 || k < 1 || split_k < 1 || k > max_gemm_extent) return 0;
  // Never more for a smaller k, which may have more parts.
  const index_t grains = (k + traits_of(device.arch).grain - 1) / traits_of(device.arch).grain;
  const index_t parts = grains < split_k ? grains : split_k;
  return parts > 1 ? sizeof(float) * static_cast<std::size_t>(m * n) * static_cast<std::size_t>(parts) : 0;
}

status gemm_bf16(const gemm_operand& a, const gemm_operand& b, const sum_output& r, stream stream, int split_k,
                 void* workspace, std::size_t workspace_bytes) {
  for (const gemm_operand* x : {&a, &b}) {
    if (status s = check_dense(*x, x == &a); !s.ok()) return s;
  }
  if (a.k != b.k) return {error_code::bad_extent, "b.k", "must equal a.k"};
  const bool narrow = r.stored == formats::bf16;
  if (status s = check_pointer(r.out, narrow ? 2 : 4, "r.out"); !s.ok()) return s;
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  const gemm_contract_entry* contract = bf16_contract(device);
  if (contract == nullptr) {
    return {error_code::unsupported_device, "a.element", "this device has no kernel for dense BF16"};
  }
  if (status s = check_stream(stream); !s.ok()) return s;
  if (split_k < 1 || split_k > detail::max_parts) return {error_code::bad_option, "split_k", "must be 1 to 64"};
  const std::size_t needed = gemm_bf16_workspace_bytes(a.rows, b.rows, a.k, split_k, device);
  if (status s = check_workspace(workspace, workspace_bytes, needed, 256); !s.ok()) return s;
  const gemm_options o = contract_options(*contract, find_unit(contract->unit)->model);
  gemm_arguments g = detail::make_arguments(r, static_cast<int>(a.rows), static_cast<int>(b.rows));
  g.nan_bits = o.model.nan_bits;
  const detail::split parts = detail::split_of(a.k, split_k, traits_of(device.arch).grain);
  g.parts = parts.parts;
  g.partial = static_cast<float*>(workspace);
  g.k = static_cast<int>(a.k);
  g.part_k = parts.part_k;
  const status s = detail::multiply_dense(a, b, o, g, device, stream);
  return s.ok() && g.parts > 1 ? detail::finish_parts(g, stream) : s;
}

}  // namespace rotoscale::gpu
