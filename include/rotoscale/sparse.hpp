// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Structured sparsity in the storage of NVIDIA's mma.sp and wgmma.sp (PTX ISA, "Sparse matrix storage").
// - A window has four elements along K, of which two are kept; for TF32 two FP32 words, of which one is kept.
// - Four bits of metadata per window hold two 2-bit indices, the first kept element's in the low bits.
// - An FP32 word counts as two halves, so 0x4 keeps the first word and 0xE the second.
// - Windows of a row are in order, from the low bits of its first byte.
#pragma once

#include "rotoscale/pack.hpp"

namespace rotoscale {

/// Elements per window; half of them are kept.
ROTOSCALE_HD constexpr int sparse_window(format f) { return f.bits() > 16 ? 2 : 4; }

/// Bytes of metadata for a row of k elements. k must be a multiple of two windows.
ROTOSCALE_HD constexpr index_t sparse_metadata_bytes(format f, index_t k) { return k / sparse_window(f) / 2; }

/// Metadata of a row's window w.
ROTOSCALE_HD constexpr std::uint32_t sparse_indices(const std::uint8_t* metadata, index_t w) {
  return nibble(metadata[w / 2], w);
}

/// Position within its window of kept element i.
ROTOSCALE_HD constexpr int kept_position(format f, std::uint32_t indices, int i) {
  return static_cast<int>(sparse_window(f) == 2 ? indices >> 3 : indices >> (2 * i) & 3);
}

/// Is the metadata valid: two different elements, or one FP32 word?
ROTOSCALE_HD constexpr bool is_sparse_index(format f, std::uint32_t indices) {
  return sparse_window(f) == 2 ? indices == 0x4 || indices == 0xE : (indices & 3) != indices >> 2;
}

namespace detail {

/// True if a matrix unit reads the code as zero. It drops the low 13 bits of FP32 words.
ROTOSCALE_HD constexpr bool is_sparse_zero(format f, std::uint64_t code) {
  return (code & f.magnitude_mask()) >> (f.bits() == 32 ? 13 : 0) == 0;
}

inline std::uint64_t sparse_element(format f, const std::uint8_t* row, index_t i) {
  const index_t bytes = storage_bits(f) / 8;
  std::uint64_t code = 0;
  for (index_t b = 0; b < bytes; ++b) code |= static_cast<std::uint64_t>(row[i * bytes + b]) << (8 * b);
  return code;
}

}  // namespace detail

/// Expands `kept` (k / 2 elements of 8, 16 or 32 bits) to a dense row of k. Pruned elements become +0 and kept zeros
/// -0, so that the mma_model of a sparse unit can tell them apart. Returns the first window with invalid metadata, or
/// -1.
inline index_t expand_sparse_row(format f, const std::uint8_t* kept, const std::uint8_t* metadata, index_t k,
                                 std::uint8_t* dense) {
  const int window = sparse_window(f);
  const index_t bytes = storage_bits(f) / 8;
  __builtin_memset(dense, 0, static_cast<std::size_t>(k * bytes));
  for (index_t w = 0; w < k / window; ++w) {
    const std::uint32_t indices = sparse_indices(metadata, w);
    if (!is_sparse_index(f, indices)) return w;
    for (int i = 0; i < window / 2; ++i) {
      std::uint64_t code = detail::sparse_element(f, kept, w * (window / 2) + i);
      if (detail::is_sparse_zero(f, code)) code = f.sign_mask();
      std::uint8_t* to = dense + (w * window + kept_position(f, indices, i)) * bytes;
      for (index_t b = 0; b < bytes; ++b) to[b] = static_cast<std::uint8_t>(code >> (8 * b));
    }
  }
  return -1;
}

/// The first window of a dense row in which more elements differ from +0 than a unit keeps, or -1.
inline index_t first_dense_window(format f, const std::uint8_t* row, index_t k) {
  const int window = sparse_window(f);
  for (index_t w = 0; w * window < k; ++w) {
    int kept = 0;
    for (index_t i = w * window; i < k && i < (w + 1) * window; ++i) kept += detail::sparse_element(f, row, i) != 0;
    if (kept > window / 2) return w;
  }
  return -1;
}

}  // namespace rotoscale
