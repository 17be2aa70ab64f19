// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Values of an operand with blocks, with its rotation undone: the `dequantized` operands of a recipe.
// Compiled without contraction, since a scaled element must be rounded before a butterfly adds it.
#pragma once

#include "gpu/api/dequantize.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/gemm/simt.hpp"

namespace rotoscale::gpu {

struct unrotate_arguments {
  simt_operand from;
  int k = 0, points = 0, run = 0;  ///< `run`: elements that share one mask of signs
  nn::form_draws draws;            ///< signs to undo
  const nn::step_state* state = nullptr;
  std::uint16_t* to = nullptr;
  std::int64_t stride = 0;
};

/// A subgroup of 32 lanes takes 32 * Parts elements of a row, Parts per lane: decode, rotate back as unrotate_run does,
/// store as BF16.
template <int Parts>
__global__ void __launch_bounds__(simt_threads) unrotate_kernel(const unrotate_arguments a) {
  const int lane = static_cast<int>(thread_index().x) % subgroup_lanes, width = Parts * subgroup_lanes,
            across = (a.k + width - 1) / width;
  std::uint32_t signs[Parts];
  ROTOSCALE_UNROLL
  for (int i = 0; i < Parts; ++i) signs[i] = a.state != nullptr ? a.draws.mask(*a.state, i) : a.draws.given_signs[i];
  const float factor = a.from.factor != nullptr ? *a.from.factor : 1.0f;
  constexpr int subgroups = simt_threads / subgroup_lanes;
  const std::int64_t items = std::int64_t{a.from.rows} * across;
  ROTOSCALE_KEEP_LOOP
  for (std::int64_t i = std::int64_t{block_index().x} * subgroups + static_cast<int>(thread_index().x) / subgroup_lanes;
       i < items; i += std::int64_t{grid_size().x} * subgroups) {
    const auto row = static_cast<int>(i / across), first = static_cast<int>(i % across) * width + lane;
    lane_row<unsigned{Parts}> values;
    ROTOSCALE_UNROLL
    for (int p = 0; p < Parts; ++p) {
      const int c = first + p * subgroup_lanes;
      values.x[p] = c < a.k ? simt_value(a.from, row, c) * factor : 0.0f;
    }
    values.rotate(static_cast<unsigned>(lane), static_cast<unsigned>(a.points), Parts);
    ROTOSCALE_UNROLL
    for (int p = 0; p < Parts; ++p) {
      const int c = first + p * subgroup_lanes;
      float x = values.x[p];
      if (a.points != 0) x *= hadamard_factor(a.points);
      if ((signs[p * subgroup_lanes % a.run / subgroup_lanes] >> (c % a.run % 32) & 1u) != 0) x = -x;
      if (c >= a.k) continue;
      const bool nan = fp32_is_nan(fp32_bits(x));  // canonical NaN, like the CPU's dequantize
      a.to[row * a.stride + c] = static_cast<std::uint16_t>(nan ? 0x7FC0u : bf16_bits_keeping_nan(x));
    }
  }
}

}  // namespace rotoscale::gpu
