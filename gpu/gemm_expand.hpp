// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operands in the form that the sm_90 GEMM kernels multiply: E2M1 codes with their E8M0 scales folded in, as int8 or
// E5M2 against one power of two a row, or as BF16. One warp a piece of a row, both operands in one launch.
#pragma once

#include "gpu/gemm_operand.hpp"
#include "gpu/gemm_output.hpp"
#include "gpu/hip.hpp"  // first: the numerics headers need its words
#include "rotoscale/block.hpp"

namespace rotoscale::gpu {

/// Blocks as the quantizers store them: rows of codes, [rows, k / 32] E8M0 scales, rows of whole words.
struct block_source {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  std::int64_t code_stride, scale_stride;
  int rows;
  gemm_element element = gemm_element::e2m1;
};

struct expand_arguments {
  block_source a, b;
  int k;
  std::uint8_t *folded_a, *folded_b;  ///< E5M2 [rows, k]
  std::uint8_t *wide_a, *wide_b;      ///< BF16 [rows, k], int8 before
  int* base = nullptr;                ///< exponents of A's rows, then of B's; the first expansion writes them
  operand_level* levels = nullptr;    ///< the same; null: all rows are to be BF16
  operand_level least_level = operand_level::int8;  ///< what the first expansion writes where it can
};

inline constexpr int expand_segments = 8, expand_threads = 32 * expand_segments;

/// Byte i of the result is byte `selector` nibble i of high:low (0 to 7).
__device__ inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
#if defined(ROTOSCALE_CUDA)
  return __byte_perm(low, high, selector);
#else
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t at = selector >> (4 * i) & 7u;
    out |= ((at < 4 ? low >> (8 * at) : high >> (8 * (at - 4))) & 0xFFu) << (8 * i);
  }
  return out;
#endif
}

/// The signs of eight codes in the top bits of bytes: of codes 0 to 3, or 4 to 7.
struct sign_bytes {
  std::uint32_t low, high;
};
__device__ inline sign_bytes signs_of(std::uint32_t codes) {
  const std::uint32_t even = codes << 4 & 0x80808080u, odd = codes & 0x80808080u;
  return {permute_bytes(even, odd, 0x5140), permute_bytes(even, odd, 0x7362)};
}

/// What E2M1 magnitudes 0 to 7 become, a byte each; both tables at once for four codes.
struct byte_table {
  std::uint32_t low, high;
  __device__ std::uint32_t of(std::uint32_t codes) const { return permute_bytes(low, high, codes & 0x7777u); }
};

/// fold_code for all magnitudes of a block.
__device__ inline byte_table fold_table(int byte, int largest) {
  if (byte == nan_scale_byte) return {0x7E7E7E7Eu, 0x7E7E7E7Eu};
  const auto step = static_cast<std::uint32_t>(4 * (byte - largest + fold_top + 14)) & 0xFFu;
  return {0x06040000u + step * 0x01010100u, 0x0E0C0A08u + step * 0x01010101u};
}

/// Sixteen codes of one block as E5M2.
__device__ inline bytes16 fold_sixteen(std::uint32_t first, std::uint32_t second, byte_table table) {
  const sign_bytes s0 = signs_of(first), s1 = signs_of(second);
  return {{table.of(first) | s0.low, table.of(first >> 16) | s0.high, table.of(second) | s1.low,
           table.of(second >> 16) | s1.high}};
}

/// The same in all lanes of a segment.
__device__ inline void reduce_range(int& least, int& largest) {
  ROTOSCALE_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) {
    const int low = static_cast<int>(shuffle_xor(static_cast<std::uint32_t>(least), mask));
    const int high = static_cast<int>(shuffle_xor(static_cast<std::uint32_t>(largest), mask));
    least = low < least ? low : least;
    largest = high > largest ? high : largest;
  }
}

