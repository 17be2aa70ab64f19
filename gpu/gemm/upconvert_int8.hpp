// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The first conversion of `accurate` on sm_90. Rows of E2M1 codes become int8 with folded E8M0 scales if that is exact
// and FP32 cannot round a sum of their products. Other rows become E5M2.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/gemm/upconvert.hpp"

namespace rotoscale::gpu {

/// Doubled values of E2M1 magnitudes 0 to 7 in a block with this scale, and their negatives.
struct int8_table {
  byte_table positive, negative;
  __device__ int8_table(int byte, int largest) {
    const int shift = (byte - largest + int8_window) & 3;  // arbitrary for blocks of zeros
    const std::uint32_t kept = 0x01010101u * (0xFFu << shift & 0xFFu);
    positive = {0x03020100u << shift, 0x0C080604u << shift};
    negative = {0xFDFEFF00u << shift & kept, 0xF4F8FAFCu << shift & kept};
  }
  /// int8 of the four codes in the lower half.
  __device__ std::uint32_t of(std::uint32_t codes) const {
    return permute_bytes(positive.of(codes), negative.of(codes), (codes >> 1 & 0x4444u) | 0x3210u);
  }
};

/// Stores a lane's part of a chunk and returns the sum of its squares.
__device__ inline std::uint32_t store_int8(const upconvert_arguments& p, const upconvert_position& at,
                                           const upconvert_codes& codes, int largest, int lane) {
  std::uint8_t* to = (at.second ? p.staging_b : p.staging_a) + static_cast<std::int64_t>(at.row) * p.k + at.first;
  std::uint32_t squares = 0;
  ROTOSCALE_UNROLL
  for (int j = 0; j < upconvert_codes::depth; ++j) {
    const int i = lane + 32 * j;
    const auto low = static_cast<std::uint32_t>(codes.x[j]), high = static_cast<std::uint32_t>(codes.x[j] >> 32);
    const int8_table table(codes.scale[j], largest);
    const vec16 out{{table.of(low), table.of(low >> 16), table.of(high), table.of(high >> 16)}};
    ROTOSCALE_UNROLL
    for (int w = 0; w < 4; ++w) squares = dot_int8x4(out.word[w], out.word[w], squares);
    if (i < at.count / 16) *reinterpret_cast<vec16*>(to + 16 * i) = out;
  }
  return squares;
}

/// Number of subgroups of a block that share a row. Each takes every int8_subgroups-th chunk.
ROTOSCALE_HD constexpr int int8_subgroups(int k) {
  return row_chunks(k) < upconvert_subgroups ? row_chunks(k) : upconvert_subgroups;
}
ROTOSCALE_HD constexpr int int8_rows(int k) { return upconvert_subgroups / int8_subgroups(k); }

/// Writes int8 of the rows that fit, E5M2 of rows that fit only its window, and the base and width of every row. A sum
/// of squares that is too large is known only after the row was written as int8. Such a row is written again as E5M2.
[[maybe_unused]] static __global__ void __launch_bounds__(upconvert_threads, 4)
    upconvert_int8_kernel(const upconvert_arguments p) {
  wait_for_kernel_before();
  struct squares_of_block {
    std::uint32_t of[upconvert_subgroups];
  };
  squares_of_block& parts = block_shared<squares_of_block>();
  const int subgroup = static_cast<int>(thread_index().x) / 32, lane = static_cast<int>(thread_index().x) % 32;
  const int subgroups = int8_subgroups(p.k), chunks = row_chunks(p.k), row = subgroup / subgroups;
  const int index = static_cast<int>(block_index().x) * int8_rows(p.k) + row, first = subgroup % subgroups;
  const bool active = row < int8_rows(p.k) && index < p.a.rows + p.b.rows;
  const block_source m = index >= p.a.rows ? p.b : p.a;
  const upconvert_position begin = position_of(p, index, first);
  std::uint32_t squares = 0;
  scale_range range;
  bool narrow = false, folds = false;
  upconvert_codes codes;
  if (active) {
    codes.load(m, begin, lane);  // prefetched before the wait for the range of the row's scales
    range = scan_range(m, p.k, begin.row, lane, int8_window);
    const bool nan = subgroup_any(range.has_nan);
    folds = range.span() <= fold_window;
    narrow = folds && !nan && range.span() <= int8_window;
  }
  for (int i = first; folds && i < chunks; i += subgroups) {
    const upconvert_position at = position_of(p, index, i);
    if (i != first) codes.load(m, at, lane);
    if (narrow) {
      squares += store_int8(p, at, codes, range.top(), lane);
    } else {
      store_e5m2(p, at, codes, range.top(), lane);
    }
  }
  squares = subgroup_sum(squares);
  if (lane == 0) parts.of[subgroup] = squares;
  block_barrier();
  if (!active) return;
  std::uint64_t sum = 0;
  for (int i = 0; i < subgroups; ++i) sum += parts.of[row * subgroups + i];
  const bool exact = narrow && sums_are_exact(sum, range.span());
  if (first == 0 && lane == 0) {
    p.base[begin.slot] = fold_base(range.top());
    p.widths[begin.slot] = exact ? operand_width::int8 : folds ? operand_width::e5m2 : operand_width::bf16;
  }
  for (int i = first; narrow && !exact && i < chunks; i += subgroups) {
    const upconvert_position at = position_of(p, index, i);
    codes.load(m, at, lane);
    store_e5m2(p, at, codes, range.top(), lane);
  }
}
static_assert(std::int64_t{max_gemm_extent} / upconvert_subgroups * 96 * 96 < std::int64_t{1} << 32,
              "a subgroup's sum of squares at the largest k");

}  // namespace rotoscale::gpu
