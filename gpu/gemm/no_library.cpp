// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// gpu/api/gemm_library.hpp in a build without cuBLASLt and hipBLASLt. It refuses every plan.
#include "gpu/api/gemm_library.hpp"

namespace rotoscale::gpu {

struct plain_gemm::state {};

plain_gemm::plain_gemm() = default;
plain_gemm::~plain_gemm() = default;
plain_gemm::plain_gemm(plain_gemm&&) noexcept = default;
plain_gemm& plain_gemm::operator=(plain_gemm&&) noexcept = default;

status plain_gemm::make(const plain_problem&, plain_gemm&) {
  device_info device;
  if (status s = current_device(device); !s.ok()) return s;
  return {error_code::unsupported_device, "", "this build has no library of plain GEMMs (cuBLASLt, hipBLASLt)"};
}

std::size_t plain_gemm::workspace_bytes() const { return 0; }

const gemm_contract_entry* plain_gemm::contract() const { return nullptr; }

status plain_gemm::run(const plain_problem&, void*, std::size_t, stream) const {
  return {error_code::bad_option, "plan", "was not made"};
}

}  // namespace rotoscale::gpu
