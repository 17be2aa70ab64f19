// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher of gpu/api/gemm_fp8.hpp.
#include "gpu/api/gemm_fp8.hpp"
#include "gpu/gemm/dense.hpp"

namespace rotoscale::gpu {

namespace {

status check_fp8(const gemm_operand& x, bool first) {
  if ((x.element != formats::e4m3 && x.element != formats::e5m2) || x.block != 0) {
    return {error_code::bad_option, first ? "a.element" : "b.element", "must be E4M3 or E5M2 without block scales"};
  }
  if (x.transposed) return {error_code::bad_option, first ? "a.transposed" : "b.transposed", "must have k contiguous"};
  if (x.factor != nullptr) {
    if (status s = check_pointer(x.factor, 4, first ? "a.factor" : "b.factor"); !s.ok()) return s;
  }
  return detail::check_dense(x, first);
}

}  // namespace

const gemm_contract_entry* fp8_contract(fp8_sums sums, const device_info& device) {
  const arch_traits& traits = traits_of(device.arch);
  const char* const name = sums == fp8_sums::promoted ? traits.fp8 : traits.fp8_fast;
  return name != nullptr ? find_contract(name) : nullptr;
}

std::size_t gemm_fp8_workspace_bytes(index_t m, index_t n, index_t k, int split_k, const device_info& device) {
  const gemm_contract_entry* const contract = fp8_contract(fp8_sums::promoted, device);  // both have the same grain
  return contract != nullptr ? detail::dense_workspace_bytes(m, n, k, split_k, *contract) : 0;
}

status gemm_fp8(fp8_sums sums, const gemm_operand& a, const gemm_operand& b, const sum_output& r, stream stream,
                int split_k, void* workspace, std::size_t workspace_bytes) {
  for (const gemm_operand* x : {&a, &b}) {
    if (status s = check_fp8(*x, x == &a); !s.ok()) return s;
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  const gemm_contract_entry* const contract = fp8_contract(sums, device);
  if (contract == nullptr) {
    return {error_code::unsupported_device, "a.element", "this device has no kernel for FP8 without block scales"};
  }
  return detail::run_dense(a, b, r, *contract, {split_k, workspace, workspace_bytes}, device, stream);
}

}  // namespace rotoscale::gpu
