// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// MXFP4 operands under intel-amx-bf16: where the unit's steps are exact, fp32_blockwise has the same bits and runs on
// integer units.
//
// Let A be the sum of two blocks' scale exponents. A step is one block of 32 products.
// - Each product, partial sum and step sum is a multiple of 2^(A - 2) and at most 32 * 36 * 2^A < 2^(A + 11).
// - It therefore needs 13 bits. If A - 2 >= -126 and A + 11 <= 127, no chain of the unit rounds, flushes or overflows.
// - Codes are exact in BF16, and no input is flushed, if a scale's exponent is in [-125, 125].
// - c starts from +0. It is a rounded sum of multiples of 2^-126, hence never subnormal, and never -0.
// So both units round c + (the exact sum) once per block.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/gemm_options.hpp"
#include "rotoscale/mma_models.hpp"

namespace rotoscale::nn::cpu {

/// Exponents of the scales of blocks that are not zero. A NaN scale counts as 128. Empty: least > most.
struct scale_range {
  int least = 128, most = -127;

  void include(int exponent) {
    least = exponent < least ? exponent : least;
    most = exponent > most ? exponent : most;
  }
};

/// Is a code of rows [first, last) of this block not zero? Blocks have 32 codes of four bits.
inline bool has_nonzero_code(const gemm_operand& x, index_t first, index_t last, index_t block) {
  std::uint64_t any = 0;
  for (index_t r = first; r < last; ++r) {
    std::uint64_t codes[2];
    __builtin_memcpy(codes, x.codes + r * x.code_stride + 16 * block, sizeof codes);
    any |= codes[0] | codes[1];
  }
  return (any & 0x7777777777777777u) != 0;
}

/// Range of the scales of an operand in MXFP4 rows. Zero blocks may count if their scale is common.
inline scale_range scale_range_of(const gemm_operand& x) {
  const auto is_common = [](std::uint8_t scale) { return scale >= 97 && scale <= 157; };
  const index_t blocks = x.scale_columns(), rows = x.rows / x.block_rows;
  const index_t joined = x.scale_stride == blocks ? rows : 1;  // rows without gaps are one long row
  scale_range range;
  for (index_t r = 0; r < rows; r += joined) {
    const std::uint8_t* const scales = x.scales + r * x.scale_stride;
    std::uint8_t least = 127, most = 127;
    for (index_t i = 0; i < joined * blocks; ++i) {
      least = scales[i] < least ? scales[i] : least;
      most = scales[i] > most ? scales[i] : most;
    }
    if (is_common(least) && is_common(most)) {
      range.include(least - 127);
      range.include(most - 127);
      continue;
    }
    for (index_t i = 0; i < joined * blocks; ++i) {
      const index_t first = (r + i / blocks) * x.block_rows;
      const bool counts = is_common(scales[i]) || scales[i] == nan_scale_byte ||
                          has_nonzero_code(x, first, first + x.block_rows, i % blocks);
      if (counts) range.include(scales[i] - 127);
    }
  }
  return range;
}

/// True if both operands are MXFP4 and the contract is AMX's without split-K.
inline bool may_have_exact_steps(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  const auto is_mxfp4 = [](const gemm_operand& x) {
    return x.element == formats::e2m1 && x.block == 32 && x.scale == formats::e8m0 && x.k % 32 == 0 &&
           x.rows % x.block_rows == 0 && !x.transposed && x.code_order == placement::row_major &&
           x.scale_order == placement::row_major;
  };
  return o.model == models::intel(32, mma_sum::split_chains) && o.split_k == 1 && o.promotion == 0 && !o.start_from_c &&
         is_mxfp4(a) && is_mxfp4(b);
}
/// Is every step exact?
inline bool has_exact_steps(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  if (!may_have_exact_steps(a, b, o)) return false;
  const scale_range x = scale_range_of(a), y = scale_range_of(b);
  if (x.least > x.most || y.least > y.most) return true;  // all products are zero
  const int least = x.least < y.least ? x.least : y.least, most = x.most > y.most ? x.most : y.most;
  return least >= -125 && most <= 125 && x.least + y.least - 2 >= -126 && x.most + y.most + 11 <= 127;
}

/// The contract fp32_blockwise, with the NaN of this contract's model (C may have some).
inline gemm_options blockwise_options(gemm_options o) {
  const std::uint32_t nan_bits = o.model.nan_bits;
  o.model = fp32_blockwise;
  o.model.nan_bits = nan_bits;
  return o;
}

}  // namespace rotoscale::nn::cpu
