// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the GEMM kernels of gpu/ compute, bit for bit, on the CPU: an operand is expanded as the kernel expands it, then
// accumulate_ref under the options of the kernel's entry in gemm_contracts.hpp gives the accumulator. The slow literal
// definition; tests compare kernels with it.
#pragma once

#include <vector>

#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/arguments.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu {

/// One row of an operand as a matrix unit multiplies it.
struct expanded_row {
  format element;
  std::vector<std::uint8_t> codes;
  int base = 0;  ///< the unit's numbers times 2^base are the operand's
  gemm_operand operand() const {
    const auto bytes = static_cast<index_t>(codes.size());
    return {element, 1, element.bits() == 16 ? bytes / 2 : bytes, codes.data(), bytes};
  }
};

/// Row `r` rounded to BF16: exact for MXFP4, whose values beyond FP32 are Inf in both.
inline expanded_row expand_bf16_row(block_format f, block_matrix<const std::uint8_t> m, index_t r) {
  expanded_row row{formats::bf16, {}};
  for (index_t c = 0; c < m.k; ++c) {
    const std::uint32_t bits = bf16_bits_keeping_nan(decode_element(f, m, r, c));
    row.codes.push_back(static_cast<std::uint8_t>(bits & 0xFF));
    row.codes.push_back(static_cast<std::uint8_t>(bits >> 8));
  }
  return row;
}

/// The range of scale bytes that folding has to cover.
struct fold_range_of_row {
  int least = 255, largest = -1;
  void add(int byte) {
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
  bool fits(int window = fold_window) const { return largest - least <= window; }
  int top() const { return largest < 0 ? unit_scale_byte : largest; }
};

/// Scales that are NaN do not count.
inline fold_range_of_row range_of_row(block_matrix<const std::uint8_t> m, index_t r, bool with_zeros) {
  fold_range_of_row range;
  for (index_t b = 0; b < m.k / 32; ++b) {
    const int byte = m.scales[r * m.scale_stride + b];
    bool zeros = true;
    for (index_t c = 32 * b; c < 32 * b + 32; ++c) {
      zeros = zeros && (load_code(formats::e2m1, m.codes + r * m.code_stride, c) & 7u) == 0;
    }
    if (byte != nan_scale_byte && (with_zeros || !zeros)) range.add(byte);
  }
  return range;
}
/// Blocks of zeros count unless the window is too small for them. Which base a row has cannot be seen in a result.
inline fold_range_of_row fold_range_ref(block_matrix<const std::uint8_t> m, index_t r, int window = fold_window) {
  const fold_range_of_row all = range_of_row(m, r, true);
  return all.fits(window) ? all : range_of_row(m, r, false);
}

/// How `accurate` multiplies row `r` if no other row of the tile is worse. Its results are the same on either side of
/// int8's edge. In units of the least scale's 0.5, int8 takes values up to 12 * 2^3, squares below 2^24 in sum.
inline operand_width width_ref(block_matrix<const std::uint8_t> m, index_t r) {
  const fold_range_of_row range = fold_range_ref(m, r, int8_window);
  if (!range.fits()) return operand_width::bf16;
  if (!range.fits(int8_window)) return operand_width::e5m2;
  double squares = 0;
  for (index_t c = 0; c < m.k; ++c) {
    const int byte = m.scales[r * m.scale_stride + c / 32];
    if (byte == nan_scale_byte) return operand_width::e5m2;
    const float value = decode(formats::e2m1, load_code(formats::e2m1, m.codes + r * m.code_stride, c));
    const double units = value == 0 ? 0 : __builtin_ldexp(value, byte - range.least + 1);
    squares += units * units;
  }
  return squares < 0x1p24 ? operand_width::int8 : operand_width::e5m2;
}

/// Row `r` of an MXFP4 matrix with its scales folded into E5M2; it must fit.
inline expanded_row expand_e5m2_row(block_matrix<const std::uint8_t> m, index_t r) {
  const int top = fold_range_ref(m, r).top();
  expanded_row row{formats::e5m2, {}, fold_base(top)};
  for (index_t c = 0; c < m.k; ++c) {
    const std::uint32_t code = load_code(formats::e2m1, m.codes + r * m.code_stride, c);
    row.codes.push_back(fold_code(code, m.scales[r * m.scale_stride + c / 32], top));
  }
  return row;
}

/// The accumulator of an output of a kernel whose operands are expanded rows; gemm_epilogue makes the output of it.
inline float model_sum(const expanded_row& a, const expanded_row& b, const gemm_options& o) {
  return times_power(accumulate_ref(a.operand(), 0, b.operand(), 0, o, 0.0f), a.base + b.base);
}

/// Must a tile of window_tile × window_tile outputs be computed from BF16? It must where its rows of A or of B are
/// outside; one answer for each window_tile rows of an operand.
inline std::vector<bool> tiles_outside_window(block_matrix<const std::uint8_t> m) {
  std::vector<bool> outside(static_cast<std::size_t>((m.rows + window_tile - 1) / window_tile));
  for (index_t r = 0; r < m.rows; ++r) {
    if (!fold_range_ref(m, r).fits()) outside[static_cast<std::size_t>(r / window_tile)] = true;
  }
  return outside;
}

}  // namespace rotoscale::gpu
