// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// mma.sync.m16n8k16 in host mode. A warp's fragments are collected as rows of A and columns of B. Finite numbers take a
// path with the steps of aligned_step (mma_ref.hpp) in doubles and integers; others take mma_step.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/mma_ref.hpp"

namespace rotoscale::gpu::detail {

/// A lane's arguments of mma.sync.m16n8k16.
struct mma_registers {
  const std::uint32_t *a, *b;
  float* d;
};
/// A row of 16 BF16 elements: codes, values, and exponents for alignment.
struct mma_row {
  static constexpr int exponent_of_zero = -20000;
  std::uint16_t code[16];
  double value[16];
  int exponent[16];
  bool finite;

  void set(int k, std::uint32_t bits) {
    const int field = static_cast<int>(bits >> 7 & 0xFFu);
    code[k] = static_cast<std::uint16_t>(bits);
    value[k] = fp32_from_bits(bits << 16);
    exponent[k] = (bits & 0x7FFFu) == 0 ? exponent_of_zero : field == 0 ? -126 : field - 127;
    finite = finite && field != 255;
  }
};

/// c + Σ a b, one step of the model of mma.sync m16n8k16.
inline float mma_step_by_definition(const mma_model& m, const mma_row& a, const mma_row& b, float c) {
  mma_product p[16];
  for (int k = 0; k < 16; ++k) {
    p[k] = mma_multiply(m, mma_element(mma_model{}, formats::bf16, a.code[k]),
                        mma_element(mma_model{}, formats::bf16, b.code[k]));
  }
  return fp32_value(mma_step(m, p, 16, unpack(formats::fp32, fp32_bits(c))));
}
/// The same for finite numbers: terms in units of the largest exponent, truncated, and their sum truncated to FP32.
inline float mma_step_of_finite(const mma_model& m, const mma_row& a, const mma_row& b, float c) {
  const auto power = [](int e) { return bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); };
  const int field = static_cast<int>(fp32_bits(c) >> 23 & 0xFFu);
  int largest = c == 0.0f ? m.least_exponent : field == 0 ? -126 : field - 127;
  largest = largest > m.least_exponent ? largest : m.least_exponent;
  for (int k = 0; k < 16; ++k) {
    const int e = a.exponent[k] + b.exponent[k];
    largest = e > largest ? e : largest;
  }
  const double units = power(m.fraction_bits - largest);
  auto sum = static_cast<std::int64_t>(c * units);
  for (int k = 0; k < 16; ++k) sum += static_cast<std::int64_t>(a.value[k] * b.value[k] * units);
  const double exact = static_cast<double>(sum) * power(largest - m.fraction_bits);
  const float nearest = static_cast<float>(exact);
  const bool is_beyond = exact >= 0x1p128 || exact <= -0x1p128;
  const bool is_away = exact < 0 ? nearest < exact : nearest > exact;
  const float truncated = is_away && !is_beyond ? fp32_from_bits(fp32_bits(nearest) - 1) : nearest;
  return truncated == 0.0f ? 0.0f : truncated;
}

/// d [16 × 8] += a [16 × 16] · bᵀ [8 × 16] under the unit's model.
inline void mma_m16n8k16(mma_registers* const (&lanes)[32]) {
  constexpr mma_model m = find_unit("hopper-mma-fp16-f32")->model;
  static_assert(m.sum == mma_sum::aligned && m.result == mma_result::fp32_truncate && m.group == 16);
  static thread_local mma_row a[16], b[8];
  for (mma_row& row : a) row.finite = true;
  for (mma_row& row : b) row.finite = true;
  for (int l = 0; l < 32; ++l) {
    const int group = l / 4, k = 2 * (l % 4);
    for (int half = 0; half < 2; ++half) {
      const auto code = [half](std::uint32_t words) { return words >> (16 * half) & 0xFFFFu; };
      for (int w = 0; w < 4; ++w) a[group + w % 2 * 8].set(k + w / 2 * 8 + half, code(lanes[l]->a[w]));
      for (int w = 0; w < 2; ++w) b[group].set(k + w * 8 + half, code(lanes[l]->b[w]));
    }
  }
  for (int l = 0; l < 32; ++l) {
    for (int e = 0; e < 4; ++e) {
      const mma_row &x = a[l / 4 + e / 2 * 8], &y = b[2 * (l % 4) + e % 2];
      float& d = lanes[l]->d[e];
      const bool finite = x.finite && y.finite && (fp32_bits(d) >> 23 & 0xFFu) != 255;
      d = finite ? mma_step_of_finite(m, x, y, d) : mma_step_by_definition(m, x, y, d);
    }
  }
}

}  // namespace rotoscale::gpu::detail
