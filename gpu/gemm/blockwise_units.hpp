// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// fp32_blockwise on a matrix unit, where its sums are the definition's: the operands of `accurate` on sm_90, int8 or
// E5M2 emptied every 32 k. Those are exact sums of 32 products too, added in FP32 in the same order, of rows divided by
// a power of two. That division is not seen as long as no sum of the definition leaves FP32's normal numbers, so rows
// must have scales between least_unit_scale and largest_unit_scale, none of them NaN; tiles of 256 x 256 with any other
// row, or with one that E5M2 cannot hold, are computed by the definition's own kernel.
#pragma once

#include "gpu/gemm/blockwise.hpp"
#include "gpu/gemm/expanded.hpp"

namespace rotoscale::gpu {

/// E8M0 bytes of 2^-62 and 2^51. A sum is a multiple of a quarter of two least scales, and at most 36 times two largest
/// ones, 2^20 times over.
inline constexpr int least_unit_scale = 65, largest_unit_scale = 178;
static_assert(2 * scale_exponent(least_unit_scale) - 2 == -126, "the least normal number of FP32");
static_assert(36 * 1048576.0 < 0x1p26 && 2 * scale_exponent(largest_unit_scale) + 26 <= 128 &&
              max_gemm_extent == 1048576);

/// So many blocks see that nothing is left and, as a rule, leave; else they share the work.
inline constexpr int checking_blocks = 528;

/// Tiles of window_tile² whose width is BF16, by the definition.
template <int R>
[[maybe_unused]] static __global__ void __launch_bounds__(definition_threads)
    blockwise_rest_kernel(const definition_arguments p, const operand_width* widths, int base_b,
                          const rest_work* work) {
  static_assert(definition_threads == window_tile && window_tile % blockwise_position<R>::tile == 0);
  wait_for_kernel_before();
  if (widest_of_rest(*work) != operand_width::bf16) return;
  const int thread = static_cast<int>(thread_index().x);
  constexpr int tile = blockwise_position<R>::tile;
  const int count = ((p.a.rows + tile - 1) / tile) * ((p.b.rows + tile - 1) / tile);
  for (int i = static_cast<int>(block_index().x); i < count; i += static_cast<int>(grid_size().x)) {
    const blockwise_position<R> at(p, i);
    const int a = at.row / window_tile * window_tile + thread, b = at.column / window_tile * window_tile + thread;
    std::uint32_t combined = a < p.a.rows ? static_cast<std::uint32_t>(widths[a]) : 0;
    if (b < p.b.rows) combined |= static_cast<std::uint32_t>(widths[base_b + b]);
    block_barrier();  // the last width has been read
    if (block_width<definition_threads>(combined) == operand_width::bf16) blockwise_tile<R>(p, at.row, at.column);
  }
}

namespace detail {

/// Parts of the workspace, offsets in bytes.
struct blockwise_map {
  std::size_t e5m2_a = 0, e5m2_b = 0, int8_a = 0, int8_b = 0, base = 0, widths = 0, rest = 0, size = 0;
  blockwise_map(index_t m, index_t n, index_t k) {
    std::size_t* const at[] = {&e5m2_a, &e5m2_b, &int8_a, &int8_b, &base, &widths, &rest};
    const index_t rows = second_base(m) + n, bytes[] = {m * k, n * k, m * k, n * k, 4 * rows, rows, sizeof(rest_work)};
    for (int i = 0; i < 7; ++i) {
      *at[i] = size;
      size += (static_cast<std::size_t>(bytes[i]) + 255) / 256 * 256;
    }
  }
};

/// `p` is what the definition's kernel is told, `g` what becomes of sums; operands have aligned rows of codes.
inline status run_blockwise(const gemm_operand& a, const gemm_operand& b, const definition_arguments& p,
                            gemm_arguments g, std::uint8_t* memory, const device_info& device, stream stream) {
  const blockwise_map map(a.rows, b.rows, a.k);
  const auto source = [](const gemm_operand& x) {
    return block_source{x.codes, x.scales, x.code_stride, x.scale_stride, static_cast<int>(x.rows)};
  };
  const int k = static_cast<int>(a.k), rows = g.m + g.n;
  expand_arguments e{source(a),           source(b),          k, memory + map.e5m2_a, memory + map.e5m2_b,
                     memory + map.int8_a, memory + map.int8_b};
  e.base_b = g.base_b = second_base(g.m);
  g.base = e.base = reinterpret_cast<int*>(memory + map.base);
  g.widths = e.widths = reinterpret_cast<operand_width*>(memory + map.widths);
  e.least_scale = least_unit_scale;
  e.largest_scale = largest_unit_scale;
  e.has_bf16 = false;
  g.parts = 1;
  g.k = k;
  g.part_k = (k + 127) / 128 * 128;
  g.rest = reinterpret_cast<rest_work*>(memory + map.rest);
  g.max_width = operand_width::e5m2;
  const gemm_options o = contract_options(gemm_contract::accurate, device);
  status s = launch_behind_any(expand_int8_kernel, blocks((rows + int8_rows(k) - 1) / int8_rows(k)),
                               blocks(expand_threads), 0, stream, e);
  if (s.ok()) s = multiply<operand_width::int8>(e.staging_a, e.staging_b, o, g, device, stream);
  if (s.ok()) s = multiply_rest(e, o, o, g, device, stream);
  if (!s.ok()) return s;
  constexpr int owned_rows = 4, tile = 16 * owned_rows;
  const std::int64_t tiles = std::int64_t{(g.m + tile - 1) / tile} * ((g.n + tile - 1) / tile);
  return launch_behind(blockwise_rest_kernel<owned_rows>, blocks(tiles < checking_blocks ? tiles : checking_blocks),
                       blocks(definition_threads), 0, stream, p, g.widths, g.base_b, g.rest);
}

}  // namespace detail

}  // namespace rotoscale::gpu
