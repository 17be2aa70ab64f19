// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block quantizers on a device, equal to quantize_ref by bytes: rotation, scale, codes, packing and placement of one or
// both orientations in one launch.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Where one orientation of a quantized matrix goes: block_matrix of M × N (rows) or N × M (columns) elements, in an
/// order that a kernel wants. Codes in row_major or aiter_data_16x16, scales in any order but column_major and
/// aiter_data_16x16.
struct quantized_output {
  /// Device memory; null: this orientation is not wanted. Blocks of has_tile_kernel: aligned to 16 bytes.
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;  ///< device memory
  block_options options;           ///< of this orientation
  /// In device memory, not null: holds instead of `options`, from which it may differ in random words and signs only.
  /// Every block takes the exact path then.
  const block_options* drawn = nullptr;
  placement code_order = placement::row_major;   ///< order of the codes
  placement scale_order = placement::row_major;  ///< order of the scales
  index_t code_stride = 0;   ///< bytes, of has_tile_kernel's a multiple of 16; 0: dense; row_major only
  index_t scale_stride = 0;  ///< bytes; 0: dense; row_major only
  std::uint8_t scale_padding = unit_scale_byte;  ///< written where scales are padded
};

/// What was written to `q` as an operand: rows × k of `f`.
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

/// Blocks and rotations whose both orientations come from one read of the source: 32 elements of E2M1, E4M3 or E5M2
/// under E8M0, of one row or square, 0 or 16 points.
constexpr bool has_tile_kernel(block_format f, int points) {
  const block_format row{f.element, f.length, f.scale};
  return (row == mxfp4 || row == mxfp8_e4m3 || row == mxfp8_e5m2) && (f.rows == 1 || f.rows == f.length) &&
         (points == 0 || points == 16);
}

/// NVFP4's second-level factor: tensor_encode_factor of what `options` make of the source (blocks lie along its rows)
/// goes to drawn->encode_factor, its inverse to `factor`, both device memory, as is `amax`, a word to work with. Two
/// launches and a fill on `s`.
status draw_encode_factor(block_format f, const block_options& options, matrix<const float> source,
                          block_options* drawn, std::uint32_t* amax, float* factor, stream s);
/// From BF16.
status draw_encode_factor(block_format f, const block_options& options, matrix<const bf16> source, block_options* drawn,
                          std::uint32_t* amax, float* factor, stream s);

/// Quantizes M × N `source` (any strides) into `rows` (M × N, blocks along N) and/or `columns` (N × M, blocks along M,
/// from the source itself). Formats: 32 elements of E2M1, E4M3 or E5M2 with E8M0 scales, one-dimensional or
/// square_blocks, with a rotation of 0 or 16 points (has_tile_kernel): one launch on `s`, in any of the orders above;
/// padding of scales is written; reads 16 bytes at a time where rows, or of a transpose columns, are contiguous and
/// begin at multiples of 16 bytes, else one by one. Other blocks (elements of 4, 6 or 8 bits, 16 or 32 long, of one row
/// or square, under E8M0 or UE4M3) and rotations of 32 points use the reference kernel, which is slow: row-major
/// orders, a launch an orientation. Extents are 0 to 2^24, whole blocks and whole rotations; strides at most 2^24
/// bytes. An empty source writes nothing. No allocation. Any status but ok: nothing was launched.
status quantize(block_format f, matrix<const float> source, const quantized_output& rows,
                const quantized_output& columns, stream s);
/// From FP16.
status quantize(block_format f, matrix<const fp16> source, const quantized_output& rows,
                const quantized_output& columns, stream s);
/// From BF16.
status quantize(block_format f, matrix<const bf16> source, const quantized_output& rows,
                const quantized_output& columns, stream s);

}  // namespace rotoscale::gpu
