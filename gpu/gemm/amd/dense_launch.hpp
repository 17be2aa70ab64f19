// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches of the kernel of dense BF16 operands on gfx942 and gfx950, and the tile selection of AMD's kernels.
#pragma once

#include <utility>

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/amd/dense.hpp"
#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

/// Grid of the schedule's tiles and of parts of K.
inline dim3 tile_grid(const gemm_arguments& g) {
  const auto along = [](int extent, int tile) { return static_cast<unsigned>((extent + tile - 1) / tile); };
  return {along(g.n, g.tile_n), along(g.m, g.tile_m), static_cast<unsigned>(g.parts)};
}

/// Calls run<tile>() with the schedule's tile, which must be in the table.
template <const auto& Tiles, class Run>
status in_tiles(const gemm_arguments& g, const Run& run) {
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    status done{error_code::unsupported_device, "choice.schedule", "this build has no kernel of that tile"};
    static_cast<void>(
        ((g.tile_m == Tiles[I].m && g.tile_n == Tiles[I].n && (done = run.template operator()<Tiles[I]>(), true)) ||
         ...));
    return done;
  }
  (std::make_index_sequence<std::size(Tiles)>());
}

/// The `fours` of store_columns.
inline bool stores_fours(const gemm_arguments& g) {
  const auto at = reinterpret_cast<std::uintptr_t>(g.out);
  return g.n % 4 == 0 && (g.parts > 1 || (at % (g.bf16_out ? 8 : 16) == 0 && g.out_stride % 4 == 0));
}

/// Launches the tile of `g`, with or without split-K.
inline status launch_dense(const amd::dense_operand& a, bool transposed_a, const amd::dense_operand& b,
                           bool transposed_b, const gemm_arguments& g, stream s) {
  const amd::dense_arguments all{a, b, stores_fours(g), g};
  return in_tiles<dense_tiles>(g, [&]<tile_shape T>() {
    static_assert(amd::dense_shape<T.m, T.n>::percent == T.percent);
    const auto kernel =
        transposed_a
            ? (transposed_b ? amd::dense_kernel<T.m, T.n, true, true> : amd::dense_kernel<T.m, T.n, true, false>)
            : (transposed_b ? amd::dense_kernel<T.m, T.n, false, true> : amd::dense_kernel<T.m, T.n, false, false>);
    return launch(kernel, tile_grid(g), blocks(amd::threads), 0, s, all);
  });
}

/// Multiplies BF16 operands.
inline status multiply_dense_on_amd(const gemm_operand& a, const gemm_operand& b, const gemm_arguments& g, stream s) {
  return launch_dense({a.codes, a.code_stride}, a.transposed, {b.codes, b.code_stride}, b.transposed, g, s);
}

}  // namespace rotoscale::gpu::detail
