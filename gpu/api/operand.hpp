// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// An MXFP4 or MXFP8 operand of a GEMM where it lies in device memory.
#pragma once

#include "rotoscale/layout.hpp"

namespace rotoscale::gpu {

/// What a block's elements are.
enum class gemm_element : int { e2m1, e4m3, e5m2 };

constexpr format format_of(gemm_element e) {
  return e == gemm_element::e2m1 ? formats::e2m1 : e == gemm_element::e4m3 ? formats::e4m3 : formats::e5m2;
}

/// Blocks in any of the layouts: [rows, k / 2] (FP8: [rows, k]) bytes of codes and [rows, k / 32] E8M0 scales. Strides
/// in bytes, for row-major order only.
struct gemm_operand_view {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  index_t code_stride = 0, scale_stride = 0;
  int rows = 0, k = 0;
  placement code_order = placement::row_major, scale_order = placement::row_major;
  gemm_element element = gemm_element::e2m1;

  ROTOSCALE_HD constexpr int code_bytes() const { return element == gemm_element::e2m1 ? k / 2 : k; }
  ROTOSCALE_HD constexpr std::uint8_t code_byte(int row, int column) const {
    if (code_order == placement::row_major) return codes[row * code_stride + column];
    return codes[layout{code_order, rows, code_bytes()}.offset(row, column)];
  }
  ROTOSCALE_HD constexpr std::uint8_t scale_byte(int row, int block) const {
    if (scale_order == placement::row_major) return scales[row * scale_stride + block];
    return scales[layout{scale_order, rows, k / 32}.offset(row, block)];
  }
};

}  // namespace rotoscale::gpu