/// The row's largest scale byte (not counting NaN) and whether its blocks fit the window. Where the bytes alone do not,
/// blocks of zeros are left out.
__device__ inline int fold_range(const block_source& m, int row, int k, int lane, bool& fits) {
  const std::uint8_t* scales = m.scales + row * m.scale_stride;
  int least = 255, largest = -1;
  for (int b = lane; b < k / 32; b += 32) {
    const int byte = scales[b];
    if (byte == nan_scale_byte) continue;
    least = byte < least ? byte : least;
    largest = byte > largest ? byte : largest;
  }
  reduce_range(least, largest);
  if (largest - least > fold_window) {
    least = 255, largest = -1;
    for (int b = lane; b < k / 32; b += 32) {
      const int byte = scales[b];
      const std::uint8_t* codes = m.codes + row * m.code_stride + 16 * b;
      unsigned any = 0;
      for (int i = 0; i < 16; ++i) any |= codes[i] & 0x77u;
      if (byte == nan_scale_byte || any == 0) continue;
      least = byte < least ? byte : least;
      largest = byte > largest ? byte : largest;
    }
    reduce_range(least, largest);
  }
  fits = largest - least <= fold_window;
  return largest < 0 ? unit_scale_byte : largest;
}

/// Which piece of which row 32 lanes expand; rows are A's, then B's. Pieces, since whole rows would leave
/// multiprocessors idle at the end.
inline constexpr int expand_piece = 2048;
ROTOSCALE_HD constexpr int expand_pieces(int k) { return (k + expand_piece - 1) / expand_piece; }

struct expand_place {
  bool second;
  int row, index;    ///< in its operand, in both
  int first, count;  ///< elements
};
__device__ inline expand_place place_of(const expand_arguments& p, int index, int piece) {
  const int first = piece * expand_piece, left = p.k - first;
  const bool second = index >= p.a.rows;
  return {second, second ? index - p.a.rows : index, index, first,
          left < 0              ? 0
          : left < expand_piece ? left
                                : expand_piece};
}
__device__ inline expand_place place_of(const expand_arguments& p, int block) {
  const int unit = block * expand_segments + static_cast<int>(thread_index().x) / 32, pieces = expand_pieces(p.k);
  return place_of(p, unit / pieces, unit % pieces);
}

/// A lane's codes of a piece, sixteen at a time, and their scales; beyond the row's end zeros under the scale 0.
struct expand_codes {
  static constexpr int depth = expand_piece / 16 / 32;
  std::uint64_t x[depth];
  std::uint8_t scale[depth];
  __device__ void load(const block_source& m, const expand_place& at, int lane) {
    const std::uint8_t* codes = m.codes + at.row * m.code_stride + at.first / 2;
    const std::uint8_t* scales = m.scales + at.row * m.scale_stride + at.first / 32;
    ROTOSCALE_UNROLL
    for (int j = 0; j < depth; ++j) {
      const int i = lane + 32 * j;
      x[j] = i < at.count / 16 ? reinterpret_cast<const std::uint64_t*>(codes)[i] : 0;
      scale[j] = i < at.count / 16 ? scales[i / 2] : std::uint8_t{0};
    }
  }
};

__device__ inline void store_e5m2(const expand_arguments& p, const expand_place& at, const expand_codes& codes,
                                  int largest, int lane) {
  std::uint8_t* to = (at.second ? p.folded_b : p.folded_a) + static_cast<std::int64_t>(at.row) * p.k + at.first;
  ROTOSCALE_UNROLL
  for (int j = 0; j < expand_codes::depth; ++j) {
    const int i = lane + 32 * j;
    const auto low = static_cast<std::uint32_t>(codes.x[j]), high = static_cast<std::uint32_t>(codes.x[j] >> 32);
    const bytes16 out = fold_sixteen(low, high, fold_table(codes.scale[j], largest));
    if (i < at.count / 16) *reinterpret_cast<bytes16*>(to + 16 * i) = out;
  }
}

[[maybe_unused]] static __global__ void __launch_bounds__(expand_threads) expand_e5m2_kernel(const expand_arguments p) {
  const int lane = static_cast<int>(thread_index().x) % 32;
  const expand_place at = place_of(p, static_cast<int>(block_index().x));
  if (at.index >= p.a.rows + p.b.rows) return;
  const block_source m = at.second ? p.b : p.a;
  expand_codes codes;
  codes.load(m, at, lane);  // these loads go out before the wait for the range of the row's scales
  bool fits = true;
  const int largest = fold_range(m, at.row, p.k, lane, fits);
  if (lane == 0 && at.first == 0) {
    p.base[at.index] = fold_base(largest);
    p.levels[at.index] = fits ? operand_level::e5m2 : operand_level::bf16;
  }
  store_e5m2(p, at, codes, largest, lane);
}

