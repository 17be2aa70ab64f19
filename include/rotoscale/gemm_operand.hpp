// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An operand of a GEMM: stored codes, block scales and their layout in memory. CPU, device kernels and programs all use
// this description. It owns no memory.
#pragma once

#include "rotoscale/dequantize_ref.hpp"
#include "rotoscale/layout.hpp"

namespace rotoscale {

/// rows × k codes of `element`: value = code * scale * factor. One scale serves `block_rows` × `block` codes, one FP32
/// factor the whole matrix; both are optional. All strides are in bytes.
struct gemm_operand {
  format element = formats::fp32;        ///< format of the codes
  index_t rows = 0;                      ///< M or N
  index_t k = 0;                         ///< extent along the contraction axis
  const std::uint8_t* codes = nullptr;   ///< element (r, c) is code c of packed row r; transposed: code r of row c
  index_t code_stride = 0;               ///< between packed rows, if code_order is row_major
  int block = 0;                         ///< elements along k that share a scale; 0: no block scales
  const std::uint8_t* scales = nullptr;  ///< null if block is 0
  index_t scale_stride = 0;       ///< between rows of scales (one per block_rows rows), if scale_order is row_major
  const float* factor = nullptr;  ///< factor of the whole matrix; null: 1
  format scale = formats::e8m0;   ///< format of the block scales
  int block_rows = 1;             ///< rows that share a scale
  bool transposed = false;        ///< codes are stored transposed; only with code_order row_major
  placement code_order = placement::row_major;   ///< other orders are dense, as place_codes writes them
  placement scale_order = placement::row_major;  ///< other orders are dense with a scale per row (place_scales)
  index_t batch_stride = 0;                      ///< between the codes of a batch's matrices; 0: one matrix for all
  index_t scale_batch_stride = 0;                ///< between their scales

  /// Format and extents of the blocks. The length is 1 without block scales.
  ROTOSCALE_HD constexpr block_format blocks() const { return {element, block == 0 ? 1 : block, scale, block_rows}; }
  /// Bytes of a packed row of codes.
  ROTOSCALE_HD constexpr index_t row_bytes() const { return packed_bytes(element, transposed ? rows : k); }
  /// Blocks along k.
  ROTOSCALE_HD constexpr index_t scale_columns() const { return block == 0 ? 0 : (k + block - 1) / block; }

  /// Byte `i` of packed row `row`.
  ROTOSCALE_HD constexpr std::uint8_t code_byte(index_t row, index_t i) const {
    if (code_order == placement::row_major) return codes[row * code_stride + i];
    return codes[layout{code_order, rows, row_bytes()}.offset(row, i)];
  }
  /// Scale of block `block_index` of row `r`. Requires block scales.
  ROTOSCALE_HD constexpr std::uint8_t scale_byte(index_t r, index_t block_index) const {
    if (scale_order == placement::row_major) return scales[r / block_rows * scale_stride + block_index];
    return scales[layout{scale_order, rows, scale_columns()}.offset(r, block_index)];
  }
};

/// The operand of a quantized matrix. `decode_factor`: its second-level factor (1 / encode_factor), or null.
ROTOSCALE_HD constexpr gemm_operand make_operand(block_format f, block_matrix<const std::uint8_t> m,
                                                 const float* decode_factor = nullptr) {
  return {.element = f.element,
          .rows = m.rows,
          .k = m.k,
          .codes = m.codes,
          .code_stride = m.code_stride,
          .block = f.length,
          .scales = m.scales,
          .scale_stride = m.scale_stride,
          .factor = decode_factor,
          .scale = f.scale,
          .block_rows = f.rows};
}
namespace detail {
template <class T>
ROTOSCALE_ISA_TAG gemm_operand operand_of_numbers(format element, matrix<const T> m) {
  ROTOSCALE_ASSERT(m.stride(1) == 1 || m.stride(0) == 1);
  const bool transposed = m.stride(1) != 1;
  return {.element = element,
          .rows = m.extent(0),
          .k = m.extent(1),
          .codes = reinterpret_cast<const std::uint8_t*>(m.data),
          .code_stride = m.stride(transposed ? 1 : 0) * static_cast<index_t>(sizeof(T)),
          .transposed = transposed};
}
}  // namespace detail
/// An operand of FP32 numbers. One of the strides must be 1.
ROTOSCALE_ISA_TAG inline gemm_operand make_operand(matrix<const float> m) {
  return detail::operand_of_numbers(formats::fp32, m);
}
/// An operand of BF16 numbers. One of the strides must be 1.
ROTOSCALE_ISA_TAG inline gemm_operand make_operand(matrix<const bf16> m) {
  return detail::operand_of_numbers(formats::bf16, m);
}

/// Matrix `i` of a batch.
ROTOSCALE_HD constexpr gemm_operand batch_element(gemm_operand a, index_t i) {
  a.codes += i * a.batch_stride;
  if (a.scales != nullptr) a.scales += i * a.scale_batch_stride;
  return a;
}

/// Code (r, c) of an operand, read as little-endian.
ROTOSCALE_HD constexpr std::uint64_t operand_code(const gemm_operand& a, index_t r, index_t c) {
  const int bits = storage_bits(a.element);
  const index_t row = a.transposed ? c : r, first_bit = (a.transposed ? r : c) * bits, first = first_bit / 8;
  std::uint64_t code = 0;
  for (index_t i = first; i * 8 < first_bit + bits; ++i) {
    code |= static_cast<std::uint64_t>(a.code_byte(row, i)) << (8 * (i - first));
  }
  return code >> (first_bit % 8) & (~std::uint64_t{0} >> (64 - bits));
}

/// Block scale of element (r, c). Requires block scales.
ROTOSCALE_HD constexpr std::uint8_t operand_scale(const gemm_operand& a, index_t r, index_t c) {
  return a.scale_byte(r, c / a.block);
}

/// Element (r, c) times its block scale, as FP32.
ROTOSCALE_HD constexpr float operand_value(const gemm_operand& a, index_t r, index_t c) {
  if (a.block == 0) return decode(a.element, operand_code(a, r, c));
  return decode_scaled(a.blocks(), static_cast<std::uint32_t>(operand_code(a, r, c)), operand_scale(a, r, c));
}

}  // namespace rotoscale
