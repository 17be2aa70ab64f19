// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A run of E2M1 numbers as BF16, rounded and multiplied by its scales without codes.
#pragma once

#include "gpu/dialect/convert.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/philox.hpp"

namespace rotoscale::gpu {

/// Two numbers as BF16, rounded to E2M1: nearest even, saturated. Rounding to odd first does not change the result. The
/// addition of `magic` then rounds at E2M1's last place, which is 1/2 up to 2 and doubles at 2 and 4.
__device__ inline std::uint32_t nearest_e2m1_pair(float low, float high) {
  constexpr std::uint32_t one = 0x3F803F80u, six = 0x40C040C0u, signs = 0x80008000u, exponents = 0x7F807F80u;
  const std::uint32_t a = fp32_bits(low), b = fp32_bits(high), top = permute_bytes<0x7632>(a, b);
  const std::uint32_t lost = min_u16x2(permute_bytes<0x5410>(a, b), 0x00010001u);
  const std::uint32_t m = min_u16x2((top | lost) & ~signs, six);
  const std::uint32_t magic = max_u16x2(m & exponents, one) + 6 * 0x00800080u;
  return fma_bf16x2(fma_bf16x2(m, one, magic), one, magic ^ signs) | (top & signs);
}

/// |x| rounded to E2M1 by encode_stochastic, in the upper half of a word; larger numbers than 6 are not saturated.
///
/// t = |x| + 1 below 1, else |x|, so that E2M1's step is t's first mantissa bit. The random word is added below that
/// bit, without its low 10 bits: t has none for them. They matter only if all 22 bits of the sum are set. Then `sums`,
/// the largest sum shifted up by 10, is at least `unsure`, and the result may be too small.
struct stochastic_e2m1 {
  static constexpr std::uint32_t unsure = 0xFFFFFC00u;
  std::uint32_t sums = 0;

  /// Adds `less` to what the result is too large by: 1 or 0.
  __device__ std::uint32_t rounded(float x, std::uint32_t random, float& less) {
    const float m = __builtin_fabsf(x);
    less = m < 1.0f ? 1.0f : 0.0f;
    const std::uint32_t t = fp32_bits(add_toward_zero(m, less)), sum = t * 1024 + random;
    sums = sum > sums ? sum : sums;
    return t + (random >> 10);
  }
  /// Two numbers rounded, as BF16 with their signs.
  __device__ std::uint32_t pair(float low, float high, std::uint32_t random_low, std::uint32_t random_high) {
    constexpr std::uint32_t six = 0x40C040C0u, one_bit = 0xFFC0FFC0u, signs = 0x80008000u;
    float less[2];
    const std::uint32_t a = rounded(low, random_low, less[0]), b = rounded(high, random_high, less[1]);
    const std::uint32_t t = permute_bytes<0x7632>(a, b) & one_bit;
    const std::uint32_t both = permute_bytes<0x7632>(fp32_bits(less[0]), fp32_bits(less[1]));
    const std::uint32_t m = min_u16x2(fma_bf16x2(both, 0xBF80BF80u, t), six);
    return and_or(permute_bytes<0x7632>(fp32_bits(low), fp32_bits(high)), signs, m);
  }
};

/// The pairs of neighbours in a run's order, or, in a pair of columns, of equal rows.
enum class pair_order { run, columns };

/// Calls emit(p, pair) with a run's E2M1 numbers times `scale` (of each half), rounded to nearest.
template <pair_order Order, class Emit>
[[gnu::always_inline]] __device__ inline void nearest_e2m1_run(const float (&y)[2][16], const std::uint32_t (&scale)[2],
                                                               const Emit& emit) {
  constexpr bool beside = Order == pair_order::columns;
  ROTOSCALE_UNROLL
  for (unsigned p = 0; p < 16; ++p) {
    const float low = beside ? y[0][p] : y[p / 8][p % 8 * 2], high = beside ? y[1][p] : y[p / 8][p % 8 * 2 + 1];
    emit(p, multiply_bf16(nearest_e2m1_pair(low, high),
                          beside ? permute_bytes<0x5410>(scale[0], scale[1]) : permute_bytes<0x1010>(scale[p / 8], 0)));
  }
}

/// The same rounded stochastically. `block`: of each half, the first block of `random`. False: the definition may round
/// otherwise, about once in 10^5 runs.
template <pair_order Order, class Random, class Emit>
[[gnu::always_inline]] __device__ inline bool stochastic_e2m1_run(const float (&y)[2][16], const Random& random,
                                                                  const std::uint64_t (&block)[2],
                                                                  const std::uint32_t (&scale)[2], const Emit& emit) {
  constexpr bool beside = Order == pair_order::columns;
  stochastic_e2m1 rounding;
  ROTOSCALE_UNROLL
  for (unsigned half = 0; half < (beside ? 1 : 2); ++half) {
    const std::uint32_t both =
        beside ? permute_bytes<0x5410>(scale[0], scale[1]) : permute_bytes<0x1010>(scale[half], 0);
    ROTOSCALE_UNROLL
    for (unsigned four = 0; four < 4; ++four) {
      const philox_block drawn = random.block(block[half] + four);
      philox_block next{};
      if (beside) next = random.block(block[1] + four);
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < (beside ? 4 : 2); ++i) {
        const float* const row = &y[half][4 * four];
        const std::uint32_t pair =
            beside ? rounding.pair(row[i], y[1][4 * four + i], drawn.word[i], next.word[i])
                   : rounding.pair(row[2 * i], row[2 * i + 1], drawn.word[2 * i], drawn.word[2 * i + 1]);
        emit(beside ? 4 * four + i : 8 * half + 2 * four + i, multiply_bf16(pair, both));
      }
    }
  }
  return rounding.sums < stochastic_e2m1::unsure;
}

}  // namespace rotoscale::gpu
