// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where no kernel multiplies dense BF16 or FP8 operands.
#pragma once

#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

inline status multiply_dense(const gemm_operand&, const gemm_operand&, const gemm_options&, const gemm_arguments&,
                             const device_info&, stream) {
  return {error_code::unsupported_device, "a.element", "this device has no kernel for dense BF16 or FP8"};
}

}  // namespace rotoscale::gpu::detail
