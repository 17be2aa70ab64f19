// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arguments of the GEMM kernels on CUDA cores: checks, and conversion from gemm_call and gemm_operand.
#pragma once

#include "gpu/api/gemm.hpp"
#include "gpu/dialect/launch.hpp"
#include "gpu/gemm/simt.hpp"
#include "rotoscale/gemm_operand.hpp"

namespace rotoscale::gpu::detail {

inline bool is_plain(const gemm_operand& x) {
  const bool has_length = x.block == 16 || x.block == 32 || x.block == 128, is_square = x.block_rows == x.block;
  return x.code_order == placement::row_major && x.scale_order == placement::row_major &&
         (x.block == 0 ? x.block_rows == 1
                       : has_length && (x.block_rows == 1 || is_square) && x.k % x.block == 0 && !x.transposed &&
                             (x.scale == formats::e8m0 || x.scale == formats::ue4m3));
}

/// Names of a launcher's argument and its members, for error messages.
struct operand_names {
  const char *element, *code_order, *rows, *k, *code_stride, *codes, *scales, *factor, *whole;
};
inline constexpr operand_names names_of_a{"a.element", "a.code_order", "a.rows",   "a.k", "a.code_stride",
                                          "a.codes",   "a.scales",     "a.factor", "a"};
inline constexpr operand_names names_of_b{"b.element", "b.code_order", "b.rows",   "b.k", "b.code_stride",
                                          "b.codes",   "b.scales",     "b.factor", "b"};
inline constexpr operand_names names_of_from{"from.element", "from.code_order",  "from.rows",
                                             "from.k",       "from.code_stride", "from.codes",
                                             "from.scales",  "from.factor",      "from"};
inline constexpr operand_names names_of_stored{"stored.element", "stored.code_order",  "stored.rows",
                                               "stored.k",       "stored.code_stride", "stored.codes",
                                               "stored.scales",  "stored.factor",      "stored"};

/// Checks the memory of a non-empty operand. An element has `bytes` bytes, or 1 if elements share bytes.
inline status check_operand_memory(const gemm_operand& x, index_t bytes, const operand_names& names) {
  const index_t alignment = x.element == formats::e2m1 ? 4 : bytes;
  // A single row or column may have any stride.
  if ((x.transposed ? x.k : x.rows) > 1 && x.code_stride % alignment != 0) {
    return {error_code::bad_extent, names.code_stride,
            x.element == formats::e2m1 ? "must be a multiple of 4" : "must be whole elements"};
  }
  if (status s = check_pointer(x.codes, static_cast<std::uintptr_t>(alignment), names.codes); !s.ok()) return s;
  if (status s = check_optional(x.factor, names.factor); !s.ok()) return s;
  return x.block == 0 ? status{} : check_pointer(x.scales, names.scales);
}

/// Checks `x` and fills `to`. Returns the first error.
inline status take_operand(const gemm_operand& x, const operand_names& names, simt_operand& to) {
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
  const bool narrow = x.element.bits() < 8, wide = x.element.bits() >= 16;
  if (!found || (narrow && x.block == 0) || (wide && x.block != 0)) {
    return {error_code::bad_option, names.element,
            "must be FP32, BF16, E4M3 or E5M2, or blocks of E2M1, E2M3, E3M2, E4M3 or E5M2"};
  }
  if (!is_plain(x)) {
    return {error_code::bad_option, names.code_order,
            "must be row_major, blocks of 16, 32 or 128, of one row or square, under E8M0 or UE4M3, not transposed"};
  }
  if (x.batch_stride != 0 || x.scale_batch_stride != 0) {
    return {error_code::bad_option, names.whole, "must be one matrix"};
  }
  for (const bool of_rows : {true, false}) {
    const index_t extent = of_rows ? x.rows : x.k;
    if (extent < 0 || extent > 1 << 24) {
      return {error_code::bad_extent, of_rows ? names.rows : names.k, "must be 0 to 2^24"};
    }
  }
  const int bytes = narrow ? 1 : x.element.bits() / 8;
  to.codes = x.codes;
  // A single row or column may have any stride. It is never used for an access, but addresses with it are computed.
  const bool is_single = (x.transposed ? x.k : x.rows) == 1;
  const index_t stride = is_single ? 0 : x.code_stride;
  to.row_step = x.transposed ? bytes : stride;
  to.k_step = x.transposed ? stride : bytes;
  to.k_contiguous = !x.transposed;
  to.scales = x.block == 0 ? nullptr : x.scales;
  to.scale_stride = x.scale_stride;
  to.length_log2 = x.block == 16 ? 4 : x.block == 128 ? 7 : 5;
  to.rows_log2 = x.block_rows == 1 ? 0 : to.length_log2;
  to.ue4m3_scales = x.scale == formats::ue4m3;
  to.factor = x.factor;
  to.rows = static_cast<int>(x.rows);
  if (x.rows == 0 || x.k == 0) return {};
  return check_operand_memory(x, bytes, names);
}

/// Checks operands and fills the arguments of a GEMM on CUDA cores.
inline status take_call(const gemm_call& c, simt_arguments& to) {
  if (status s = take_operand(c.a, names_of_a, to.a); !s.ok()) return s;
  if (status s = take_operand(c.b, names_of_b, to.b); !s.ok()) return s;
  to.k = static_cast<int>(c.a.k);
  to.out = c.out;
  to.out_stride = c.out_stride == 0 ? c.b.rows : c.out_stride;
  to.bf16_stored = c.stored == formats::bf16;
  to.bf16_rounded = c.output == formats::bf16;
  to.accumulate = c.accumulate;
  return {};
}

}  // namespace rotoscale::gpu::detail
