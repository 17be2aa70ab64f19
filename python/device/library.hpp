// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// C interface of librotoscale_device, which rotoscale/_device.py loads with ctypes. The classes there mirror these
// structures. Pointers are device memory, except for names and the structures themselves. A function returns null, or
// the reason why it did nothing; the text lives until the thread's next call.
#pragma once

#include <cstdint>

extern "C" {

/// Where a call runs.
struct rotoscale_place {
  void* stream;         ///< cudaStream_t or hipStream_t; null: the null stream
  std::int32_t device;  ///< index; -1: the thread's current device
};

/// rows × columns elements. Strides count elements; a packed byte is one.
struct rotoscale_matrix {
  void* data;
  std::int64_t rows, columns, row_stride, column_stride;
  const char* element;  ///< a format's name
};

/// Arguments of rotoscale.quantize. Null names and negative points: the preset's.
struct rotoscale_quantize_call {
  rotoscale_matrix x;  ///< FP32, BF16 or FP16
  const char *preset, *format, *source, *scale_rule, *scale_choice, *rounding, *policy;
  std::uint64_t seed, random_stream;
  std::int32_t random_count, points;
  std::uint32_t signs;  ///< bit i negates element i of a run
  float encode_factor;  ///< 0: from the tensor's amax
  std::int32_t square, column;
  void *codes, *scales;  ///< results, row-major and dense
  float* factor;         ///< result if encode_factor is 0: the decode factor
  void* scratch;         ///< 2048 bytes if encode_factor is 0
};

/// An operand of a GEMM: numbers, or codes with block scales.
struct rotoscale_operand {
  rotoscale_matrix codes;  ///< codes of blocks: bytes
  const char* blocks;      ///< a block format's name; null: numbers
  void* scales;            ///< dense, a byte per block
  const float* factor;     ///< of the whole matrix; null: 1
  std::int32_t square;
};

/// out = alpha * a · bᵀ (+ out), as FP32.
struct rotoscale_gemm_call {
  rotoscale_operand a, b;
  const char *contract, *output;
  void* out;
  float alpha;
  std::int32_t accumulate;
  void* workspace;  ///< aligned to 256 bytes
  std::uint64_t workspace_bytes;
};

/// An operand of a recipe. Names are from rotoscale.recipes.
struct rotoscale_operand_recipe {
  const char *format, *scale_rule, *scale_choice, *scaling, *source, *rounding, *policy, *signs;
  std::uint32_t mask;
  std::int32_t points, length, rows;
};
struct rotoscale_gemm_recipe {
  rotoscale_operand_recipe left, right;
  const char *contract, *output;
};

/// Delayed scaling of a tensor: one word each, null where it has none.
struct rotoscale_scaling {
  float *scale, *inverse, *amax;
};

/// One GEMM of a linear layer, 0 fprop, 1 dgrad, 2 wgrad: out = left · right under a recipe. `left` and `right` are the
/// tensors as stored: x and w, dy and w, dy and x.
struct rotoscale_linear_call {
  void* recipe;  ///< of rotoscale_make_recipe
  rotoscale_matrix left, right;
  rotoscale_scaling left_scaling, right_scaling;
  std::int64_t layer;
  const void* state;  ///< of rotoscale_write_state; null: step 0, seed 0
  std::int32_t gemm, accumulate;
  rotoscale_matrix out;
  void* memory;  ///< of rotoscale_plan_linear
  std::uint64_t memory_bytes;
  /// dgrad and wgrad may quantize dy together, to `shared`: rotoscale_share.
  std::int32_t share;
  void* shared;  ///< of rotoscale_plan_linear
  std::uint64_t shared_bytes;
};
/// `left`: each call quantizes it alone; both forms are made; both forms are there.
enum rotoscale_share : std::int32_t { rotoscale_share_none, rotoscale_share_make, rotoscale_share_use };

const char* rotoscale_device_mode();     ///< "cuda", "hip" or "host"
const char* rotoscale_device_version();  ///< ROTOSCALE_VERSION

const char* rotoscale_quantize(const rotoscale_quantize_call* call, rotoscale_place place);
/// values = code * scale * factor as FP32, or its transpose. A rotation is left in.
const char* rotoscale_dequantize(const rotoscale_operand* from, std::int32_t transposed, float* to,
                                 rotoscale_place place);
/// Checks a call and sets the workspace that it needs.
const char* rotoscale_plan_gemm(rotoscale_gemm_call* call, rotoscale_place place);
const char* rotoscale_gemm(const rotoscale_gemm_call* call, rotoscale_place place);

/// Three GEMMs' recipes, fprop first. Free it with rotoscale_free_recipe.
const char* rotoscale_make_recipe(const rotoscale_gemm_recipe* gemms, void** recipe);
void rotoscale_free_recipe(void* recipe);
/// Writes seed and step into a step's state, which has 4096 bytes, zero at first.
const char* rotoscale_write_state(void* state, std::uint64_t seed, std::uint64_t step, rotoscale_place place);
/// Checks a call without memory and sets the memory that it needs.
const char* rotoscale_plan_linear(rotoscale_linear_call* call, rotoscale_place place);
const char* rotoscale_linear(const rotoscale_linear_call* call, rotoscale_place place);
/// Delayed scaling after a step. `words` are scale, inverse, amax, largest, then the history.
const char* rotoscale_update_scaling(float* words, std::int32_t history_length, const char* algorithm,
                                     std::int32_t margin, rotoscale_place place);
}
