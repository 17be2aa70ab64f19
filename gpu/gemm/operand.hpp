// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An MXFP4 or MXFP8 operand as kernels receive it: the subset of gemm_operand that block-scaled GEMMs support, with
// 32-bit extents.
#pragma once

#include "gpu/dialect/element.hpp"
#include "rotoscale/gemm_operand.hpp"

namespace rotoscale::gpu {

/// Blocks in any layout: [rows, k / 2] (FP8: [rows, k]) bytes of codes and [rows, k / 32] E8M0 scales. Strides are in
/// bytes, for row-major order only.
struct kernel_operand {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  index_t code_stride = 0, scale_stride = 0;
  int rows = 0, k = 0;
  placement code_order = placement::row_major, scale_order = placement::row_major;
  gemm_element element = gemm_element::e2m1;

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

/// Converts an operand that passed check_operand.
inline kernel_operand make_kernel_operand(const gemm_operand& x) {
  const gemm_element element = x.element == formats::e2m1   ? gemm_element::e2m1
                               : x.element == formats::e4m3 ? gemm_element::e4m3
                                                            : gemm_element::e5m2;
  return {.codes = x.codes,
          .scales = x.scales,
          .code_stride = x.code_stride,
          .scale_stride = x.scale_stride,
          .rows = static_cast<int>(x.rows),
          .k = static_cast<int>(x.k),
          .code_order = x.code_order,
          .scale_order = x.scale_order,
          .element = element};
}

}  // namespace rotoscale::gpu
