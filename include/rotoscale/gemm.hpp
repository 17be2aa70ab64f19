// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The emulated GEMM. Operands are stored codes, C = A · Bᵀ with both contraction axes contiguous ("NT"), accumulation
// is an mma_model. gemm_ref is the definition; gemm_fast.hpp has the blocked, threaded path that equals it by bytes.
#pragma once

#include "rotoscale/block.hpp"
#include "rotoscale/mma.hpp"

namespace rotoscale {

/// rows × k codes of `element`, k contiguous; optionally one scale for every `block_rows` × `block` of them, and one
/// FP32 factor for the whole matrix (what multiplies a code's value to give the tensor's value).
struct gemm_operand {
  format element = formats::fp32;
  index_t rows = 0;
  index_t k = 0;
  const std::uint8_t* codes = nullptr;
  index_t code_stride = 0;  ///< bytes between rows
  int block = 0;            ///< 0: no block scales
  const std::uint8_t* scales = nullptr;
  index_t scale_stride = 0;
  const float* factor = nullptr;  ///< null: 1
  format scale = formats::e8m0;   ///< format of the block scales
  int block_rows = 1;
};

/// Where and how a result is written: c = round(factor_a * factor_b * acc [+ c]), one FP32 fused multiply-add, then
/// rounded to `output` (stored as FP32). NaN results are canonical.
struct gemm_options {
  mma_model model = fp32_fma_chain;
  format output = formats::fp32;
  bool accumulate = false;
};

/// `decode_factor`: the tensor's second-level factor (1 / encode_factor), or null.
inline gemm_operand operand_of(block_format f, block_matrix<const std::uint8_t> m,
                               const float* decode_factor = nullptr) {
  return {f.element, m.rows,         m.k,           m.codes, m.code_stride, f.length,
          m.scales,  m.scale_stride, decode_factor, f.scale, f.rows};
}
inline gemm_operand operand_of(matrix<const float> m) {
  ROTOSCALE_ASSERT(m.stride(1) == 1);
  return {formats::fp32,
          m.extent(0),
          m.extent(1),
          reinterpret_cast<const std::uint8_t*>(m.data),
          m.stride(0) * static_cast<index_t>(sizeof(float)),
          0,
          nullptr,
          0,
          nullptr};
}

inline block_format blocks_of(const gemm_operand& a) {
  return {a.element, a.block == 0 ? 1 : a.block, a.scale, a.block_rows};
}

/// Little-endian code (r, c) of an operand.
inline std::uint64_t operand_code(const gemm_operand& a, index_t r, index_t c) {
  const std::uint8_t* row = a.codes + r * a.code_stride;
  if (a.element.bits() <= 8) return load_code(a.element, row, c);
  const index_t bytes = packed_bytes(a.element, 1);
  std::uint64_t code = 0;
  for (index_t i = 0; i < bytes; ++i) code |= static_cast<std::uint64_t>(row[c * bytes + i]) << (8 * i);
  return code;
}

/// Block scale of element (r, c); only where there are block scales.
inline std::uint8_t operand_scale(const gemm_operand& a, index_t r, index_t c) {
  return a.scales[r / a.block_rows * a.scale_stride + c / a.block];
}

/// Element (r, c) with its block scale as FP32.
inline float operand_value(const gemm_operand& a, index_t r, index_t c) {
  if (a.block == 0) return decode(a.element, operand_code(a, r, c));
  return decode_scaled(blocks_of(a), static_cast<std::uint32_t>(operand_code(a, r, c)), operand_scale(a, r, c));
}

/// The accumulator of one output element. Groups of more than one product need E2M1 elements whose block scale is
/// constant over the group: then every step below is exact in double but for the last, which rounds once. (The
/// accumulator has 24 bits and the block sum 13: where their sum exceeds 53 bits, the smaller lies below 2^-25 of the
/// larger's last place or above it, and cannot make a tie.)
inline float accumulate_ref(const gemm_operand& a, index_t i, const gemm_operand& b, index_t j,
                            const mma_model& model) {
  float acc = 0.0f;
  if (model.group == 1) {
    for (index_t k = 0; k < a.k; ++k) acc = __builtin_fmaf(operand_value(a, i, k), operand_value(b, j, k), acc);
    return acc;
  }
  for (index_t first = 0; first < a.k; first += model.group) {
    const index_t last = first + model.group < a.k ? first + model.group : a.k;
    const std::uint8_t scale_a = a.block == 0 ? unit_scale_byte : operand_scale(a, i, first);
    const std::uint8_t scale_b = b.block == 0 ? unit_scale_byte : operand_scale(b, j, first);
    if (scale_a == nan_scale_byte || scale_b == nan_scale_byte) return fp32_from_bits(fp32_nan_bits);
    double sum = 0.0;
    for (index_t k = first; k < last; ++k) {
      sum += static_cast<double>(decode(a.element, operand_code(a, i, k))) *
             static_cast<double>(decode(b.element, operand_code(b, j, k)));
    }
    const double scaled = __builtin_ldexp(sum, scale_exponent(scale_a) + scale_exponent(scale_b));
    acc = static_cast<float>(static_cast<double>(acc) + scaled);
  }
  return acc;
}

/// Last step of every GEMM of this library.
inline float finish_output(float acc, float factor, const gemm_options& o, float old) {
  const float scaled = o.accumulate ? __builtin_fmaf(acc, factor, old) : acc * factor;
  return round_source(o.output, canonical_nan(scaled));
}

inline float combined_factor(const gemm_operand& a, const gemm_operand& b) {
  return (a.factor ? *a.factor : 1.0f) * (b.factor ? *b.factor : 1.0f);
}

/// May these operands be multiplied under this model? gemm_ref and gemm assert it; callers with user input ask first.
/// Blocks of packed codes must begin on a byte.
inline bool gemm_is_defined(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
  if (a.k != b.k || o.model.group < 1 || a.block < 0 || b.block < 0) return false;
  const auto whole_bytes = [](const gemm_operand& x) { return x.block * storage_bits(x.element) % 8 == 0; };
  if (!whole_bytes(a) || !whole_bytes(b)) return false;
  if (o.model.group == 1) return true;
  const auto exact = [&](const gemm_operand& x) {
    return x.element == formats::e2m1 && (x.block == 0 || (x.block % o.model.group == 0 && x.scale == formats::e8m0));
  };
  return exact(a) && exact(b);
}

/// Row `i` of gemm_ref's result.
inline void gemm_row_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c,
                         index_t i) {
  const float factor = combined_factor(a, b);
  for (index_t j = 0; j < b.rows; ++j) {
    c(i, j) = finish_output(accumulate_ref(a, i, b, j, o.model), factor, o, o.accumulate ? c(i, j) : 0.0f);
  }
}

/// The definition: c[i][j] over a.rows × b.rows.
inline void gemm_ref(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, matrix<float> c) {
  ROTOSCALE_ASSERT(gemm_is_defined(a, b, o) && c.extent(0) == a.rows && c.extent(1) == b.rows);
  for (index_t i = 0; i < a.rows; ++i) gemm_row_ref(a, b, o, c, i);
}

}  // namespace rotoscale
