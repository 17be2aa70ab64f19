// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host mode's stand-in for sm_90's kernels of dense BF16 and FP8 operands: one thread per output, with the tensor
// core's mma_model.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/plan.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu {

inline constexpr int dense_threads = 64;

/// One thread per output of a GEMM of dense operands.
[[maybe_unused]] static __global__ void dense_stand_in_kernel(const gemm_operand a, const gemm_operand b,
                                                              const gemm_options o, const gemm_arguments p) {
  const std::int64_t at = block_index().x * std::int64_t{dense_threads} + thread_index().x;
  if (at >= std::int64_t{p.m} * p.n) return;
  const int row = static_cast<int>(at / p.n), column = static_cast<int>(at % p.n);
  if (p.parts == 1) {
    return store_output(p, output_factor(p), accumulate_ref(a, row, b, column, o, 0.0f), row, column);
  }
  for (int i = 0; i < p.parts; ++i) {
    const index_t first = index_t{i} * p.part_k, left = a.k - first;
    const auto part_of = [&](gemm_operand x) {
      x.codes += first * (x.transposed ? x.code_stride : x.element.bits() / 8);
      x.k = left < p.part_k ? left : p.part_k;
      return x;
    };
    p.partial[(std::int64_t{i} * p.m + row) * p.n + column] =
        accumulate_ref(part_of(a), row, part_of(b), column, o, 0.0f);
  }
}

namespace detail {

inline status stand_in_for_dense(const gemm_operand& a, const gemm_operand& b, const gemm_options& o,
                                 const gemm_arguments& g, stream s) {
  const std::int64_t count = std::int64_t{g.m} * g.n;
  return launch(dense_stand_in_kernel, blocks((count + dense_threads - 1) / dense_threads), blocks(dense_threads), 0, s,
                a, b, o, g);
}

}  // namespace detail

}  // namespace rotoscale::gpu
