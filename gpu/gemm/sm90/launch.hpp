// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What launchers know of the sm_90 GEMM kernels.
#pragma once

#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_boxes.hpp"

namespace rotoscale::gpu::detail {

/// FP8 sums are emptied every so many k: where E5M2 is the narrowest width (`fast`) and of operands as they lie, and in
/// what int8 leaves.
inline constexpr int first_promotion = 128, rest_promotion = 32;

/// Multiplies expanded operands in the tiles that `g` names.
template <operand_width Width>
status multiply_expanded(const std::uint8_t* a, const std::uint8_t* b, const gemm_arguments& g,
                         const device_info& device, stream s);
/// Expands the rest, if there is any, and multiplies it.
status multiply_rest(const expand_arguments& e, const gemm_arguments& g, const device_info& device, stream s);

/// Multiplies fp32_blockwise's operands, as expand_boxes.hpp left them.
status multiply_boxes(const expand_arguments& e, const tile_table& table, const gemm_arguments& g,
                      const device_info& device, stream s);

/// Multiplies FP8 as it lies, sums emptied every Promotion k (0: never).
template <int Promotion>
status multiply_fp8(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, const device_info& device,
                    stream s);

/// The first under a contract's options.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, [[maybe_unused]] const gemm_options& o,
                const gemm_arguments& g, const device_info& device, stream s) {
  if constexpr (Width == operand_width::e5m2) ROTOSCALE_ASSERT(o.promotion == first_promotion);
  return multiply_expanded<Width>(a, b, g, device, s);
}
inline status multiply_rest(const expand_arguments& e, [[maybe_unused]] const gemm_options& e5m2, const gemm_options&,
                            const gemm_arguments& g, const device_info& device, stream s) {
  ROTOSCALE_ASSERT(!is_rest(g, operand_width::e5m2) || e5m2.promotion == rest_promotion);
  return multiply_rest(e, g, device, s);
}

}  // namespace rotoscale::gpu::detail
