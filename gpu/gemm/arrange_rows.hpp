// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Rows of one width side by side. A tile of 256 x 256 outputs takes the widest operand that one of its 512 rows needs,
// so one row in fifty that int8 does not hold makes nearly every tile E5M2, which takes twice the time. Behind the
// first expansion this kernel gives int8's rows the first places of an operand, then E5M2's, then all others. A row
// that lies among its own kind stays where it is; the others are copied. Kernels of products know only places; the last
// step of an output looks up the row and column that lie there.
#pragma once

#include "gpu/gemm/expand.hpp"

namespace rotoscale::gpu {

struct arrange_arguments {
  expand_arguments found;                       ///< whose bases and widths are those of rows
  int *base = nullptr, *permutation = nullptr;  ///< of places
  operand_width* widths = nullptr;
};

inline constexpr int arrange_threads = 256, arrange_rows_at_once = 16 * arrange_threads, width_kinds = 3;
/// Moves of a block that its shared memory holds at once.
inline constexpr int arrange_list = 512;

/// Each reads the widths of all rows; as many as copy rows at the memory's rate.
ROTOSCALE_HD constexpr int arrange_blocks(int rows) { return rows < 64 * 264 ? (rows + 63) / 64 : 264; }

/// In shared memory.
struct arrange_memory {
  int from[arrange_list], to[arrange_list];  ///< rows of one width elsewhere, and places of that width that others have
  std::uint32_t sums[arrange_threads / 32];
};

/// One operand's rows by their widths.
struct arranged_operand {
  const operand_width* widths;
  int rows;
  int ends[width_kinds];  ///< the first place behind those of each width

  __device__ int kind(int row) const { return static_cast<int>(widths[row]); }
  /// Whose places those around this one are.
  __device__ int kind_of_place(int place) const { return place < ends[0] ? 0 : place < ends[1] ? 1 : 2; }
};

/// The sum of a word of each thread before this one, and in `all` that of all. All threads of the block call it.
__device__ inline std::uint32_t sum_before(std::uint32_t x, std::uint32_t (&sums)[arrange_threads / 32],
                                           std::uint32_t& all) {
  const unsigned lane = thread_index().x % 32, segment = thread_index().x / 32;
  std::uint32_t through = x;
  ROTOSCALE_UNROLL
  for (unsigned step = 1; step < 32; step *= 2) {
    const std::uint32_t other = shuffle(through, (lane - step) % 32);
    through += lane >= step ? other : 0;
  }
  block_barrier();  // the sums of the call before have been read
  if (lane == 31) sums[segment] = through;
  block_barrier();
  std::uint32_t before = through - x;
  all = 0;
  ROTOSCALE_UNROLL
  for (unsigned s = 0; s < arrange_threads / 32; ++s) {
    before += s < segment ? sums[s] : 0;
    all += sums[s];
  }
  return before;
}

/// The widths of sixteen rows, of which there may be fewer.
struct sixteen_widths {
  int first, count;
  vec16 bytes;
  __device__ sixteen_widths(const operand_width* widths, int rows, int chunk)
      : first(chunk * arrange_rows_at_once + 16 * static_cast<int>(thread_index().x)),
        count(rows - first < 16 ? rows - first : 16),
        bytes{} {
    if (count > 0) bytes = reinterpret_cast<const vec16*>(widths)[first / 16];
  }
  /// use(row, width)
  template <class Use>
  __device__ void for_each(const Use& use) const {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 16; ++i) {
      if (i < count) use(first + i, static_cast<int>(bytes.word[i / 4] >> (8 * (i % 4)) & 0xFFu));
    }
  }
};
ROTOSCALE_HD constexpr int arrange_chunks(int rows) { return (rows + arrange_rows_at_once - 1) / arrange_rows_at_once; }

__device__ inline arranged_operand count_widths(const operand_width* widths, int rows, arrange_memory& memory) {
  int counts[2] = {};
  for (int chunk = 0; chunk < arrange_chunks(rows); ++chunk) {
    std::uint32_t packed = 0, all = 0;  // 4096 rows at most: two counts in a word
    sixteen_widths(widths, rows, chunk).for_each([&](int, int kind) {
      packed += kind == 0 ? 1u : kind == 1 ? 65536u : 0u;
    });
    sum_before(packed, memory.sums, all);
    counts[0] += static_cast<int>(all & 0xFFFFu);
    counts[1] += static_cast<int>(all >> 16);
  }
  return {widths, rows, {counts[0], counts[0] + counts[1], rows}};
}