ROTOSCALE_HD constexpr int expand_blocks(int rows, int k) {
  return static_cast<int>((std::int64_t{rows} * expand_pieces(k) + expand_segments - 1) / expand_segments);
}

// ------------------------------------------------------------------ int8

/// Twice the values of E2M1 magnitudes 0 to 7 in a block with this scale, and their negatives.
struct int8_table {
  byte_table positive, negative;
  __device__ int8_table(int byte, int largest) {
    const int shift = (byte - largest + int8_window) & 3;  // of blocks of zeros any
    const std::uint32_t kept = 0x01010101u * (0xFFu << shift & 0xFFu);
    positive = {0x03020100u << shift, 0x0C080604u << shift};
    negative = {0xFDFEFF00u << shift & kept, 0xF4F8FAFCu << shift & kept};
  }
  /// Of the four codes in the lower half.
  __device__ std::uint32_t of(std::uint32_t codes) const {
    return permute_bytes(positive.of(codes), negative.of(codes), (codes >> 1 & 0x4444u) | 0x3210u);
  }
};

/// sum + the squares of four int8.
__device__ inline std::uint32_t add_squares(std::uint32_t x, std::uint32_t sum) {
#if defined(ROTOSCALE_CUDA)
  return static_cast<std::uint32_t>(__dp4a(static_cast<int>(x), static_cast<int>(x), static_cast<int>(sum)));
#else
  for (int i = 0; i < 4; ++i) {
    const int v = static_cast<std::int8_t>(x >> (8 * i));
    sum += static_cast<std::uint32_t>(v * v);
  }
  return sum;
#endif
}

/// Stores a lane's part of a piece and returns the sum of its squares.
__device__ inline std::uint32_t store_int8(const expand_arguments& p, const expand_place& at, const expand_codes& codes,
                                           int largest, int lane) {
  std::uint8_t* to = (at.second ? p.wide_b : p.wide_a) + static_cast<std::int64_t>(at.row) * p.k + at.first;
  std::uint32_t squares = 0;
  ROTOSCALE_UNROLL
  for (int j = 0; j < expand_codes::depth; ++j) {
    const int i = lane + 32 * j;
    const auto low = static_cast<std::uint32_t>(codes.x[j]), high = static_cast<std::uint32_t>(codes.x[j] >> 32);
    const int8_table table(codes.scale[j], largest);
    const bytes16 out{{table.of(low), table.of(low >> 16), table.of(high), table.of(high >> 16)}};
    ROTOSCALE_UNROLL
    for (int w = 0; w < 4; ++w) squares = add_squares(out.word[w], squares);
    if (i < at.count / 16) *reinterpret_cast<bytes16*>(to + 16 * i) = out;
  }
  return squares;
}

/// What 32 lanes found in their pieces of a row.
struct int8_part {
  int least, largest;  ///< scales of blocks that are not zero
  bool has_nan;
  std::uint32_t squares;
};

/// The scales of a lane's codes, those of zeros left out.
__device__ inline void add_range(const expand_codes& codes, int8_part& part) {
  ROTOSCALE_UNROLL
  for (int j = 0; j < expand_codes::depth; ++j) {
    const int byte = codes.scale[j];
    part.has_nan |= byte == nan_scale_byte;
    if (byte == nan_scale_byte || (codes.x[j] & 0x7777777777777777u) == 0) continue;
    part.least = byte < part.least ? byte : part.least;
    part.largest = byte > part.largest ? byte : part.largest;
  }
}

/// A row is one block's: that many segments share it, each every so many pieces.
ROTOSCALE_HD constexpr int int8_segments(int k) {
  return expand_pieces(k) < expand_segments ? expand_pieces(k) : expand_segments;
}
ROTOSCALE_HD constexpr int int8_rows(int k) { return expand_segments / int8_segments(k); }

