// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Format, blocks, scales, rounding and rotation of one operand of a training GEMM.
#pragma once

#include <cstdint>
#include <optional>

#include "rotoscale/block.hpp"
#include "rotoscale/names.hpp"
#include "rotoscale/nn/tensor.hpp"

namespace rotoscale::nn {

/// Format of an operand. fp8: one scale a tensor. mx: blocks with E8M0 scales. nvfp4: E2M1
/// blocks with floating-point scales under an FP32 factor of the tensor.
enum class operand_format {
  fp32,
  bf16,
  fp8_e4m3,
  fp8_e5m2,
  mxfp4,
  mxfp6_e2m3,
  mxfp6_e3m2,
  mxfp8_e4m3,
  mxfp8_e5m2,
  nvfp4,
  dequantized  ///< BF16 of the forward pass's codes, rotation undone: for dgrad's w and wgrad's x
};
ROTOSCALE_ENUM_NAMES(operand_format, fp32, bf16, fp8_e4m3, fp8_e5m2, mxfp4, mxfp6_e2m3, mxfp6_e3m2, mxfp8_e4m3,
                     mxfp8_e5m2, nvfp4, dequantized)

/// Blocks that share a scale, if they differ from the format's own (32 under E8M0; nvfp4: 16 under UE4M3).
struct block_recipe {
  int length = 32;               ///< elements along the contraction axis: 16, 32 or 128
  int rows = 1;                  ///< rows that share the scale: 1, or `length` (2D blocks)
  format scale = formats::e8m0;  ///< of the scales

  ROTOSCALE_ISA_TAG constexpr bool operator==(const block_recipe&) const = default;
};

/// Signs before a rotation.
enum class sign_kind {
  none,   ///< the plain Hadamard
  layer,  ///< drawn once a run, for each layer and GEMM
  mask,   ///< the recipe's own, for all layers
  step    ///< drawn each step, for each layer and GEMM
};
ROTOSCALE_ENUM_NAMES(sign_kind, none, layer, mask, step)

/// Rotation along the contraction axis, before the amax. Both operands of a GEMM must have the same, so that it
/// cancels.
struct rotation_recipe {
  int points = 0;                     ///< 0: none; 16, 32, 64 or 128
  sign_kind signs = sign_kind::none;  ///< elements that are negated first
  std::uint32_t mask = 0;             ///< signs::mask: bit i % 16 negates element i

  bool operator==(const rotation_recipe&) const = default;
};

/// Source of the scale of FP8 elements.
enum class fp8_scaling {
  delayed,       ///< maxima of earlier steps
  current,       ///< the tensor's own maximum
  row,           ///< one a row along the contraction axis
  block_1x128,   ///< one for 128 elements of a row
  block_128x128  ///< one for 128 elements of 128 rows
};
ROTOSCALE_ENUM_NAMES(fp8_scaling, delayed, current, row, block_1x128, block_128x128)

/// The numbers that an operand is quantized from.
enum class operand_source {
  values,  ///< the tensor's
  forward  ///< BF16 of the forward pass's codes, rotation undone: for dgrad's w and wgrad's x
};
ROTOSCALE_ENUM_NAMES(operand_source, values, forward)

/// Estimator of a weight's gradient through its rounding.
enum class gradient_estimator {
  straight_through,  ///< unchanged
  dge                ///< times the derivative of a differentiable quantizer (nn/gradient_estimator.hpp)
};
ROTOSCALE_ENUM_NAMES(gradient_estimator, straight_through, dge)

/// One operand of one GEMM. Scale rule, policy, rotation and blocks apply only to formats with blocks.
struct operand_recipe {
  operand_format format = operand_format::bf16;                      ///< of the elements
  scale_rule rule = scale_rule::even;                                ///< of E8M0 block scales
  rotoscale::rounding rounding = rotoscale::rounding::nearest_even;  ///< of the elements
  rotation_recipe rotation = {};                                     ///< the same for both operands of a GEMM
  block_policy policy = policies::te_rocm;                           ///< blocks of zeros, NaN and Inf
  std::optional<block_recipe> block = {};                            ///< null: the format's own
  scale_choice choice = scale_choice::amax;                          ///< of nvfp4's block scales
  operand_source source = operand_source::values;                    ///< source of a format with blocks
  fp8_scaling scaling = fp8_scaling::delayed;                        ///< of fp8 formats
  bool macro_blocks = false;                                         ///< mxfp4: a further scale for each 128 elements
  int outliers = 0;                                                  ///< positions along k that stay BF16
  gradient_estimator estimator = gradient_estimator::straight_through;  ///< of fprop's w

