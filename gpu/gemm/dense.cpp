// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launches GEMMs of BF16 and FP8 operands without block scales, also after conversion to BF16. It holds the
// BF16 kernels.
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
  const gemm_operand* const from[] = {&l.call.a, &l.call.b};
  gemm_operand codes[2], converted[2];  // without factors, which multiply the sum
  matrix<bf16> values[2];
  std::uint8_t* at = l.workspace;
  for (int i = 0; i < 2; ++i) {
    codes[i] = converted[i] = *from[i];
    codes[i].factor = nullptr;
    if (from[i]->element == formats::bf16) continue;
    values[i] = row_major(reinterpret_cast<bf16*>(at), from[i]->rows, from[i]->k);
    at += bf16_bytes(*from[i]);
    converted[i] = make_operand(matrix<const bf16>(values[i]));
    converted[i].factor = from[i]->factor;
  }
  status s;
  if (codes[0].block != 0 && codes[1].block != 0) {
    s = dequantize_pair(codes[0], values[0], codes[1], values[1], l.stream);
  } else {
    for (int i = 0; i < 2 && s.ok(); ++i) {
      const gemm_operand& x = codes[i];
      if (x.element == formats::bf16) continue;
      s = x.block != 0 ? dequantize(x, block_axis::row, values[i], l.stream)
                       : decode_operand(x, false, values[i].data, formats::bf16, x.k, l.stream);
    }
  }
  return s.ok() ? multiply_and_add_parts(l, converted[0], converted[1], at) : s;
}

}  // namespace rotoscale::gpu::detail
