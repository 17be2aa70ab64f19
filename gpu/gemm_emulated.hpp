// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode's stand-in for a matrix kernel: the same operands from the same workspace, the same tiles, parts and
// outputs, one thread an output, the matrix unit replaced by its mma_model.
#pragma once

#include "gpu/gemm_output.hpp"
#include "rotoscale/gemm_kernels.hpp"

namespace rotoscale::gpu {

struct emulated_arguments {
  const std::uint8_t *a, *b;  ///< expanded operands, k contiguous
  bool fp8;                   ///< E5M2, else BF16
  index_t k;
  gemm_options options;  ///< of the contract
  gemm_arguments p;
};

inline constexpr int emulated_threads = 64;

/// One thread an output; blocks cover emulated_threads columns of a row.
[[maybe_unused]] static __global__ void emulated_kernel(const emulated_arguments e) {
  const gemm_arguments& p = e.p;
  const int across = (p.n + emulated_threads - 1) / emulated_threads, block = static_cast<int>(block_index().x);
  const int row = block / across, column = block % across * emulated_threads + static_cast<int>(thread_index().x);
  if (column >= p.n || (p.flags != nullptr && tile_is_flagged(p, row, column) == e.fp8)) return;
  const index_t bytes = e.fp8 ? 1 : 2, part = index_t{p.part_boxes} * 128 / bytes;
  const format element = e.fp8 ? formats::e5m2 : formats::bf16;
  for (int i = 0; i < p.parts; ++i) {
    const index_t first = i * part, length = first + part < e.k ? part : e.k - first;
    const gemm_operand a{element, 1, length, e.a + (row * e.k + first) * bytes, length * bytes};
    const gemm_operand b{element, 1, length, e.b + (column * e.k + first) * bytes, length * bytes};
    const float sum = accumulate_ref(a, 0, b, 0, e.options, 0.0f);
    if (p.parts == 1) {
      const bool folded = e.fp8 && p.base != nullptr;
      store_output(p, folded ? times_power(sum, p.base[row] + p.base[p.base_b + column]) : sum, row, column);
    } else {
      p.partial[(static_cast<std::int64_t>(i) * p.m + row) * p.n + column] = sum;
    }
  }
}

}  // namespace rotoscale::gpu