/// This block's share of the moves to places of width `kind`, as many as fit behind `skipped` of them: rows of that
/// width among others, in their order, to places among theirs that others have, in theirs. Returns how many moves there
/// are in all.
__device__ inline int list_moves(const arranged_operand& o, int kind, int skipped, arrange_memory& memory) {
  const int block = static_cast<int>(block_index().x), blocks = static_cast<int>(grid_size().x);
  int rows = 0, places = 0;
  for (int chunk = 0; chunk < arrange_chunks(o.rows); ++chunk) {
    const sixteen_widths mine(o.widths, o.rows, chunk);
    std::uint32_t packed = 0, all = 0;
    const auto leaves = [&](int row, int width) { return width == kind && o.kind_of_place(row) != kind; };
    const auto is_free = [&](int row, int width) { return width != kind && o.kind_of_place(row) == kind; };
    mine.for_each([&](int row, int width) { packed += leaves(row, width) ? 1u : is_free(row, width) ? 65536u : 0u; });
    const std::uint32_t before = sum_before(packed, memory.sums, all);
    int row_number = rows + static_cast<int>(before & 0xFFFFu), place_number = places + static_cast<int>(before >> 16);
    const auto note = [&](int number, int row, int(&list)[arrange_list]) {
      const int own = number / blocks - skipped;
      if (number % blocks == block && own >= 0 && own < arrange_list) list[own] = row;
    };
    mine.for_each([&](int row, int width) {
      if (leaves(row, width)) note(row_number++, row, memory.from);
      if (is_free(row, width)) note(place_number++, row, memory.to);
    });
    rows += static_cast<int>(all & 0xFFFFu);
    places += static_cast<int>(all >> 16);
  }
  block_barrier();
  return rows;
}

/// A row's expansion to its place, by the block. Others' rows are not expanded.
__device__ inline void copy_row(const expand_arguments& p, bool second, int kind, int from, int to) {
  std::uint8_t* const rows = kind == 0 ? (second ? p.staging_b : p.staging_a) : (second ? p.e5m2_b : p.e5m2_a);
  const auto* const source = reinterpret_cast<const vec16*>(rows + static_cast<std::int64_t>(from) * p.k);
  auto* const target = reinterpret_cast<vec16*>(rows + static_cast<std::int64_t>(to) * p.k);
  for (int i = static_cast<int>(thread_index().x); i < p.k / 16; i += arrange_threads) target[i] = source[i];
}

__device__ inline void arrange_operand(const arrange_arguments& a, bool second, arrange_memory& memory) {
  const expand_arguments& p = a.found;
  const int first = second ? p.base_b : 0, rows = second ? p.b.rows : p.a.rows;
  const int block = static_cast<int>(block_index().x), blocks = static_cast<int>(grid_size().x);
  const int thread = static_cast<int>(thread_index().x);
  const arranged_operand o = count_widths(p.widths + first, rows, memory);
  const auto place = [&](int to, int from) {
    a.base[first + to] = p.base[first + from];
    a.widths[first + to] = o.widths[from];
    a.permutation[first + to] = from;
  };
  for (int row = block * arrange_threads + thread; row < rows; row += blocks * arrange_threads) {
    if (o.kind(row) == o.kind_of_place(row)) place(row, row);
  }
  for (int kind = 0, begin = 0; kind < width_kinds; begin = o.ends[kind++]) {
    if (o.ends[kind] == begin || o.ends[kind] - begin == rows) continue;  // no row, or all
    for (int skipped = 0, moves = blocks; skipped * blocks + block < moves; skipped += arrange_list) {
      moves = list_moves(o, kind, skipped, memory);
      for (int i = 0; i < arrange_list && (skipped + i) * blocks + block < moves; ++i) {
        if (kind != 2) copy_row(p, second, kind, memory.from[i], memory.to[i]);
        if (thread == 0) place(memory.to[i], memory.from[i]);
      }
      block_barrier();  // the lists have been read
    }
  }
}

[[maybe_unused]] static __global__ void __launch_bounds__(arrange_threads)
    arrange_rows_kernel(const arrange_arguments a) {
  wait_for_kernel_before();
  auto& memory = block_shared<arrange_memory>();
  arrange_operand(a, false, memory);
  arrange_operand(a, true, memory);
}

}  // namespace rotoscale::gpu
