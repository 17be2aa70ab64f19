// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Conversion of MXFP4 and MXFP8 operands into the form that tensor cores multiply.
// E2M1 codes with E8M0 scales become E5M2 relative to one power of two per row, or BF16 (int8: upconvert_int8.hpp). One
// warp converts a chunk of a row; one launch covers both operands.
#pragma once

#include "gpu/dialect/e2m1.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/gemm/operand.hpp"
#include "gpu/gemm/output.hpp"
#include "rotoscale/block.hpp"

namespace rotoscale::gpu {

/// Blocks in the quantizers' layout: rows of codes in whole words, and [rows, k / 32] E8M0 scales.
struct block_source {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t code_stride, scale_stride;
  int rows;
  gemm_element element = gemm_element::e2m1;
};

struct upconvert_arguments {
  block_source a, b;
  int k;
  std::uint8_t *e5m2_a, *e5m2_b;        ///< E5M2 [rows, k]
  std::uint8_t *staging_a, *staging_b;  ///< BF16 [rows, k]; holds int8 before
  int base_b = 0;                       ///< index of B's first row in `base` and `widths`
  int* base = nullptr;                  ///< exponents of A's rows, then of B's; written by the first conversion
  operand_width* widths = nullptr;      ///< widths, indexed the same way; null: all rows become BF16
};

inline constexpr int upconvert_subgroups = 8, upconvert_threads = 32 * upconvert_subgroups;

/// fold_code of all magnitudes of a block.
__device__ inline byte_table fold_table(int byte, int largest) {
  if (byte == nan_scale_byte) return {0x7E7E7E7Eu, 0x7E7E7E7Eu};
  const auto step = static_cast<std::uint32_t>(4 * (byte - largest + fold_top + 14)) & 0xFFu;
  return {0x06040000u + step * 0x01010100u, 0x0E0C0A08u + step * 0x01010101u};
}

/// Sixteen codes of one block as E5M2.
__device__ inline vec16 fold_sixteen(std::uint32_t first, std::uint32_t second, byte_table table) {
  const sign_bytes s0 = spread_signs(first), s1 = spread_signs(second);
  return {{table.of(first) | s0.low, table.of(first >> 16) | s0.high, table.of(second) | s1.low,
           table.of(second >> 16) | s1.high}};
}

/// Reduces least and largest over a subgroup; all lanes get the results.
__device__ inline void reduce_range(int& least, int& largest) {
  least = subgroup_reduce(least, [](int a, int b) { return b < a ? b : a; });
  largest = subgroup_max(largest);
}

/// Range of a row's scale bytes, NaN excluded. If it is wider than `window`, blocks of zeros are excluded too.
struct scale_range {
  int least = 255, largest = -1;
  bool has_nan = false;
  /// Equal in all lanes, except has_nan.
  __device__ void add(int byte) {
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
  __device__ int span() const { return largest < 0 ? 0 : largest - least; }
  __device__ int top() const { return largest < 0 ? unit_scale_byte : largest; }
};
__device__ inline scale_range scan_range(const block_source& m, int k, int row, int lane, int window) {
  const std::uint8_t* scales = m.scales + row * m.scale_stride;
  scale_range all, nonzero;
  for (int b = lane; b < k / 32; b += 32) {
    const int byte = scales[b];
    all.has_nan |= byte == nan_scale_byte;
    if (byte != nan_scale_byte) all.add(byte);
  }
  reduce_range(all.least, all.largest);
  if (all.span() <= window) return all;
  for (int b = lane; b < k / 32; b += 32) {
    const int byte = scales[b];
    const vec16 x = reinterpret_cast<const vec16*>(m.codes + row * m.code_stride)[b];
    const bool zeros = ((x.word[0] | x.word[1] | x.word[2] | x.word[3]) & 0x77777777u) == 0;
    if (byte != nan_scale_byte && !zeros) nonzero.add(byte);
  }
  reduce_range(nonzero.least, nonzero.largest);
  nonzero.has_nan = all.has_nan;
  return nonzero;
}

/// Chunk of a row that a subgroup of 32 lanes converts; A's rows come first, then B's. Whole rows would leave SMs idle
/// at the end.
inline constexpr int row_chunk = 2048;
ROTOSCALE_HD constexpr int row_chunks(int k) { return (k + row_chunk - 1) / row_chunk; }

struct upconvert_position {
  bool second;
  int row, index, slot;  ///< row in its operand, in both operands, and in `base` and `widths`
  int first, count;      ///< first element and number of elements
};
__device__ inline upconvert_position position_of(const upconvert_arguments& p, int index, int chunk) {
  const int first = chunk * row_chunk, left = p.k - first;
  const bool second = index >= p.a.rows;
  return {second, second ? index - p.a.rows : index,
          index,  second ? index - p.a.rows + p.base_b : index,
          first,  left < 0 ? 0 : left < row_chunk ? left : row_chunk};
}
__device__ inline upconvert_position position_of(const upconvert_arguments& p, int block) {
  const int unit = block * upconvert_subgroups + static_cast<int>(thread_index().x) / 32, chunks = row_chunks(p.k);
  return position_of(p, unit / chunks, unit % chunks);
}

/// A lane's codes of a chunk, sixteen at a time, and their scales. Beyond the row's end they are zeros with scale 0.
struct upconvert_codes {
  static constexpr int depth = row_chunk / 16 / 32;
  /// Selects groups of sixteen codes of a chunk: all of them, or the k-blocks of 128 elements whose bits are set.
  struct everything {
    __device__ bool has(int) const { return true; }
  };
  struct k_blocks {
    std::uint32_t bits;
    __device__ bool has(int i) const { return (bits >> (i / 8) & 1u) != 0; }
  };
  std::uint64_t x[depth];
  std::uint8_t scale[depth];
  template <class Wanted = everything>
  __device__ void load(const block_source& m, const upconvert_position& at, int lane, Wanted w = {}) {
    const std::uint8_t* codes = m.codes + at.row * m.code_stride + at.first / 2;
    const std::uint8_t* scales = m.scales + at.row * m.scale_stride + at.first / 32;
    ROTOSCALE_UNROLL
    for (int j = 0; j < depth; ++j) {
      const int i = lane + 32 * j;
      const bool wanted = i < at.count / 16 && w.has(i);
      x[j] = wanted ? reinterpret_cast<const std::uint64_t*>(codes)[i] : 0;
      scale[j] = wanted ? scales[i / 2] : std::uint8_t{0};
    }
  }
};

template <class Wanted = upconvert_codes::everything>
__device__ void store_e5m2(const upconvert_arguments& p, const upconvert_position& at, const upconvert_codes& codes,
                           int largest, int lane, Wanted w = {}) {
  std::uint8_t* to = (at.second ? p.e5m2_b : p.e5m2_a) + static_cast<std::int64_t>(at.row) * p.k + at.first;
  ROTOSCALE_UNROLL
  for (int j = 0; j < upconvert_codes::depth; ++j) {
    const int i = lane + 32 * j;
    const auto low = static_cast<std::uint32_t>(codes.x[j]), high = static_cast<std::uint32_t>(codes.x[j] >> 32);
    const vec16 out = fold_sixteen(low, high, fold_table(codes.scale[j], largest));
    if (i < at.count / 16 && w.has(i)) *reinterpret_cast<vec16*>(to + 16 * i) = out;
  }
}

/// Converts all rows to E5M2, and writes their bases and widths.
[[maybe_unused]] static __global__ void __launch_bounds__(upconvert_threads)
    upconvert_e5m2_kernel(const upconvert_arguments p) {
  wait_for_kernel_before();
  const int lane = static_cast<int>(thread_index().x) % 32;
  const upconvert_position at = position_of(p, static_cast<int>(block_index().x));
  if (at.index >= p.a.rows + p.b.rows) return;
  const block_source m = at.second ? p.b : p.a;
  upconvert_codes codes;
  codes.load(m, at, lane);  // prefetched before the wait for the range of the row's scales
  const scale_range range = scan_range(m, p.k, at.row, lane, fold_window);
  if (lane == 0 && at.first == 0) {
    p.base[at.slot] = fold_base(range.top());
    p.widths[at.slot] = range.span() <= fold_window ? operand_width::e5m2 : operand_width::bf16;
  }
  store_e5m2(p, at, codes, range.top(), lane);
}

ROTOSCALE_HD constexpr int upconvert_blocks(int rows, int k) {
  return static_cast<int>((std::int64_t{rows} * row_chunks(k) + upconvert_subgroups - 1) / upconvert_subgroups);
}

/// Converts `units` times eight FP4 codes to BF16.
__device__ inline void upconvert_fp4_chunk(const std::uint8_t* codes, const std::uint8_t* scales, int units, int lane,
                                           std::uint8_t* to) {
  constexpr int depth = row_chunk / 8 / 32;
  std::uint32_t x[depth], scale[depth];
  ROTOSCALE_UNROLL
  for (int j = 0; j < depth; ++j) {
    const int i = lane + 32 * j;
    x[j] = i < units ? reinterpret_cast<const std::uint32_t*>(codes)[i] : 0;
    scale[j] = i < units ? scales[i / 4] : 0;
  }
  ROTOSCALE_UNROLL
  for (int j = 0; j < depth; ++j) {
    const int i = lane + 32 * j;
    if (i < units) *reinterpret_cast<vec16*>(to + 16 * i) = scale_eight(x[j], bf16_scale_pair(scale[j]));
  }
}

/// The same for FP8 blocks, rounded to nearest even. Only results below BF16's normal range can be inexact.
__device__ inline void upconvert_fp8_chunk(bool e4m3, const std::uint8_t* codes, const std::uint8_t* scales, int units,
                                           int lane, std::uint8_t* to) {
  for (int i = lane; i < units; i += 32) {
    const std::uint64_t x = reinterpret_cast<const std::uint64_t*>(codes)[i];
    const float factor = scale_value(scales[i / 4]);
    vec16 out;
    ROTOSCALE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const auto pair = static_cast<std::uint32_t>(x >> (16 * w));
      out.word[w] = bf16_bits_keeping_nan(fp8_value(e4m3, pair & 0xFFu) * factor) |
                    bf16_bits_keeping_nan(fp8_value(e4m3, pair >> 8 & 0xFFu) * factor) << 16;
    }
    *reinterpret_cast<vec16*>(to + 16 * i) = out;
  }
}

__device__ inline void store_bf16(const upconvert_arguments& p, const upconvert_position& at, const block_source& m,
                                  int lane) {
  const bool fp4 = m.element == gemm_element::e2m1;
  const std::uint8_t* codes = m.codes + at.row * m.code_stride + (fp4 ? at.first / 2 : at.first);
  const std::uint8_t* scales = m.scales + at.row * m.scale_stride + at.first / 32;
  std::uint8_t* to = (at.second ? p.staging_b : p.staging_a) + (static_cast<std::int64_t>(at.row) * p.k + at.first) * 2;
  if (fp4) {
    upconvert_fp4_chunk(codes, scales, at.count / 8, lane, to);
  } else {
    upconvert_fp8_chunk(m.element == gemm_element::e4m3, codes, scales, at.count / 8, lane, to);
  }
}

/// Converts all rows to BF16.
[[maybe_unused]] static __global__ void __launch_bounds__(upconvert_threads)
    upconvert_bf16_kernel(const upconvert_arguments p) {
  wait_for_kernel_before();
  const upconvert_position at = position_of(p, static_cast<int>(block_index().x));
  if (at.index >= p.a.rows + p.b.rows) return;
  store_bf16(p, at, at.second ? p.b : p.a, static_cast<int>(thread_index().x) % 32);
}

}  // namespace rotoscale::gpu
