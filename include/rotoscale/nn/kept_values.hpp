// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands that are stored as BF16 of their quantized values: FP8 under FP32 scales of rows or blocks, MXFP4 under
// macro-block scales (AMD-AGI/ALTO), outliers in BF16. docs/reference/numerics.md defines them. quantize_ref defines
// the inner MX blocks.
#pragma once

#include "rotoscale/nn/operand_recipe.hpp"
#include "rotoscale/small_float.hpp"

namespace rotoscale::nn {

/// Data that the elements of a group share.
enum class value_kind {
  scaled,  ///< FP32 scale of FP8 elements
  macro,   ///< scale in [1, 2) before the quantizer
  outlier  ///< flag: these elements stay BF16
};

/// Scale that moves the largest magnitude of a macro-block towards 6 times a power of two: 6 / amax, its mantissa cut
/// to 8 bits and its exponent dropped.
ROTOSCALE_HD inline float macro_scale(float amax) {
  const float inverse = 6.0f / (amax < 1e-12f ? 1e-12f : amax);
  return fp32_from_bits((fp32_bits(inverse) & 0x007F8000u) | 0x3F800000u);
}
/// Rounds to BF16, nearest even.
ROTOSCALE_HD inline float bf16_value(float x) { return decode(formats::bf16, encode(formats::bf16, x)); }

/// Description of the values of an operand of rows × k. Groups have `rows` × `length` elements, at the ends fewer.
struct value_recipe {
  value_kind kind = value_kind::scaled;  ///< of the groups' numbers
  format element = formats::e4m3;        ///< scaled: of the elements
  float largest = 448.0f;                ///< scaled: largest number of them
  index_t rows = 1;                      ///< of a group
  index_t length = 1;                    ///< of a group, along k
  index_t across = 1;                    ///< groups along k
  index_t groups = 1;                    ///< all of them
  index_t outliers = 0;                  ///< outlier: number of groups that stay BF16

  /// Number of the group of element (r, c).
  ROTOSCALE_HD index_t group_of(index_t r, index_t c) const { return r / rows * across + c / length; }
  /// Number of a group with largest finite magnitude `amax`. Outliers are ranked by it.
  ROTOSCALE_HD float number(float amax) const {
    return kind == value_kind::scaled  ? current_fp8_scale(largest, amax)
           : kind == value_kind::macro ? macro_scale(amax)
                                       : amax;
  }
  /// Input of the inner quantizer for a BF16 element, which is rounded to BF16. For `scaled`, the element's value.
  ROTOSCALE_HD float prepared(float x, float number) const {
    if (kind == value_kind::macro) return x * number;
    if (kind == value_kind::outlier) return number != 0.0f ? 0.0f : x;
    const auto code = encode(element, x * number, rounding::nearest_even, overflow::saturate);
    return decode(element, code) * (1.0f / number);
  }
  /// Value of element x with quantized value q.
  ROTOSCALE_HD float finished(float x, float q, float number) const {
    return kind == value_kind::macro ? q / number : number != 0.0f ? x : q;
  }
};

/// Description of the values of an operand with keeps_values.
constexpr value_recipe value_recipe_of(const operand_recipe& o, index_t rows, index_t k) {
  value_recipe v;
  if (is_fp8(o.format)) {
    v.element = element_format(o.format);
    v.largest = decode(v.element, v.element.max_code());
    v.rows = run_rows_of(o);
    v.length = o.scaling == fp8_scaling::row ? k : 128;
  } else if (o.macro_blocks) {
    v.kind = value_kind::macro;
    v.rows = run_rows_of(o);
    v.length = 128;
  } else {
    v.kind = value_kind::outlier;
    v.rows = rows;
    v.outliers = o.outliers;
  }
  if (rows == 0 || k == 0) return {.rows = v.rows, .length = 1, .across = 0, .groups = 0};
  v.across = (k + v.length - 1) / v.length;
  v.groups = (rows + v.rows - 1) / v.rows * v.across;
  return v;
}

}  // namespace rotoscale::nn
