// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An MXFP4 or MXFP8 operand of a GEMM where it lies in device memory.
#pragma once

#include "rotoscale/layout.hpp"

namespace rotoscale::gpu {

/// What a block's elements are.
enum class gemm_element : int { e2m1, e4m3, e5m2 };

/// Its format.
constexpr format format_of(gemm_element e) {
  return e == gemm_element::e2m1 ? formats::e2m1 : e == gemm_element::e4m3 ? formats::e4m3 : formats::e5m2;
}

/// Blocks in any of the layouts: [rows, k / 2] (FP8: [rows, k]) bytes of codes and [rows, k / 32] E8M0 scales. Strides
/// in bytes, for row-major order only.
struct gemm_operand_view {
  const std::uint8_t* codes = nullptr;           ///< packed, device memory, aligned to 16 bytes
  const std::uint8_t* scales = nullptr;          ///< one a block
  index_t code_stride = 0;                       ///< bytes between rows of codes
  index_t scale_stride = 0;                      ///< bytes between rows of scales
  int rows = 0;                                  ///< M or N
  int k = 0;                                     ///< along the contraction axis
  placement code_order = placement::row_major;   ///< of the codes
  placement scale_order = placement::row_major;  ///< of the scales
  gemm_element element = gemm_element::e2m1;     ///< of all blocks

  /// Bytes of a row of codes.
  ROTOSCALE_HD constexpr int code_bytes() const { return element == gemm_element::e2m1 ? k / 2 : k; }
  /// Byte `column` of a row of codes.
  ROTOSCALE_HD constexpr std::uint8_t code_byte(int row, int column) const {
    if (code_order == placement::row_major) return codes[row * code_stride + column];
    return codes[layout{code_order, rows, code_bytes()}.offset(row, column)];
  }
  /// Scale of block `block` of a row.
  ROTOSCALE_HD constexpr std::uint8_t scale_byte(int row, int block) const {
    if (scale_order == placement::row_major) return scales[row * scale_stride + block];
    return scales[layout{scale_order, rows, k / 32}.offset(row, block)];
  }
};

}  // namespace rotoscale::gpu
