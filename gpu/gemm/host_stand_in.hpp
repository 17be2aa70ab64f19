// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode's stand-in for a matrix kernel: the same operands from the same workspace, the same tiles, parts and
// outputs, one thread an output, the matrix unit replaced by its mma_model; sums of int8 are exact in any order.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/plan.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu {

struct stand_in_arguments {
  const std::uint8_t *a, *b;  ///< expanded operands, k contiguous
  operand_width width;        ///< int8, E5M2 or BF16
  index_t k;
  gemm_options options;  ///< of the contract
  gemm_arguments p;
};

inline constexpr int stand_in_threads = 64;

/// The sum of `length` int8 products as a sum of E5M2 products.
__device__ inline float int8_sum(const std::uint8_t* a, const std::uint8_t* b, index_t length) {
  std::int32_t sum = 0;
  for (index_t i = 0; i < length; ++i) sum += static_cast<std::int8_t>(a[i]) * static_cast<std::int8_t>(b[i]);
  return static_cast<float>(sum) * int8_unit;
}

/// One thread an output; blocks cover stand_in_threads columns of a row.
[[maybe_unused]] static __global__ void stand_in_kernel(const stand_in_arguments e) {
  const gemm_arguments& p = e.p;
  const int across = (p.n + stand_in_threads - 1) / stand_in_threads, block = static_cast<int>(block_index().x);
  const int row = block / across, column = block % across * stand_in_threads + static_cast<int>(thread_index().x);
  if (column >= p.n) return;
  if (p.widths != nullptr && joined_width(joined_widths_of_tile(p, row, column)) != e.width) return;
  const bool wide = e.width == operand_width::bf16;
  const index_t bytes = wide ? 2 : 1, part = index_t{p.part_boxes} * 128 / bytes;
  const format element = wide ? formats::bf16 : formats::e5m2;
  for (int i = 0; i < p.parts; ++i) {
    const index_t first = i * part, length = first + part < e.k ? part : e.k - first;
    const gemm_operand a{element, 1, length, e.a + (row * e.k + first) * bytes, length * bytes};
    const gemm_operand b{element, 1, length, e.b + (column * e.k + first) * bytes, length * bytes};
    const float sum = e.width == operand_width::int8 ? int8_sum(a.codes, b.codes, length)
                                                     : accumulate_ref(a, 0, b, 0, e.options, 0.0f);
    if (p.parts == 1) {
      const bool folded = !wide && p.base != nullptr;
      store_output(p, folded ? times_power(sum, p.base[row] + p.base[p.base_b + column]) : sum, row, column);
    } else {
      p.partial[(static_cast<std::int64_t>(i) * p.m + row) * p.n + column] = sum;
    }
  }
}

namespace detail {

/// Multiplies expanded operands.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, int k, const gemm_options& o, const gemm_arguments& g,
                const device_info&, stream s) {
  const std::int64_t across = (g.n + stand_in_threads - 1) / stand_in_threads;
  return launch(stand_in_kernel, blocks(across * g.m), blocks(stand_in_threads), 0, s,
                stand_in_arguments{a, b, Width, k, o, g});
}

}  // namespace detail

}  // namespace rotoscale::gpu
