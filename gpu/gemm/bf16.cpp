// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher of gpu/api/gemm_bf16.hpp.
#include "gpu/api/gemm_bf16.hpp"
#include "gpu/gemm/dense.hpp"

namespace rotoscale::gpu {

const gemm_contract_entry* bf16_contract(const device_info& device) {
  const arch_traits& traits = traits_of(device.arch);
  return traits.multiplies_dense_bf16 ? find_contract(traits.bf16) : nullptr;
}

std::size_t gemm_bf16_workspace_bytes(index_t m, index_t n, index_t k, int split_k, const device_info& device) {
  return detail::dense_workspace_bytes(m, n, k, split_k, device);
}

status gemm_bf16(const gemm_operand& a, const gemm_operand& b, const sum_output& r, stream stream, int split_k,
                 void* workspace, std::size_t workspace_bytes) {
  for (const gemm_operand* x : {&a, &b}) {
    if (x->element != formats::bf16 || x->block != 0 || x->factor != nullptr) {
      return {error_code::bad_option, x == &a ? "a.element" : "b.element", "must be BF16 without scales or a factor"};
    }
    if (status s = detail::check_dense(*x, x == &a); !s.ok()) return s;
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  const gemm_contract_entry* const contract = bf16_contract(device);
  if (contract == nullptr) {
    return {error_code::unsupported_device, "a.element", "this device has no kernel for dense BF16"};
  }
  return detail::run_dense(a, b, r, *contract, {split_k, workspace, workspace_bytes}, device, stream);
}

}  // namespace rotoscale::gpu
