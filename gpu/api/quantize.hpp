// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Block quantizers on a device. Results equal quantize_ref by bytes.
// One launch rotates, scales, encodes, packs and places one or both orientations.
#pragma once

#include "rotoscale/gemm_operand.hpp"
#include "rotoscale/small_float.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Output of one orientation of a quantized matrix, in a kernel's order: block_matrix of M × N (rows) or N × M
/// (columns) elements. Codes are in row_major or aiter_data_16x16. Scales are in any order but column_major and
/// aiter_data_16x16.
struct quantized_output {
  /// Device memory; null: skip this orientation. Aligned to 16 bytes for blocks of has_tile_kernel.
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;  ///< device memory
  block_options options;           ///< of this orientation
  /// If not null: device memory, replaces `options`. It may differ from `options` in random words and signs only. Every
  /// block then takes the exact path.
  const block_options* drawn = nullptr;
  placement code_order = placement::row_major;   ///< order of the codes
  placement scale_order = placement::row_major;  ///< order of the scales
  index_t code_stride = 0;   ///< bytes, a multiple of 16 for has_tile_kernel; 0: dense; row_major only
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
/// source. Supported: 32 elements of E2M1, E4M3 or E5M2 with E8M0 scales, of one row or square, with 0 or 16 points.
constexpr bool has_tile_kernel(block_format f, int points) {
  const block_format row{f.element, f.length, f.scale};
  return (row == mxfp4 || row == mxfp8_e4m3 || row == mxfp8_e5m2) && (f.rows == 1 || f.rows == f.length) &&
         (points == 0 || points == 16);
}

/// Computes NVFP4's second-level factor, the tensor_encode_factor of the source under `options` (blocks along its
/// rows). The factor goes to drawn->encode_factor, its inverse to `factor`. Both are device memory, as is the scratch
/// word `amax`. Two launches and a fill on `s`.
status draw_encode_factor(block_format f, const block_options& options, matrix<const float> source,
                          block_options* drawn, std::uint32_t* amax, float* factor, stream s);
/// From BF16.
status draw_encode_factor(block_format f, const block_options& options, matrix<const bf16> source, block_options* drawn,
                          std::uint32_t* amax, float* factor, stream s);

/// Quantizes M × N `source` (any strides) into `rows` (M × N, blocks along N) and `columns` (N × M, blocks along M,
/// from the source itself). One of them may be null. No allocation. On any status but ok, nothing was launched.
///
/// - Blocks of has_tile_kernel: one launch on `s`, in any of the orders above. Padding of scales is written. Loads are
///   16 bytes wide if contiguous rows (of a transpose: columns) begin at multiples of 16 bytes, else per element.
/// - Other blocks and rotations of 32 points: the slow reference kernel, row-major orders, one launch per orientation.
///   Elements have 4, 6 or 8 bits, in blocks of 16 or 32, of one row or square, with E8M0 or UE4M3 scales.
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

}  // namespace rotoscale::gpu