  bool operator==(const operand_recipe&) const = default;
};

/// FP8 without E8M0 scales?
constexpr bool is_fp8(operand_format f) { return f == operand_format::fp8_e4m3 || f == operand_format::fp8_e5m2; }
/// Per-tensor FP8 with a scale of earlier steps?
constexpr bool is_delayed(const operand_recipe& o) { return is_fp8(o.format) && o.scaling == fp8_scaling::delayed; }
/// Per-tensor FP8 with its own scale?
constexpr bool is_current(const operand_recipe& o) { return is_fp8(o.format) && o.scaling == fp8_scaling::current; }
/// Is an operand stored as BF16 of its quantized values? A GEMM's operand has no room for its scales.
constexpr bool keeps_values(const operand_recipe& o) {
  return o.scaling > fp8_scaling::current || o.macro_blocks || o.outliers != 0;
}
/// The format that GEMMs read.
constexpr operand_format stored_format(const operand_recipe& o) {
  return keeps_values(o) ? operand_format::bf16 : o.format;
}
/// Scale of an FP8 tensor with largest finite magnitude `amax`: largest / amax, at most FLT_MAX; 1 if amax is 0.
ROTOSCALE_HD constexpr float current_fp8_scale(float largest, float amax) {
  if (amax == 0.0f) return 1.0f;
  const float scale = largest / amax;
  return scale < 0x1.FFFFFEp127f ? scale : 0x1.FFFFFEp127f;
}
/// Does quantizing draw random words?
constexpr bool draws_words(const operand_recipe& o) {
  return o.rounding == rounding::stochastic || o.choice == scale_choice::eden;
}
/// Blocks with E8M0 scales?
constexpr bool is_mx(operand_format f) { return f >= operand_format::mxfp4 && f <= operand_format::mxfp8_e5m2; }
/// Blocks with scales of any kind?
constexpr bool has_blocks(operand_format f) { return is_mx(f) || f == operand_format::nvfp4; }
/// One FP32 factor for the whole operand?
constexpr bool has_factor(operand_format f) { return is_fp8(f) || f == operand_format::nvfp4; }
/// Is an operand made from the row form of its tensor?
constexpr bool takes_row_form(const operand_recipe& o) {
  return o.format == operand_format::dequantized || o.source == operand_source::forward;
}
/// The format of its elements.
constexpr format element_format(operand_format f) {
  switch (f) {
    case operand_format::fp32: return formats::fp32;
    case operand_format::bf16:
    case operand_format::dequantized: return formats::bf16;
    case operand_format::fp8_e4m3:
    case operand_format::mxfp8_e4m3: return formats::e4m3;
    case operand_format::fp8_e5m2:
    case operand_format::mxfp8_e5m2: return formats::e5m2;
    case operand_format::mxfp4:
    case operand_format::nvfp4: return formats::e2m1;
    case operand_format::mxfp6_e2m3: return formats::e2m3;
    case operand_format::mxfp6_e3m2: return formats::e3m2;
  }
  return formats::fp32;
}
/// Default blocks of a format.
constexpr block_recipe own_blocks(operand_format f) {
  if (f == operand_format::nvfp4) return {nvfp4.length, 1, nvfp4.scale};
  return {};
}
/// Blocks of an operand with blocks.
constexpr block_format block_format_of(const operand_recipe& o) {
  const block_recipe b = o.block.value_or(own_blocks(o.format));
  return {element_format(o.format), b.length, b.scale, b.rows};
}
/// Elements along the contraction axis that are quantized together; 1 without blocks.
constexpr int run_length_of(const operand_recipe& o) {
  return has_blocks(o.format) ? run_length(block_format_of(o), {o.rotation.points, {}}) : 1;
}
/// Rows that are quantized together; 1 without square blocks. Kept values may have fewer at the end.
constexpr int run_rows_of(const operand_recipe& o) {
  const int rows = has_blocks(o.format) ? block_format_of(o).rows : 1;
  return o.scaling == fp8_scaling::block_128x128 || (o.macro_blocks && rows != 1) ? 128 : rows;
}
/// True if an operand is the stored tensor itself, without a conversion.
constexpr bool is_source(const operand_recipe& o, dtype source) {
  return o.format == operand_format::fp32 || (o.format == operand_format::bf16 && source == dtype::bf16);
}
/// Only fp32 and bf16.
constexpr dtype storage_for(operand_format f) { return f == operand_format::bf16 ? dtype::bf16 : dtype::fp32; }

namespace detail {
/// Codes of at most 8 bits need scales, of their tensor or of their blocks.
constexpr bool narrow_formats_have_scales() {
  for (const auto& f : enum_names<operand_format>::table) {
    const bool is_narrow = element_format(f.value).bits() <= 8;
    if (is_narrow != (is_fp8(f.value) || has_blocks(f.value)) || (is_fp8(f.value) && has_blocks(f.value))) return false;
  }
  return true;
}
static_assert(narrow_formats_have_scales(), "name each format of at most 8 bits in is_fp8 or in has_blocks");
}  // namespace detail

}  // namespace rotoscale::nn
