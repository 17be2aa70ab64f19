// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode's stand-in for a matrix kernel: the same operands from the same workspace, the same tiles in the same
// order, parts and outputs, a block a tile, the matrix unit replaced by its mma_model; sums of int8 are exact in any
// order.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/expand_rest.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_walk.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu {

struct stand_in_arguments {
  const std::uint8_t *a, *b;  ///< expanded operands, k contiguous
  operand_width width;        ///< int8, E5M2 or BF16
  gemm_options options;       ///< of the contract
  gemm_arguments p;
};

inline constexpr int stand_in_threads = 64;

/// The sum of `length` int8 products as a sum of E5M2 products.
__device__ inline float int8_sum(const std::uint8_t* a, const std::uint8_t* b, index_t length) {
  std::int32_t sum = 0;
  for (index_t i = 0; i < length; ++i) sum += static_cast<std::int8_t>(a[i]) * static_cast<std::int8_t>(b[i]);
  return static_cast<float>(sum) * int8_unit;
}

/// The sum of an output's part of K, and where it goes.
__device__ inline void stand_in_output(const stand_in_arguments& e, int row, int column, int part) {
  const gemm_arguments& p = e.p;
  const bool wide = e.width == operand_width::bf16;
  const index_t bytes = wide ? 2 : 1, k = p.k, part_k = p.part_k;
  const format element = wide ? formats::bf16 : formats::e5m2;
  const index_t first = part * part_k, length = first + part_k < k ? part_k : k - first;
  const gemm_operand a{element, 1, length, e.a + (row * k + first) * bytes, length * bytes};
  const gemm_operand b{element, 1, length, e.b + (column * k + first) * bytes, length * bytes};
  const float sum =
      e.width == operand_width::int8 ? int8_sum(a.codes, b.codes, length) : accumulate_ref(a, 0, b, 0, e.options, 0.0f);
  if (p.parts == 1) {
    const bool folded = !wide && p.base != nullptr;
    store_output(p, folded ? times_power(sum, p.base[row] + p.base[p.base_b + column]) : sum, row, column);
  } else {
    p.partial[(static_cast<std::int64_t>(part) * p.m + row) * p.n + column] = sum;
  }
}

/// A block a tile of a part of K, where it has this width.
__device__ inline void stand_in_tile(const stand_in_arguments& e) {
  const gemm_arguments& p = e.p;
  const tile_position at = tile_walk(p, p.tile_m, p.tile_n).at(static_cast<int>(block_index().x));
  const int row = at.row * p.tile_m, column = at.column * p.tile_n;
  if (p.widths != nullptr && combined_width(combined_widths_of_tile(p, row, column)) != e.width) return;
  const int height = p.m - row < p.tile_m ? p.m - row : p.tile_m,
            width = p.n - column < p.tile_n ? p.n - column : p.tile_n;
  for (int i = static_cast<int>(thread_index().x); i < height * width; i += stand_in_threads) {
    stand_in_output(e, row + i / width, column + i % width, at.part);
  }
}

[[maybe_unused]] static __global__ void stand_in_kernel(const stand_in_arguments e) {
  const gemm_arguments& p = e.p;
  if (p.widths != nullptr) {
    const int thread = static_cast<int>(thread_index().x);
    leave_rest(
        p, block_width<stand_in_threads>(combined_widths_of_all(p.widths, p.m, thread, stand_in_threads) |
                                         combined_widths_of_all(p.widths + p.base_b, p.n, thread, stand_in_threads)));
  }
  stand_in_tile(e);
}

/// The rest: E5M2, then BF16.
[[maybe_unused]] static __global__ void stand_in_rest_kernel(const expand_arguments e, const stand_in_arguments e5m2,
                                                             const stand_in_arguments bf16) {
  const gemm_arguments& p = e5m2.p;
  const operand_width widest = widest_of_rest(*p.rest);
  if (widest == p.min_width) return;
  expand_rest(e, *p.rest, widest);
  for (const stand_in_arguments* x : {&e5m2, &bf16}) {
    if (is_rest(p, x->width)) stand_in_tile(*x);
  }
}

namespace detail {

/// Multiplies expanded operands.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, const gemm_options& o, const gemm_arguments& g,
                const device_info&, stream s) {
  return launch(stand_in_kernel, blocks(tile_walk(g, g.tile_m, g.tile_n).count()), blocks(stand_in_threads), 0, s,
                stand_in_arguments{a, b, Width, o, g});
}

/// Expands the rest, if there is any, and multiplies it.
inline status multiply_rest(const expand_arguments& e, const gemm_options& e5m2, const gemm_options& bf16,
                            const gemm_arguments& g, const device_info&, stream s) {
  return launch(stand_in_rest_kernel, blocks(tile_walk(g, g.tile_m, g.tile_n).count()), blocks(stand_in_threads), 0, s,
                e, stand_in_arguments{e.e5m2_a, e.e5m2_b, operand_width::e5m2, e5m2, g},
                stand_in_arguments{e.staging_a, e.staging_b, operand_width::bf16, bf16, g});
}

}  // namespace detail

}  // namespace rotoscale::gpu
