// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The launcher of gpu/api/gemm_bf16.hpp.
#include "gpu/api/gemm_bf16.hpp"
#include "gpu/gemm/dense.hpp"

namespace rotoscale::gpu {

const gemm_contract_entry* bf16_contract(const mma_model& model, const device_info& device) {
  for (const char* const name : traits_of(device.arch).dense_bf16) {
    const gemm_contract_entry* const contract = find_contract(name);
    if (find_unit(contract->unit)->model == model) return contract;
  }
  return nullptr;
}

std::size_t gemm_bf16_workspace_bytes(const gemm_contract_entry& contract, index_t m, index_t n, index_t k,
                                      int split_k) {
  return detail::dense_workspace_bytes(m, n, k, split_k, contract);
}

status gemm_bf16(const gemm_contract_entry& contract, const gemm_operand& a, const gemm_operand& b, const sum_output& r,
                 stream stream, int split_k, void* workspace, std::size_t workspace_bytes) {
  for (const gemm_operand* x : {&a, &b}) {
    if (x->element != formats::bf16 || x->block != 0 || x->factor != nullptr) {
      return {error_code::bad_option, x == &a ? "a.element" : "b.element", "must be BF16 without scales or a factor"};
    }
    if (status s = detail::check_dense(*x, x == &a); !s.ok()) return s;
  }
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  const mma_unit* const unit = find_unit(contract.unit);
  const gemm_contract_entry* const own = unit != nullptr ? bf16_contract(unit->model, device) : nullptr;
  if (own == nullptr || own->name != std::string_view(contract.name)) {
    return {error_code::unsupported_device, "contract", "this device has no kernel of it for dense BF16"};
  }
  return detail::run_dense(a, b, r, *own, {split_k, workspace, workspace_bytes}, device, stream);
}

}  // namespace rotoscale::gpu
