// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode's stand-in for a tensor-core kernel. Operands, workspace, tiles, their order, split-K and outputs are the
// same. One block per tile; mma_model replaces the tensor core. int8 sums are exact in any order.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/plan.hpp"
#include "gpu/gemm/tile_k_blocks.hpp"
#include "gpu/gemm/tile_walk.hpp"
#include "gpu/gemm/upconvert_fallback.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu {

struct stand_in_arguments {
  const std::uint8_t *a, *b;  ///< converted operands, k contiguous
  operand_width width;        ///< int8, E5M2 or BF16
  gemm_options options;       ///< options of the contract
  gemm_arguments p;
};

inline constexpr int stand_in_threads = 64;

__device__ inline std::int32_t int8_sum(const std::uint8_t* a, const std::uint8_t* b, index_t length) {
  std::int32_t sum = 0;
  for (index_t i = 0; i < length; ++i) sum += static_cast<std::int8_t>(a[i]) * static_cast<std::int8_t>(b[i]);
  return sum;
}

/// Computes one output's sum over a part of K and stores it.
__device__ inline void stand_in_output(const stand_in_arguments& e, int row, int column, int part) {
  const gemm_arguments& p = e.p;
  const bool wide = e.width == operand_width::bf16;
  const index_t bytes = wide ? 2 : 1, k = p.k, part_k = p.part_k;
  const format element = wide ? formats::bf16 : formats::e5m2;
  const index_t first = part * part_k, length = first + part_k < k ? part_k : k - first;
  const gemm_operand a{element, 1, length, e.a + (row * k + first) * bytes, length * bytes};
  const gemm_operand b{element, 1, length, e.b + (column * k + first) * bytes, length * bytes};
  const float sum = e.width == operand_width::int8 ? static_cast<float>(int8_sum(a.codes, b.codes, length)) * int8_unit
                                                   : accumulate_ref(a, 0, b, 0, e.options, 0.0f);
  if (p.parts == 1) {
    const bool folded = !wide && p.base != nullptr;
    store_output(p, folded ? times_power(sum, p.base[row] + p.base[p.base_b + column]) : sum, row, column);
  } else {
    p.partial[(static_cast<std::int64_t>(part) * p.m + row) * p.n + column] = sum;
  }
}

/// Calls `use` with row and column of each of a thread's outputs in the tile at (row, column).
template <class Use>
__device__ void each_output(const gemm_arguments& p, int row, int column, const Use& use) {
  const int height = p.m - row < p.tile_m ? p.m - row : p.tile_m,
            width = p.n - column < p.tile_n ? p.n - column : p.tile_n;
  for (int i = static_cast<int>(thread_index().x); i < height * width; i += stand_in_threads) {
    use(row + i / width, column + i % width);
  }
}

/// One block per tile of a part of K, if the tile has this width.
__device__ inline void stand_in_tile(const stand_in_arguments& e) {
  const gemm_arguments& p = e.p;
  const tile_position at = tile_walk(p, p.tile_m, p.tile_n).at(static_cast<int>(block_index().x));
  const int row = at.row * p.tile_m, column = at.column * p.tile_n;
  if (p.widths != nullptr && combined_width(combined_widths_of_tile(p, row, column)) != e.width) return;
  each_output(p, row, column, [&](int r, int c) { stand_in_output(e, r, c, at.part); });
}

[[maybe_unused]] static __global__ void stand_in_kernel(const stand_in_arguments e) {
  const gemm_arguments& p = e.p;
  if (p.widths != nullptr) {
    const int thread = static_cast<int>(thread_index().x);
    leave_fallback(
        p, block_width<stand_in_threads>(combined_widths_of_all(p.widths, p.m, thread, stand_in_threads) |
                                         combined_widths_of_all(p.widths + p.base_b, p.n, thread, stand_in_threads)));
  }
  stand_in_tile(e);
}

/// Fallback tiles: E5M2, then BF16.
[[maybe_unused]] static __global__ void stand_in_fallback_kernel(const upconvert_arguments e,
                                                                 const stand_in_arguments e5m2,
                                                                 const stand_in_arguments bf16) {
  const gemm_arguments& p = e5m2.p;
  const operand_width widest = widest_fallback(*p.fallback);
  if (widest == p.min_width) return;
  upconvert_fallback(e, *p.fallback, widest);
  for (const stand_in_arguments* x : {&e5m2, &bf16}) {
    if (is_fallback(p, x->width)) stand_in_tile(*x);
  }
}

