// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host-side interface of the sm_90 GEMM kernels, without device code.
#pragma once

#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_k_blocks.hpp"

namespace rotoscale::gpu::detail {

/// k between promotions: of the first kernel with E5M2 (`fast`) and per-tensor FP8, and of the fallback kernel.
inline constexpr int first_promotion = 128, fallback_promotion = 32;

/// Multiplies converted operands with the tile of `g`.
template <operand_width Width>
status multiply_converted(const std::uint8_t* a, const std::uint8_t* b, const gemm_arguments& g,
                          const device_info& device, stream s);
/// Converts and multiplies the fallback tiles, if there are any.
status multiply_fallback(const upconvert_arguments& e, const gemm_arguments& g, const device_info& device, stream s);

/// Multiplies fp32_blockwise's operands, as converted by upconvert_k_blocks.hpp.
status multiply_k_blocks(const upconvert_arguments& e, const tile_table& table, const gemm_arguments& g,
                         const device_info& device, stream s);

/// Multiplies per-tensor FP8 operands, promoted every Promotion k (0: never).
template <int Promotion>
status multiply_fp8(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, const device_info& device,
                    stream s);

/// multiply_converted under a contract's options.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, [[maybe_unused]] const gemm_options& o,
                const gemm_arguments& g, const device_info& device, stream s) {
  if constexpr (Width == operand_width::e5m2) ROTOSCALE_ASSERT(o.promotion == first_promotion);
  return multiply_converted<Width>(a, b, g, device, s);
}
inline status multiply_fallback(const upconvert_arguments& e, [[maybe_unused]] const gemm_options& e5m2,
                                const gemm_options&, const gemm_arguments& g, const device_info& device, stream s) {
  ROTOSCALE_ASSERT(!is_fallback(g, operand_width::e5m2) || e5m2.promotion == fallback_promotion);
  return multiply_fallback(e, g, device, s);
}

}  // namespace rotoscale::gpu::detail