/// int8 of the rows that fit, E5M2 of those that only fit its window; bases and levels of all. A sum of squares that is
/// too great shows when the row has been written: it is written again.
[[maybe_unused]] static __global__ void __launch_bounds__(expand_threads) expand_int8_kernel(const expand_arguments p) {
  struct parts_of_block {
    int8_part of[expand_segments];
  };
  parts_of_block& parts = block_shared<parts_of_block>();
  const int segment = static_cast<int>(thread_index().x) / 32, lane = static_cast<int>(thread_index().x) % 32;
  const int segments = int8_segments(p.k), pieces = expand_pieces(p.k), row = segment / segments;
  const int index = static_cast<int>(block_index().x) * int8_rows(p.k) + row, first = segment % segments;
  const bool active = row < int8_rows(p.k) && index < p.a.rows + p.b.rows;
  const block_source m = index >= p.a.rows ? p.b : p.a;
  int8_part mine{255, -1, false, 0};
  expand_codes codes;
  int last = first;
  for (int i = first; active && i < pieces; i += segments) {
    codes.load(m, place_of(p, index, i), lane);
    add_range(codes, mine);
    last = i;
  }
  reduce_range(mine.least, mine.largest);
  mine.has_nan = segment_any(mine.has_nan);
  if (lane == 0) parts.of[segment] = mine;
  block_barrier();
  const int begin = active ? row * segments : segment, end = active ? begin + segments : segment + 1;
  for (int i = begin; i < end; ++i) {
    const int8_part& other = parts.of[i];
    mine.least = other.least < mine.least ? other.least : mine.least;
    mine.largest = other.largest > mine.largest ? other.largest : mine.largest;
    mine.has_nan |= other.has_nan;
  }
  const int span = mine.largest < 0 ? 0 : mine.largest - mine.least;
  const int largest = mine.largest < 0 ? unit_scale_byte : mine.largest;
  const bool narrow = !mine.has_nan && span <= int8_window;
  for (int i = last; active && narrow && i >= 0; i -= segments) {
    const expand_place at = place_of(p, index, i);
    if (i != last) codes.load(m, at, lane);
    mine.squares += store_int8(p, at, codes, largest, lane);
  }
  ROTOSCALE_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) mine.squares += shuffle_xor(mine.squares, mask);
  block_barrier();  // all have read the ranges
  if (lane == 0) parts.of[segment].squares = mine.squares;
  block_barrier();
  if (!active) return;
  std::uint64_t squares = 0;
  for (int i = begin; i < end; ++i) squares += parts.of[i].squares;
  const operand_level level = narrow && sums_are_exact(squares, span) ? operand_level::int8
                              : span <= fold_window                   ? operand_level::e5m2
                                                                      : operand_level::bf16;
  if (first == 0 && lane == 0) {
    p.base[index] = fold_base(largest);
    p.levels[index] = level;
  }
  for (int i = first; level == operand_level::e5m2 && i < pieces; i += segments) {
    const expand_place at = place_of(p, index, i);
    if (segments < pieces) codes.load(m, at, lane);
    store_e5m2(p, at, codes, largest, lane);
  }
}
static_assert((1 << 20) / expand_segments * 96 * 96 < (1LL << 32), "a segment's sum of squares at the largest k");

/// A scale byte as a pair of BF16 numbers: 2^-127 is subnormal, 0xFF is NaN.
__device__ inline std::uint32_t bf16_scale_pair(std::uint32_t byte) {
  const std::uint32_t bits = byte == 0 ? 0x0040u : byte == nan_scale_byte ? 0x7FC0u : byte << 7;
  return bits | bits << 16;
}

/// Products of two pairs of BF16 numbers, nearest even.
__device__ inline std::uint32_t multiply_bf16(std::uint32_t x, std::uint32_t y) {
#if defined(ROTOSCALE_CUDA)
  std::uint32_t z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
#else
  const std::uint32_t low = bf16_bits(fp32_from_bits(x << 16) * fp32_from_bits(y << 16));
  const std::uint32_t high = bf16_bits(fp32_from_bits(x & 0xFFFF0000u) * fp32_from_bits(y & 0xFFFF0000u));
  return low | high << 16;
#endif
}

