// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The reference GEMM for any device: slow, one thread per output.
// MXFP4: fp32_blockwise. A block of 32 products is an exact integer number of quarters, which one fused multiply-add
// scales and adds. With an FP8 operand: fp32_fma_chain, one fused multiply-add per product.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/operand.hpp"
#include "gpu/gemm/output.hpp"
#include "rotoscale/dequantize_ref.hpp"

namespace rotoscale::gpu {

/// Twice the value of an E2M1 code.
ROTOSCALE_HD constexpr int doubled_e2m1(std::uint32_t code) {
  const int magnitude = static_cast<int>(0xC8643210u >> (4 * (code & 7u)) & 15u);
  return (code & 8u) != 0 ? -magnitude : magnitude;
}

/// acc + quarters * 2^(exponent - 2), rounded once. A zero sum stays -0 only if every product is -0.
ROTOSCALE_HD inline float add_block(float acc, int quarters, int exponent, bool negative_zeros) {
  if (quarters == 0 && fp32_bits(acc) == 0x80000000u) return negative_zeros ? acc : 0.0f;
  const int e = exponent - 2;
  // Powers of two beyond FP32's range take two factors, the first exact. If the second is clamped, the sum is Inf or
  // acc.
  const int first = e > 127 ? 63 : e < -149 ? -100 : 0;
  const int rest = e - first;
  return __builtin_fmaf(static_cast<float>(quarters) * pow2_fp32(first),
                        pow2_fp32(rest > 127    ? 127
                                  : rest < -149 ? -149
                                                : rest),
                        acc);
}

/// Accumulator of output (i, j).
ROTOSCALE_HD inline float reference_sum(const kernel_operand& a, const kernel_operand& b, int i, int j) {
  float acc = 0.0f;
  for (int block = 0; block < a.k / 32; ++block) {
    const std::uint8_t scale_a = a.scale_byte(i, block), scale_b = b.scale_byte(j, block);
    int quarters = 0;
    bool negative_zeros = true;
    for (int c = 16 * block; c < 16 * block + 16; ++c) {
      const std::uint32_t x = a.code_byte(i, c), y = b.code_byte(j, c);
      for (int h = 0; h < 8; h += 4) {
        const int product = doubled_e2m1(x >> h) * doubled_e2m1(y >> h);
        quarters += product;
        negative_zeros = negative_zeros && product == 0 && ((x ^ y) >> h & 8u) != 0;
      }
    }
    if (scale_a == nan_scale_byte || scale_b == nan_scale_byte) {
      acc = fp32_from_bits(fp32_nan_bits);
    } else {
      acc = add_block(acc, quarters, scale_exponent(scale_a) + scale_exponent(scale_b), negative_zeros);
    }
  }
  return acc;
}

/// An element's value, exact within FP32's range.
ROTOSCALE_HD inline float element_value(const kernel_operand& m, int row, int c) {
  const std::uint8_t scale = m.scale_byte(row, c / 32);
  if (m.element == gemm_element::e2m1) return decode_scaled(mxfp4, nibble(m.code_byte(row, c / 2), c), scale);
  return fp8_value(m.element == gemm_element::e4m3, m.code_byte(row, c)) * scale_value(scale);
}

/// Accumulator of output (i, j) if an operand is not E2M1.
ROTOSCALE_HD inline float reference_chain(const kernel_operand& a, const kernel_operand& b, int i, int j) {
  float acc = 0.0f;
  for (int c = 0; c < a.k; ++c) acc = __builtin_fmaf(element_value(a, i, c), element_value(b, j, c), acc);
  return acc;
}

struct reference_arguments {
  kernel_operand a, b;
  gemm_arguments p;
};

inline constexpr int reference_threads = 128;

/// One thread per output; a block covers reference_threads columns of a row.
[[maybe_unused]] static __global__ void reference_kernel(const reference_arguments r) {
  const int across = (r.p.n + reference_threads - 1) / reference_threads, block = static_cast<int>(block_index().x);
  const int row = block / across, column = block % across * reference_threads + static_cast<int>(thread_index().x);
  if (column >= r.p.n) return;
  const bool fp4 = r.a.element == gemm_element::e2m1 && r.b.element == gemm_element::e2m1;
  store_output(r.p, fp4 ? reference_sum(r.a, r.b, row, column) : reference_chain(r.a, r.b, row, column), row, column);
}

}  // namespace rotoscale::gpu
