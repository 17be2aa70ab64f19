// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An operand of a GEMM: stored codes, and how they lie in memory: contraction axis contiguous or not (NT, NN, TN),
// order of its scales, stride between matrices of a batch.
#pragma once

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/layout.hpp"

namespace rotoscale {

/// rows × k codes of `element`; optionally one scale for every `block_rows` × `block` of them, and one FP32 factor for
/// the whole matrix (what multiplies a code's value to give the tensor's value). Element (r, c) is code c of packed row
/// r, or, transposed, code r of packed row c. Scales are in row-major order, `scale_stride` apart, a row for each
/// block_rows rows; or in another placement, dense, with a row for each row, as place_scales writes them.
struct gemm_operand {
  format element = formats::fp32;
  index_t rows = 0;
  index_t k = 0;
  const std::uint8_t* codes = nullptr;
  index_t code_stride = 0;  ///< bytes between packed rows
  int block = 0;            ///< 0: no block scales
  const std::uint8_t* scales = nullptr;
  index_t scale_stride = 0;
  const float* factor = nullptr;  ///< null: 1
  format scale = formats::e8m0;   ///< format of the block scales
  int block_rows = 1;
  bool transposed = false;
  placement scale_order = placement::row_major;
  index_t batch_stride = 0;        ///< bytes between the codes of a batch's matrices; 0: all use the same
  index_t scale_batch_stride = 0;  ///< and between their scales
};

/// `decode_factor`: the tensor's second-level factor (1 / encode_factor), or null.
inline gemm_operand operand_of(block_format f, block_matrix<const std::uint8_t> m,
                               const float* decode_factor = nullptr) {
  return {f.element, m.rows,         m.k,           m.codes, m.code_stride, f.length,
          m.scales,  m.scale_stride, decode_factor, f.scale, f.rows};
}
/// One of the strides must be 1.
inline gemm_operand operand_of(matrix<const float> m) {
  ROTOSCALE_ASSERT(m.stride(1) == 1 || m.stride(0) == 1);
  gemm_operand o;
  o.rows = m.extent(0);
  o.k = m.extent(1);
  o.codes = reinterpret_cast<const std::uint8_t*>(m.data);
  o.transposed = m.stride(1) != 1;
  o.code_stride = m.stride(o.transposed ? 1 : 0) * static_cast<index_t>(sizeof(float));
  return o;
}

/// Matrix `i` of a batch.
inline gemm_operand batch_element(gemm_operand a, index_t i) {
  a.codes += i * a.batch_stride;
  if (a.scales != nullptr) a.scales += i * a.scale_batch_stride;
  return a;
}

inline block_format blocks_of(const gemm_operand& a) {
  return {a.element, a.block == 0 ? 1 : a.block, a.scale, a.block_rows};
}

/// Little-endian code (r, c) of an operand.
inline std::uint64_t operand_code(const gemm_operand& a, index_t r, index_t c) {
  const std::uint8_t* row = a.codes + (a.transposed ? c : r) * a.code_stride;
  const index_t at = a.transposed ? r : c;
  if (a.element.bits() <= 8) return load_code(a.element, row, at);
  const index_t bytes = packed_bytes(a.element, 1);
  std::uint64_t code = 0;
  for (index_t i = 0; i < bytes; ++i) code |= static_cast<std::uint64_t>(row[at * bytes + i]) << (8 * i);
  return code;
}

/// Blocks along k.
inline index_t scale_columns(const gemm_operand& a) { return a.block == 0 ? 0 : (a.k + a.block - 1) / a.block; }

/// Block scale of element (r, c); only where there are block scales.
inline std::uint8_t operand_scale(const gemm_operand& a, index_t r, index_t c) {
  if (a.scale_order == placement::row_major) return a.scales[r / a.block_rows * a.scale_stride + c / a.block];
  return a.scales[layout{a.scale_order, a.rows, scale_columns(a)}.offset(r, c / a.block)];
}

/// Element (r, c) with its block scale as FP32.
inline float operand_value(const gemm_operand& a, index_t r, index_t c) {
  if (a.block == 0) return decode(a.element, operand_code(a, r, c));
  return decode_scaled(blocks_of(a), static_cast<std::uint32_t>(operand_code(a, r, c)), operand_scale(a, r, c));
}

}  // namespace rotoscale
