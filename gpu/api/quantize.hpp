// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block quantizers on a device. Results equal quantize_ref by bytes.
// One launch rotates, scales, encodes, packs and places one or both orientations.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/nn/form_options.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Words of a tensor's amax on a device: FP32 bits, whose maximum counts.
inline constexpr int amax_words = 512;

/// Output of one orientation of a quantized matrix, in a kernel's order: block_matrix of M × N (rows) or N × M
/// (columns) elements. Codes are in row_major or aiter_data_16x16. Scales are in any order but column_major and
/// aiter_data_16x16.
struct quantized_output {
  /// Device memory; null: skip this orientation. Aligned to 16 bytes for blocks of has_tile_kernel.
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;  ///< device memory
  block_options options;           ///< of this orientation
  /// With a state, the words and signs of `draws` in its step replace those of `options`.
  nn::form_draws draws = {};
  const nn::step_state* state = nullptr;  ///< device memory, or null
  /// Not null, under floating-point scales: amax_words words of device memory that measure_amax wrote. The encode
  /// factor follows from them.
  std::uint32_t* amax = nullptr;
  float* factor = nullptr;                       ///< device memory: 1 / encode factor, with amax
  bf16* values = nullptr;                        ///< of quantize_values, in place of codes and scales
  placement code_order = placement::row_major;   ///< order of the codes
  placement scale_order = placement::row_major;  ///< order of the scales
  index_t code_stride = 0;   ///< bytes, for has_tile_kernel a multiple of 16 (6-bit codes: 8); 0: dense; row_major only
  index_t scale_stride = 0;  ///< bytes; 0: dense; row_major only
  std::uint8_t scale_padding = unit_scale_byte;  ///< value of padding scales
};

/// `q` as a GEMM operand: rows × k of `f`.
inline gemm_operand make_operand(block_format f, const quantized_output& q, index_t rows, index_t k) {
  return {.element = f.element,
          .rows = rows,
          .k = k,
          .codes = q.codes,
          .code_stride = q.code_stride != 0 ? q.code_stride : packed_bytes(f.element, k),
          .block = f.length,
          .scales = q.scales,
          .scale_stride = q.scale_stride != 0 ? q.scale_stride : k / f.length,
          .scale = f.scale,
          .block_rows = f.rows,
          .code_order = q.code_order,
          .scale_order = q.scale_order};
}

/// True if the tile kernel supports the blocks and the rotation: it makes both orientations from one read of the
/// source. Supported: E2M1, E2M3, E3M2, E4M3 or E5M2 with E8M0 scales, E2M1 with UE4M3 scales, in blocks of 16 or 32,
/// of one row or square, with 0, 16 or 32 points.
constexpr bool has_tile_kernel(block_format f, int points) {
  const bool is_element = f.element == formats::e2m1 || f.element == formats::e2m3 || f.element == formats::e3m2 ||
                          f.element == formats::e4m3 || f.element == formats::e5m2;
  const bool is_scale = f.scale == formats::e8m0 || (f.scale == formats::ue4m3 && f.element == formats::e2m1);
  return is_element && is_scale && (f.length == 16 || f.length == 32) && (f.rows == 1 || f.rows == f.length) &&
         (points == 0 || points == 16 || points == 32);
}

/// True if quantize_values takes the blocks, the rotation and the choice of scales: those of has_tile_kernel, and 4/6
/// or EDEN for NVFP4's blocks.
constexpr bool has_values_kernel(block_format f, int points, scale_choice choice) {
  const bool by_error = choice == scale_choice::four_over_six || choice == scale_choice::eden;
  const bool is_nvfp4 = f.element == formats::e2m1 && f.scale == formats::ue4m3 && f.length == 16;
  return has_tile_kernel(f, points) && (!by_error || is_nvfp4);
}

/// Writes the tensor_amax of M × N `source` (any strides) to rows.amax and columns.amax, under the options, draws and
/// state of each. One may be null. One launch on `s`, two for other rotations than those of has_tile_kernel.
status measure_amax(block_format f, matrix<const float> source, const quantized_output& rows,
                    const quantized_output& columns, stream s);
/// From BF16.
status measure_amax(block_format f, matrix<const bf16> source, const quantized_output& rows,
                    const quantized_output& columns, stream s);

/// Quantizes M × N `source` (any strides) into `rows` (M × N, blocks along N) and `columns` (N × M, blocks along M,
/// from the source itself). One of them may be null. No allocation. On any status but ok, nothing was launched.
///
/// - Blocks of has_tile_kernel: one launch on `s`. Padding of scales is written. Loads are 16 bytes wide if contiguous
///   rows (of a transpose: columns) begin at multiples of 16 bytes, else per element. Blocks of 16 and 6-bit codes are
///   row-major, others in any of the orders above.
/// - Other blocks, rotations of 64 or 128 points, blocks of 16 where k (of squares: an extent) is not a multiple of 32,
///   and 4/6 or EDEN scales other than NVFP4's in all wanted orientations from FP32 or BF16: the slow reference kernel,
///   row-major orders, one launch per orientation. Elements have 4, 6 or 8 bits, in blocks of 16, 32 or (under
///   E8M0) 128, of one row or square, with E8M0 or floating-point scales.
///
/// Extents are 0 to 2^24, whole blocks and whole rotations. Strides are at most 2^24 bytes. An empty source writes
/// nothing.
status quantize(block_format f, matrix<const float> source, const quantized_output& rows,
                const quantized_output& columns, stream s);
/// From FP16.
status quantize(block_format f, matrix<const fp16> source, const quantized_output& rows,
                const quantized_output& columns, stream s);
/// From BF16.
status quantize(block_format f, matrix<const bf16> source, const quantized_output& rows,
                const quantized_output& columns, stream s);

/// Quantizes M × N `source` to numbers: code * scale, without the factor, as dequantize gives it in BF16. `values` of
/// both outputs are dense M × N matrices in the source's orientation, aligned to 16 bytes. `rows` has blocks along N,
/// `columns` along M. One of them may be null. Blocks and options are those of has_values_kernel. Extents along blocks
/// are multiples of 32, of squares both. Where `amax` is not null, it is measured first. One launch on `s`, one more
/// with amax, and one if the orientations differ in rounding or choice. No allocation. On any status but ok, nothing
/// was launched.
status quantize_values(block_format f, matrix<const float> source, const quantized_output& rows,
                       const quantized_output& columns, stream s);
/// From BF16.
status quantize_values(block_format f, matrix<const bf16> source, const quantized_output& rows,
                       const quantized_output& columns, stream s);

}  // namespace rotoscale::gpu
