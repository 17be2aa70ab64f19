// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An mma_model value states how a matrix unit adds: everything a GEMM needs to know to give its bits.
#pragma once

#include "rotoscale/config.hpp"

namespace rotoscale {

/// D = A·B along K: `group` consecutive products are summed without rounding, the sum is added to the FP32 accumulator
/// with one rounding (nearest even), groups in ascending order, starting from +0.
struct mma_model {
  int group = 1;

  constexpr bool operator==(const mma_model&) const = default;
};

/// One FP32 fused multiply-add a product.
inline constexpr mma_model fp32_fma_chain{1};
/// MX blocks: 32 exact E2M1 products (a multiple of 1/4 up to 1152, times the two scales), then one FP32 rounding.
inline constexpr mma_model fp32_blockwise{32};

static_assert(32 * 4 * 6 * 6 < 1 << 24, "a block sum in quarters fits FP32's significand");

}  // namespace rotoscale
