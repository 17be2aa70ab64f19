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

/// A subgroup of 32 lanes takes 32 elements of a row, one per lane: decode, rotate back as unrotate_run does, store as
/// BF16.
[[maybe_unused]] static __global__ void __launch_bounds__(simt_threads) unrotate_kernel(const unrotate_arguments a) {
  const int lane = static_cast<int>(thread_index().x) % subgroup_lanes,
            across = (a.k + subgroup_lanes - 1) / subgroup_lanes;
  const std::uint32_t signs = a.state != nullptr ? a.draws.mask(*a.state) : a.draws.given_signs;
  const float factor = a.from.factor != nullptr ? *a.from.factor : 1.0f;
  constexpr int subgroups = simt_threads / subgroup_lanes;
  const std::int64_t items = std::int64_t{a.from.rows} * across;
  ROTOSCALE_KEEP_LOOP
  for (std::int64_t i = std::int64_t{block_index().x} * subgroups + static_cast<int>(thread_index().x) / subgroup_lanes;
       i < items; i += std::int64_t{grid_size().x} * subgroups) {
    const auto row = static_cast<int>(i / across), c = static_cast<int>(i % across) * subgroup_lanes + lane;
    float x = c < a.k ? simt_value(a.from, row, c) * factor : 0.0f;
    x = subgroup_butterflies(x, static_cast<unsigned>(c), static_cast<unsigned>(a.points));
    if (a.points != 0) x *= hadamard_factor(a.points);
    if ((signs >> (c % a.run % 32) & 1u) != 0) x = -x;
    if (c >= a.k) continue;
    const bool nan = fp32_is_nan(fp32_bits(x));  // canonical NaN, like the CPU's dequantize
    a.to[row * a.stride + c] = static_cast<std::uint16_t>(nan ? 0x7FC0u : bf16_bits_keeping_nan(x));
  }
}

}  // namespace rotoscale::gpu
