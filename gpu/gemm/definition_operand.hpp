// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands that gemm_by_definition's kernels read, element by element: checked, and in the kernels' terms.
#pragma once

#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/definition.hpp"
#include "rotoscale/gemm_operand.hpp"

namespace rotoscale::gpu::detail {

inline bool is_plain(const gemm_operand& x) {
  const bool of_16_or_32 = x.block == 16 || x.block == 32, is_square = x.block_rows == x.block;
  return x.code_order == placement::row_major && x.scale_order == placement::row_major &&
         (x.block == 0 ? x.block_rows == 1
                       : of_16_or_32 && (x.block_rows == 1 || is_square) && x.k % x.block == 0 && !x.transposed &&
                             (x.scale == formats::e8m0 || x.scale == formats::ue4m3));
}

/// Fills `to`; `first` names a, else b.
inline status take_operand(const gemm_operand& x, bool first, definition_operand& to) {
  const auto named = [first](const char* a, const char* b) { return first ? a : b; };
  constexpr struct {
    format of;
    dense_element element;
  } known[] = {{formats::fp32, dense_element::fp32}, {formats::bf16, dense_element::bf16},
               {formats::e4m3, dense_element::e4m3}, {formats::e5m2, dense_element::e5m2},
               {formats::e2m1, dense_element::e2m1}, {formats::e2m3, dense_element::e2m3},
               {formats::e3m2, dense_element::e3m2}};
  bool found = false;
  for (const auto& e : known) {
    if (e.of != x.element) continue;
    to.element = e.element;
    found = true;
  }
  const bool fp4 = x.element == formats::e2m1, narrow = x.element.bits() < 8, wide = x.element.bits() >= 16;
  if (!found || (narrow && x.block == 0) || (wide && x.block != 0)) {
    return {error_code::bad_option, named("a.element", "b.element"),
            "must be FP32, BF16, E4M3 or E5M2, or blocks of E2M1, E2M3, E3M2, E4M3 or E5M2"};
  }
  if (!is_plain(x)) {
    return {error_code::bad_option, named("a.code_order", "b.code_order"),
            "must be row_major, blocks of 16 or 32, of one row or square, under E8M0 or UE4M3, not transposed"};
  }
  if (x.rows < 0 || x.k < 0 || x.rows > 1 << 24 || x.k > 1 << 24) {
    return {error_code::bad_extent, named("a.rows", "b.rows"), "extents must be 0 to 2^24"};
  }
  const int bytes = narrow ? 1 : x.element.bits() / 8;
  to.codes = x.codes;
  // The stride of a single row or column may be anything: nobody takes that step, but addresses behind it are formed.
  const bool is_single = (x.transposed ? x.k : x.rows) == 1;
  const index_t stride = is_single ? 0 : x.code_stride;
  to.row_step = x.transposed ? bytes : stride;
  to.k_step = x.transposed ? stride : bytes;
  to.k_contiguous = !x.transposed;
  to.scales = x.block == 0 ? nullptr : x.scales;
  to.scale_stride = x.scale_stride;
  to.length_log2 = x.block == 16 ? 4 : 5;
  to.rows_log2 = x.block_rows == 1 ? 0 : to.length_log2;
  to.ue4m3_scales = x.scale == formats::ue4m3;
  to.factor = x.factor;
  to.rows = static_cast<int>(x.rows);
  if (x.rows == 0 || x.k == 0) return {};
  const std::uintptr_t alignment = fp4 ? 4 : static_cast<std::uintptr_t>(bytes);
  if (fp4 && x.code_stride % 4 != 0) {
    return {error_code::bad_extent, named("a.code_stride", "b.code_stride"), "must be a multiple of 4"};
  }
  return check_pointer(x.codes, alignment, named("a.codes", "b.codes"));
}

}  // namespace rotoscale::gpu::detail
