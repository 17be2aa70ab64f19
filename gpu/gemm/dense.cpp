// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches GEMMs of BF16 and FP8 operands without block scales, also after conversion to BF16. It holds the
// BF16 kernels.
#include <utility>

#include "gpu/api/dequantize.hpp"
#include "gpu/gemm/dense_kernels.hpp"
#include "gpu/gemm/plan.hpp"

namespace rotoscale::gpu::detail {

namespace {

status multiply_and_add_parts(const gemm_launch& l, const gemm_operand& a, const gemm_operand& b,
                              std::uint8_t* partial) {
  gemm_arguments g = make_arguments(l, partial);
  g.factor_a = a.factor;
  g.factor_b = b.factor;
  const status s = multiply_dense(a, b, options_of(l.kernel), g, l.device, l.stream);
  return s.ok() && g.parts > 1 ? finish_parts(g, l.stream) : s;
}

}  // namespace

status launch_dense(const gemm_launch& l) { return multiply_and_add_parts(l, l.call.a, l.call.b, l.workspace); }

status launch_upconverted(const gemm_launch& l) {
  gemm_operand converted[] = {l.call.a, l.call.b};
  std::uint8_t* at = l.workspace;
  for (gemm_operand& x : converted) {
    if (x.element == formats::bf16) continue;
    const matrix<bf16> values = row_major(reinterpret_cast<bf16*>(at), x.rows, x.k);
    at += bf16_bytes(x);
    const float* const factor = std::exchange(x.factor, nullptr);  // multiplies the sum
    const status s = x.block != 0 ? dequantize(x, block_axis::row, values, l.stream)
                                  : decode_operand(x, false, values.data, formats::bf16, x.k, l.stream);
    if (!s.ok()) return s;
    x = make_operand(matrix<const bf16>(values));
    x.factor = factor;
  }
  return multiply_and_add_parts(l, converted[0], converted[1], at);
}

}  // namespace rotoscale::gpu::detail