/// Eight codes as BF16: their values times the scale, which is exact, Inf where FP32 has Inf as well, or NaN.
__device__ inline bytes16 scale_eight(std::uint32_t x, std::uint32_t scale) {
  const byte_table upper{0x3F3F3F00u, 0x40404040u}, lower{0xC0800000u, 0xC0804000u};
  const sign_bytes signs = signs_of(x);
  const std::uint32_t high[2] = {upper.of(x) | signs.low, upper.of(x >> 16) | signs.high};
  const std::uint32_t low[2] = {lower.of(x), lower.of(x >> 16)};
  return {{multiply_bf16(permute_bytes(low[0], high[0], 0x5140), scale),
           multiply_bf16(permute_bytes(low[0], high[0], 0x7362), scale),
           multiply_bf16(permute_bytes(low[1], high[1], 0x5140), scale),
           multiply_bf16(permute_bytes(low[1], high[1], 0x7362), scale)}};
}

/// `units` times eight codes of FP4 blocks as BF16.
__device__ inline void expand_fp4_piece(const std::uint8_t* codes, const std::uint8_t* scales, int units, int lane,
                                        std::uint8_t* to) {
  constexpr int depth = expand_piece / 8 / 32;
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
    if (i < units) *reinterpret_cast<bytes16*>(to + 16 * i) = scale_eight(x[j], bf16_scale_pair(scale[j]));
  }
}

/// The same of FP8 blocks, nearest even: exact but where BF16 has no such subnormal number.
__device__ inline void expand_fp8_piece(bool e4m3, const std::uint8_t* codes, const std::uint8_t* scales, int units,
                                        int lane, std::uint8_t* to) {
  for (int i = lane; i < units; i += 32) {
    const std::uint64_t x = reinterpret_cast<const std::uint64_t*>(codes)[i];
    const float factor = scale_value(scales[i / 4]);
    bytes16 out;
    ROTOSCALE_UNROLL
    for (int w = 0; w < 4; ++w) {
      const auto pair = static_cast<std::uint32_t>(x >> (16 * w));
      out.word[w] = bf16_bits(fp8_value(e4m3, pair & 0xFFu) * factor) |
                    bf16_bits(fp8_value(e4m3, pair >> 8 & 0xFFu) * factor) << 16;
    }
    *reinterpret_cast<bytes16*>(to + 16 * i) = out;
  }
}

__device__ inline void store_bf16(const expand_arguments& p, const expand_place& at, const block_source& m, int lane) {
  const bool fp4 = m.element == gemm_element::e2m1;
  const std::uint8_t* codes = m.codes + at.row * m.code_stride + (fp4 ? at.first / 2 : at.first);
  const std::uint8_t* scales = m.scales + at.row * m.scale_stride + at.first / 32;
  std::uint8_t* to = (at.second ? p.wide_b : p.wide_a) + (static_cast<std::int64_t>(at.row) * p.k + at.first) * 2;
  if (fp4) {
    expand_fp4_piece(codes, scales, at.count / 8, lane, to);
  } else {
    expand_fp8_piece(m.element == gemm_element::e4m3, codes, scales, at.count / 8, lane, to);
  }
}

/// What the first expansion left: where any row is outside int8, E5M2 of those inside; where any is outside E5M2, BF16
/// of all rows. As a rule the blocks look at the levels and leave.
[[maybe_unused]] static __global__ void __launch_bounds__(expand_threads) expand_rest_kernel(const expand_arguments p) {
  const int thread = static_cast<int>(thread_index().x), lane = thread % 32, rows = p.a.rows + p.b.rows;
  operand_level worst = operand_level::bf16;
  if (p.levels != nullptr) worst = block_level<expand_threads>(levels_of_all(p.levels, rows, thread, expand_threads));
  if (p.levels != nullptr && worst == p.least_level) return;
  const int blocks = expand_blocks(rows, p.k);
  for (int block = static_cast<int>(block_index().x); block < blocks; block += static_cast<int>(grid_size().x)) {
    const expand_place at = place_of(p, block);
    if (at.index >= rows) continue;
    const block_source m = at.second ? p.b : p.a;
    if (p.levels != nullptr && p.levels[at.index] == operand_level::int8) {
      expand_codes codes;
      codes.load(m, at, lane);
      store_e5m2(p, at, codes, largest_of_base(p.base[at.index]), lane);
    }
    if (worst == operand_level::bf16) store_bf16(p, at, m, lane);
  }
}

}  // namespace rotoscale::gpu