/// An output of fp32_blockwise: its plain k-blocks, then its shifted k-blocks, then its E5M2 k-blocks 32 k at a time.
__device__ inline void stand_in_k_blocks(const stand_in_arguments& int8, const stand_in_arguments& e5m2,
                                         const tile_table& table, const tile_k_blocks& k_blocks, int row, int column) {
  const gemm_arguments& p = e5m2.p;
  const index_t k = p.k;
  const auto of_k_block = [&](int k_block) {
    const index_t first = index_t{k_block} * k_block_length,
                  length = k - first < k_block_length ? k - first : k_block_length;
    return int8_sum(int8.a + row * k + first, int8.b + column * k + first, length);
  };
  std::int32_t exact = 0;
  k_blocks.each(k_block_kind::plain, [&](int k_block) { exact += of_k_block(k_block); });
  float sum = static_cast<float>(exact) * window_unit;
  const auto factor = [&](const std::uint32_t* outside, int tile, int k_block, int in_tile, float plain) {
    if (!tile_k_blocks::has(outside, k_block)) return plain;
    const std::uint32_t bits = table.shifts[(std::int64_t{tile} * k_blocks.count + k_block) * window_tile + in_tile];
    return fp32_from_bits(bits << 16);
  };
  k_blocks.each(k_block_kind::shifted, [&](int k_block) {
    const float a = factor(k_blocks.a, row / window_tile, k_block, row % window_tile, 1.0f);
    const float b =
        factor(k_blocks.b, table.tiles_a + column / window_tile, k_block, column % window_tile, window_unit);
    sum += static_cast<float>(of_k_block(k_block)) * a * b;
  });
  k_blocks.each(k_block_kind::e5m2, [&](int k_block) {
    for (index_t first = index_t{k_block} * k_block_length; first < k && first < index_t{k_block + 1} * k_block_length;
         first += 32) {
      const gemm_operand a{formats::e5m2, 1, 32, e5m2.a + row * k + first, 32};
      const gemm_operand b{formats::e5m2, 1, 32, e5m2.b + column * k + first, 32};
      sum += accumulate_ref(a, 0, b, 0, e5m2.options, 0.0f);
    }
  });
  store_output(p, times_power(sum, p.base[row] + p.base[p.base_b + column]), row, column);
}
[[maybe_unused]] static __global__ void stand_in_k_blocks_kernel(const stand_in_arguments int8,
                                                                 const stand_in_arguments e5m2,
                                                                 const tile_table table) {
  const gemm_arguments& p = e5m2.p;
  const tile_position at = tile_walk(p, p.tile_m, p.tile_n).at(static_cast<int>(block_index().x));
  const int row = at.row * p.tile_m, column = at.column * p.tile_n;
  const tile_k_blocks k_blocks(table, p.k, row / window_tile, column / window_tile);
  if (k_blocks.falls_back(p)) return;
  each_output(p, row, column, [&](int r, int c) { stand_in_k_blocks(int8, e5m2, table, k_blocks, r, c); });
}

namespace detail {

/// Multiplies fp32_blockwise's operands, as converted by upconvert_k_blocks.hpp.
inline status multiply_k_blocks(const upconvert_arguments& e, const tile_table& table, const gemm_arguments& g,
                                const device_info&, stream s) {
  const gemm_options o = options_of(traits_of(arch::sm_90).accurate);
  return launch(stand_in_k_blocks_kernel, blocks(tile_walk(g, g.tile_m, g.tile_n).count()), blocks(stand_in_threads), 0,
                s, stand_in_arguments{e.staging_a, e.staging_b, operand_width::int8, o, g},
                stand_in_arguments{e.e5m2_a, e.e5m2_b, operand_width::e5m2, o, g}, table);
}

/// Multiplies converted operands.
template <operand_width Width>
status multiply(const std::uint8_t* a, const std::uint8_t* b, const gemm_options& o, const gemm_arguments& g,
                const device_info&, stream s) {
  return launch(stand_in_kernel, blocks(tile_walk(g, g.tile_m, g.tile_n).count()), blocks(stand_in_threads), 0, s,
                stand_in_arguments{a, b, Width, o, g});
}

/// Converts and multiplies the fallback tiles, if there are any.
inline status multiply_fallback(const upconvert_arguments& e, const gemm_options& e5m2, const gemm_options& bf16,
                                const gemm_arguments& g, const device_info&, stream s) {
  return launch(stand_in_fallback_kernel, blocks(tile_walk(g, g.tile_m, g.tile_n).count()), blocks(stand_in_threads), 0,
                s, e, stand_in_arguments{e.e5m2_a, e.e5m2_b, operand_width::e5m2, e5m2, g},
                stand_in_arguments{e.staging_a, e.staging_b, operand_width::bf16, bf16, g});
}

}  // namespace detail

}  // namespace rotoscale::gpu
