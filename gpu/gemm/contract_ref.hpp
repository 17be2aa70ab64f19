// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// CPU reference of the block-scaled GEMM kernels, bit for bit.
// An operand is converted as the kernel converts it. Then accumulate_ref under the options of the kernel's entry in
// gemm_contracts.hpp gives the accumulator. Slow and literal; tests compare kernels with it.
#pragma once

#include <vector>

#include "gpu/dialect/packed.hpp"
#include "gpu/gemm/arguments.hpp"
#include "rotoscale/gemm_contracts.hpp"
#include "rotoscale/gemm_ref.hpp"

namespace rotoscale::gpu {

/// One row of an operand in the form that a matrix unit multiplies.
struct converted_row {
  format element;
  std::vector<std::uint8_t> codes;
  int base = 0;  ///< values are the unit's numbers times 2^base
  gemm_operand operand() const {
    const auto bytes = static_cast<index_t>(codes.size());
    return {element, 1, element.bits() == 16 ? bytes / 2 : bytes, codes.data(), bytes};
  }
};

/// Row `r` rounded to BF16. Exact for MXFP4: values beyond FP32 are Inf in both.
inline converted_row upconvert_bf16_row(block_format f, block_matrix<const std::uint8_t> m, index_t r) {
  converted_row row{formats::bf16, {}};
  for (index_t c = 0; c < m.k; ++c) {
    const std::uint32_t bits = bf16_bits_keeping_nan(decode_element(f, m, r, c));
    row.codes.push_back(static_cast<std::uint8_t>(bits & 0xFF));
    row.codes.push_back(static_cast<std::uint8_t>(bits >> 8));
  }
  return row;
}

/// Range of scale bytes that folding must cover.
struct fold_range_of_row {
  int least = 255, largest = -1;
  void add(int byte) {
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
  bool fits(int window = fold_window) const { return largest - least <= window; }
  int top() const { return largest < 0 ? unit_scale_byte : largest; }
};

/// Range of the scales of row `r`, NaN excluded. `with_zeros` includes blocks of zeros.
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
/// Range of row `r`. It includes blocks of zeros if they fit into the window. The base of a row changes no result.
inline fold_range_of_row fold_range_ref(block_matrix<const std::uint8_t> m, index_t r, int window = fold_window) {
  const fold_range_of_row all = range_of_row(m, r, true);
  return all.fits(window) ? all : range_of_row(m, r, false);
}

/// Width of row `r` for `accurate`, if no other row of the tile is wider. Results are the same on both sides of the
/// int8 limit. In units of 0.5 times the smallest scale, int8 holds values up to 12 * 2^3 whose squares sum to less
/// than 2^24.
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

/// Row `r` of an MXFP4 matrix with its scales folded into E5M2. It must fit.
inline converted_row upconvert_e5m2_row(block_matrix<const std::uint8_t> m, index_t r) {
  const int top = fold_range_ref(m, r).top();
  converted_row row{formats::e5m2, {}, fold_base(top)};
  for (index_t c = 0; c < m.k; ++c) {
    const std::uint32_t code = load_code(formats::e2m1, m.codes + r * m.code_stride, c);
    row.codes.push_back(fold_code(code, m.scales[r * m.scale_stride + c / 32], top));
  }
  return row;
}

/// Accumulator of an output from two converted rows. gemm_epilogue turns it into the output.
inline float model_sum(const converted_row& a, const converted_row& b, const gemm_options& o) {
  return times_power(accumulate_ref(a.operand(), 0, b.operand(), 0, o, 0.0f), a.base + b.base);
}

/// For each window_tile rows of an operand: true if one of them is outside the E5M2 window. Its tiles of outputs are
/// then computed from BF16.
inline std::vector<bool> tiles_outside_window(block_matrix<const std::uint8_t> m) {
  std::vector<bool> outside(static_cast<std::size_t>((m.rows + window_tile - 1) / window_tile));
  for (index_t r = 0; r < m.rows; ++r) {
    if (!fold_range_ref(m, r).fits()) outside[static_cast<std::size_t>(r / window_tile)] = true;
  }
  return outside;
}

}  // namespace rotoscale::gpu
