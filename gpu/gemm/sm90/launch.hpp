// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What launchers know of the sm_90 GEMM kernels.
#pragma once

#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

/// Multiplies expanded operands, E5M2 emptied every Promotion k, in the tiles that `g` names.
template <operand_width Width, int Promotion>
status multiply_expanded(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_arguments& g,
                         const device_info& device, stream s);

/// The same under a contract's options.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const device_info& device, stream s) {
  if constexpr (Width != operand_width::e5m2) return multiply_expanded<Width, 0>(a, b, k, g, device, s);
  return o.promotion == 128 ? multiply_expanded<operand_width::e5m2, 128>(a, b, k, g, device, s)
                            : multiply_expanded<operand_width::e5m2, 32>(a, b, k, g, device, s);
}

}  // namespace rotoscale::gpu::detail
