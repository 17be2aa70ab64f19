// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Decodes rows of an operand to FP32 for kernels that multiply or pack floats. operand_range describes a packed row or
// panel.
#pragma once

#include "rotoscale/detail/decode.hpp"
#include "rotoscale/detail/fast_round.hpp"
#include "rotoscale/detail/gemm_kernel.hpp"
#include "rotoscale/gemm_operand.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

/// Decodes row r of an operand to k floats.
inline void decode_row(const gemm_operand& a, const decode_table& table, index_t r, float* out) {
  if (a.k == 0) return;  // codes may be null
  const std::uint8_t* row = a.codes + r * a.code_stride;
  if (a.element == formats::fp32 && a.block == 0) {
    __builtin_memcpy(out, row, static_cast<std::size_t>(a.k) * sizeof(float));
  } else if (a.element == formats::bf16 && a.block == 0) {
    for (index_t i = 0; i < a.k; ++i) {
      std::uint16_t code;
      __builtin_memcpy(&code, row + 2 * i, sizeof code);
      out[i] = fp32_from_bits(static_cast<std::uint32_t>(code) << 16);
    }
  } else if (a.element == formats::fp16 && a.block == 0) {
    for (index_t i = 0; i < a.k; ++i) {
      std::uint16_t code;
      __builtin_memcpy(&code, row + 2 * i, sizeof code);
      std::uint32_t bits = code;
      widen_fp16(bits);
      out[i] = fp32_from_bits(bits);
    }
  } else if (a.element.bits() > 8 || (a.block != 0 && !fits_fp32(a.element))) {
    for (index_t i = 0; i < a.k; ++i) out[i] = operand_value(a, r, i);
  } else {
    const index_t length = a.block == 0 ? a.k : a.block;
    for (index_t first = 0; first < a.k; first += length) {
      const index_t count = a.k - first < length ? a.k - first : length;
      // Times a power of two: exact, or rounded once, like operand_value.
      const float scale = a.block == 0 ? 1.0f : scale_value(a.scale, operand_scale(a, r, first));
      if (a.element.bits() == 4) {
        decode_nibbles(row + first / 2, count, table, scale, out + first);
      } else if (storage_bits(a.element) == 8) {
        for (index_t i = first; i < first + count; ++i) out[i] = table.value[row[i]] * scale;
      } else {
        for (index_t i = first; i < first + count; ++i) out[i] = table.value[load_code(a.element, row, i)] * scale;
      }
    }
  }
}

/// Rows [first, last) as floats, k apart: in place if they are stored so, else decoded into `rows`.
inline const float* decode_rows(const gemm_operand& a, const decode_table& table, index_t first, index_t last,
                                float* rows) {
  if (a.element == formats::fp32 && a.block == 0 && a.code_stride == a.k * static_cast<index_t>(sizeof(float)) &&
      reinterpret_cast<std::uintptr_t>(a.codes) % alignof(float) == 0) {
    return reinterpret_cast<const float*>(a.codes + first * a.code_stride);
  }
  for (index_t i = first; i < last; ++i) decode_row(a, table, i, rows + (i - first) * a.k);
  return rows;
}

/// Can decode_column_strip read this transposed operand in place?
inline bool has_column_strips(const gemm_operand& a) {
  return a.transposed && a.block == 0 &&
         (a.element == formats::fp32 || a.element == formats::bf16 || storage_bits(a.element) == 8);
}

/// Decodes element k of rows [first, first + count) of a transposed operand, which are contiguous in memory.
inline void decode_column_strip(const gemm_operand& a, const decode_table& table, index_t k, index_t first,
                                index_t count, float* out) {
  const std::uint8_t* codes = a.codes + k * a.code_stride + first * (storage_bits(a.element) / 8);
  if (a.element == formats::fp32) {
    __builtin_memcpy(out, codes, static_cast<std::size_t>(count) * sizeof(float));
  } else if (a.element == formats::bf16) {
    for (index_t i = 0; i < count; ++i) {
      std::uint16_t code;
      __builtin_memcpy(&code, codes + 2 * i, sizeof code);
      out[i] = fp32_from_bits(static_cast<std::uint32_t>(code) << 16);
    }
  } else {
    for (index_t i = 0; i < count; ++i) out[i] = table.value[codes[i]];
  }
}

/// Decodes at most 64 rows [first, last) of a transposed operand, `stride` floats apart, in tiles of registers.
inline void decode_transposed_rows(const gemm_operand& a, const decode_table& table, index_t first, index_t last,
                                   float* out, index_t stride) {
  const index_t count = last - first;
  float tile[lane_count][64];
  for (index_t k0 = 0; k0 < a.k; k0 += lane_count) {
    const index_t depth = a.k - k0 < lane_count ? a.k - k0 : lane_count;
    for (index_t p = 0; p < depth; ++p) decode_column_strip(a, table, k0 + p, first, count, tile[p]);
    index_t i = 0;
    for (; depth == lane_count && i + lane_count <= count; i += lane_count) {
      lanes_u32 t[lane_count];
      for (int p = 0; p < lane_count; ++p) t[p] = load_lanes<lanes_u32>(tile[p] + i);
      transpose_lanes(t);
      for (int r = 0; r < lane_count; ++r) store_lanes(out + (i + r) * stride + k0, t[r]);
    }
    for (; i < count; ++i) {
      for (index_t p = 0; p < depth; ++p) out[i * stride + k0 + p] = tile[p][i];
    }
  }
}

/// Properties of a row of A or a panel of B, from which a kernel decides whether it can compute its bits.
struct operand_range {
  bool special = false;  ///< NaN, Inf, or other values that the kernel does not handle
  int least = 1 << 20;   ///< least exponent of nonzero values: of elements, or of scales
  int most = -(1 << 20);
  int min_scale = 1 << 20;  ///< exponents of block scales, if packed separately from elements
  int max_scale = -(1 << 20);
  int offset = 0;   ///< subtracted from packed exponents
  int folded = -1;  ///< all blocks have one scale, elements are multiplied by up to 2^folded; negative: they are not

  void include(int exponent) {
    least = exponent < least ? exponent : least;
    most = exponent > most ? exponent : most;
  }
  /// Adds a row, or a column of a panel.
  void include(const operand_range& column) {
    special = special || column.special;
    least = column.least < least ? column.least : least;
    most = column.most > most ? column.most : most;
    folded = folded < 0 || column.folded < 0 ? -1 : folded > column.folded ? folded : column.folded;
  }
  bool empty() const { return least > most; }
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
