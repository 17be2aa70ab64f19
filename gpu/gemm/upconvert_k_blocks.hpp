// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The conversions of fp32_blockwise on sm_90. K is split into k-blocks of 128 (tile_k_blocks.hpp).
// 1. `upconvert_window_kernel` writes all rows as int8.
//    Values are relative to a window of four binades, which holds most blocks of a row.
//    Other k-blocks have a separate window.
// 2. `join_k_blocks_kernel` combines the k-blocks of a tile's rows.
// 3. `upconvert_k_blocks_kernel` writes E5M2 for the k-blocks that a tile multiplies as E5M2.
// Rows fall back to the SIMT kernel if they have a NaN, scales that E5M2 cannot represent, or sums that may leave
// FP32's normal range.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/math.hpp"
#include "gpu/gemm/tile_k_blocks.hpp"
#include "gpu/gemm/upconvert.hpp"
#include "gpu/gemm/upconvert_int8.hpp"

namespace rotoscale::gpu {

/// Distribution of rows over a block's subgroups: `subgroups` subgroups share a row. Each takes every `subgroups`-th
/// chunk, in `rounds` rounds.
struct row_split {
  int subgroups, rows, rounds;
  std::uint32_t inverse;  ///< 256 / subgroups, rounded up
  explicit row_split(int k)
      : subgroups(int8_subgroups(k)),
        rows(int8_rows(k)),
        rounds((row_chunks(k) + subgroups - 1) / subgroups),
        inverse(static_cast<std::uint32_t>((256 + subgroups - 1) / subgroups)) {}
};
static_assert(upconvert_subgroups == 8, "s * inverse / 256 is s / subgroups, rounded down, of all s below");

struct k_block_arguments {
  upconvert_arguments e;           ///< staging holds int8; widths are unused
  int least_scale, largest_scale;  ///< range of scale bytes of rows on the tensor cores
  log_squares* squares;            ///< per row, indexed like `base`
  /// [rows like `base`, chunks], two bit masks of k-blocks. Low 16 bits: outside the row's window. High 16 bits: of
  /// these, without any window.
  std::uint32_t* row_k_blocks;
  std::int8_t* row_shifts;  ///< [rows like `base`, 16 per chunk]: shifts of k-blocks
  tile_table tiles;
  row_split split;
};

inline constexpr int chunk_k_blocks = row_chunk / k_block_length;
static_assert(chunk_k_blocks == 16, "a chunk's k-blocks are the bits of a 16-bit number");

/// Range of scale bytes: 255 - least in the high half, largest in the low half, so that ranges are joined by maxima.
struct scale_ends {
  std::uint32_t bits = 0;  ///< 0: empty
  __device__ void join(std::uint32_t other) { bits = max3_u16x2(bits, other, other); }
  __device__ void add(int byte) {
    join(static_cast<std::uint32_t>(255 - byte) << 16 | static_cast<std::uint32_t>(byte));
  }
  /// Joins over lanes whose numbers differ in the bits from `least_bit` to below `end`.
  __device__ void join_lanes(unsigned least_bit, unsigned end) {
    ROTOSCALE_UNROLL
    for (unsigned mask = least_bit; mask < end; mask *= 2) join(shuffle_xor(bits, mask));
  }
  __device__ int least() const { return 255 - static_cast<int>(bits >> 16); }
  __device__ int largest() const { return static_cast<int>(bits & 0xFFFFu); }
  __device__ int span() const { return bits == 0 ? 0 : largest() - least(); }
  /// True if rows on the tensor cores may have these scales.
  __device__ bool lies_in(int least_scale, int largest_scale) const {
    return bits == 0 || (least() >= least_scale && largest() <= largest_scale);
  }
};
static_assert(nan_scale_byte == 255, "a NaN is the largest");

/// Scale statistics of the non-zero blocks of a lane, a subgroup or a row.
struct scale_counts {
  scale_ends ends;
  std::uint32_t sum = 0, count = 0;  ///< sum and number of scale bytes; count >= nan_count: NaN (zero blocks too)
  static constexpr std::uint32_t nan_count = 1u << 20;
  __device__ bool has_nan() const { return count >= nan_count; }
  __device__ void join_lanes(unsigned end) {
    ends.join_lanes(1, end);
    ROTOSCALE_UNROLL
    for (unsigned mask = 1; mask < end; mask *= 2) {
      sum += shuffle_xor(sum, mask);
      count += shuffle_xor(count, mask);
    }
  }
};
static_assert(max_gemm_extent / 16 < scale_counts::nan_count && std::int64_t{max_gemm_extent} / 16 * 255 < 1LL << 31);

/// Exchange buffer of the subgroups that share a row.
struct row_parts {
  scale_counts scales[upconvert_subgroups];
  float squares[upconvert_subgroups];
};

/// Subgroups of a block that share a row, and the index of this one.
struct row_share {
  int first, count, own;
};

/// True if the block of a lane's group j is not all zeros. Two lanes hold a block.
__device__ inline bool has_numbers(const upconvert_codes& codes, int j) {
  const std::uint64_t own = codes.x[j] & 0x7777777777777777u;
  const std::uint32_t any = static_cast<std::uint32_t>(own) | static_cast<std::uint32_t>(own >> 32);
  return (any | shuffle_xor(any, 1)) != 0;
}

/// A row's window: scale bytes [top - int8_window, top].
struct row_window {
  scale_ends ends;  ///< range of the non-zero blocks
  int top = unit_scale_byte;
  bool folds = true;  ///< false: the row falls back
  __device__ bool holds(int byte) const { return byte <= top && byte >= top - int8_window; }
};

/// Chooses a row's window: all of its scales if they fit. Otherwise the window is centred on the mean of the scales,
/// within the range that E5M2 can represent. All lanes of a warp call it.
__device__ inline row_window choose_window(const k_block_arguments& p, const row_parts& parts, const row_share& row,
                                           int lane) {
  scale_counts all;
  if (lane % 8 >= row.first && lane % 8 < row.first + row.count) all = parts.scales[lane % 8];
  all.join_lanes(8);
  row_window w;
  w.ends = all.ends;
  w.folds = !all.has_nan() && all.ends.lies_in(p.least_scale, p.largest_scale) && all.ends.span() <= fold_window;
  if (all.ends.bits == 0) return w;
  const float mean = static_cast<float>(all.sum) * reciprocal(static_cast<float>(all.count));
  const int largest = all.ends.largest(), middle = static_cast<int>(mean + 0.5f * (int8_window + 1));
  const int least_top = largest - window_headroom, most_room = all.ends.least() + window_depth;
  w.top = middle < least_top ? least_top : middle > largest || w.ends.span() <= int8_window ? largest : middle;
  if (w.top > most_room) w.top = most_room;
  return w;
}
static_assert(window_depth + window_headroom == fold_window, "a row that folds has such a top");

/// The int8 window of a k-block of a row. Eight lanes hold a k-block.
/// - `top`: the window's largest scale
/// - `plain`: the k-block is in the row's window
/// - `fits`: all of its blocks are in one window
struct k_block_window {
  int top;
  bool plain, fits;
  /// For a lane's group j of sixteen codes: the row's window if it holds the k-block, else the k-block's own.
  __device__ k_block_window(const upconvert_codes& codes, int j, bool numbers, const row_window& w) {
    scale_ends ends;
    if (numbers) ends.add(codes.scale[j]);
    ends.join_lanes(2, 8);
    plain = ends.bits == 0 || (w.holds(ends.least()) && w.holds(ends.largest()));
    fits = plain || ends.span() <= int8_window;
    top = plain ? w.top : ends.largest();
  }
};

/// Bits of the k-blocks of a chunk that a lane has seen.
struct seen_k_blocks {
  std::uint32_t outside = 0, wide = 0;
};

/// Stores a lane's part of a chunk and the shifts of its k-blocks. Adds its squares, in units of the window's least
/// scale.
__device__ inline void store_window(const k_block_arguments& p, const upconvert_position& at,
                                    const upconvert_codes& codes, std::uint32_t nonzero, const row_window& w, int lane,
                                    float& squares, seen_k_blocks& k_blocks) {
  const upconvert_arguments& e = p.e;
  std::uint8_t* to = (at.second ? e.staging_b : e.staging_a) + static_cast<std::int64_t>(at.row) * e.k + at.first;
  std::int8_t* shifts =
      p.row_shifts + std::int64_t{at.slot} * row_chunks(e.k) * chunk_k_blocks + at.first / k_block_length;
  ROTOSCALE_UNROLL
  for (int j = 0; j < upconvert_codes::depth; ++j) {
    const int i = lane + 32 * j, byte = codes.scale[j];
    const bool numbers = (nonzero >> j & 1u) != 0;
    const k_block_window k_block(codes, j, numbers, w);
    const auto low = static_cast<std::uint32_t>(codes.x[j]), high = static_cast<std::uint32_t>(codes.x[j] >> 32);
    // The int8 codes of a k-block without a window are never read; only its squares are used.
    const int8_table table(k_block.fits ? byte : k_block.top - int8_window, k_block.top);
    const vec16 out{{table.of(low), table.of(low >> 16), table.of(high), table.of(high >> 16)}};
    std::uint32_t sum = 0;
    ROTOSCALE_UNROLL
    for (int word = 0; word < 4; ++word) sum = dot_int8x4(out.word[word], out.word[word], sum);
    if (i < at.count / 16) *reinterpret_cast<vec16*>(to + 16 * i) = out;
    const bool outside = w.folds && !k_block.plain;
    if (lane % 8 == 0 && outside) shifts[i / 8] = static_cast<std::int8_t>(k_block.fits ? k_block.top - w.top : 0);
    k_blocks.outside |= outside ? 1u << (i / 8) : 0u;
    k_blocks.wide |= outside && !k_block.fits ? 1u << (i / 8) : 0u;
    const int binades = k_block.fits ? k_block.top - w.top : byte - (w.top - int8_window);
    // At most 6 for a row that folds; blocks of zeros may have any scale.
    if (numbers && w.folds) squares += static_cast<float>(sum) * pow2_fp32(2 * binades);
  }
}
static_assert(k_block_length == 8 * 16, "eight lanes a k-block");

/// The row's bound for exact sums, or fallback_row.
__device__ inline log_squares row_squares(const row_window& w, const row_parts& parts, const row_share& row) {
  if (!w.folds) return fallback_row;
  float sum = 0.0f;
  for (int i = row.first; i < row.first + row.count; ++i) sum += parts.squares[i];
  if (sum == 0.0f) return 0;
  const int quarters = quarters_of_log2(sum) + 8 * (w.top - int8_window - w.ends.least());
  return static_cast<log_squares>(quarters < 0 ? 0 : quarters);
}

/// A warp's part of a row. All warps run equally long loops, with or without work, so that the compiler sees converged
/// lanes at shuffles.
struct row_subgroup {
  const k_block_arguments& p;
  row_share row;
  int index;  ///< index of the row over both operands
  bool active;
  block_source m;
  upconvert_codes codes;
  std::uint32_t nonzero = 0;  ///< one bit per group of sixteen codes whose block is not all zeros
  int subgroup = static_cast<int>(thread_index().x) / 32, lane = static_cast<int>(thread_index().x) % 32;

  __device__ explicit row_subgroup(const k_block_arguments& arguments) : p(arguments) {
    const row_split& split = p.split;
    const int in_block = static_cast<int>(static_cast<std::uint32_t>(subgroup) * split.inverse >> 8);
    row = {in_block * split.subgroups, split.subgroups, subgroup - in_block * split.subgroups};
    index = static_cast<int>(block_index().x) * split.rows + in_block;
    active = in_block < split.rows && index < p.e.a.rows + p.e.b.rows;
    m = index >= p.e.a.rows ? p.e.b : p.e.a;
  }
  /// Loads the subgroup's chunk of a round and returns its position.
  __device__ upconvert_position begin(int round, bool again) {
    upconvert_position at = position_of(p.e, index, row.own + round * row.count);
    if (!active) at.count = 0;
    if (again && p.split.rounds == 1) return at;
    codes.load(m, at, lane);
    nonzero = 0;
    ROTOSCALE_UNROLL
    for (int j = 0; j < upconvert_codes::depth; ++j) nonzero |= has_numbers(codes, j) ? 1u << j : 0u;
    return at;
  }
};

/// Statistics of a warp's part of a row's scales.
__device__ inline scale_counts count_scales(row_subgroup& s) {
  scale_counts c;
  bool nan = false;
  for (int round = 0; round < s.p.split.rounds; ++round) {
    s.begin(round, false);
    ROTOSCALE_UNROLL
    for (int j = 0; j < upconvert_codes::depth; ++j) {
      const int byte = s.codes.scale[j];
      nan |= byte == nan_scale_byte;
      const bool numbers = (s.nonzero >> j & 1u) != 0;
      scale_ends ends;
      ends.add(byte);
      c.ends.join(numbers ? ends.bits : 0);
      c.sum += numbers ? static_cast<std::uint32_t>(byte) : 0;
      c.count += numbers ? 1 : 0;
    }
  }
  c.join_lanes(32);
  if (subgroup_any(nan)) c.count = scale_counts::nan_count;
  return c;
}

/// Writes int8 codes of all rows, their bases, squares, and k-blocks outside their windows.
[[maybe_unused]] static __global__ void __launch_bounds__(upconvert_threads, 4)
    upconvert_window_kernel(const k_block_arguments p) {
  wait_for_kernel_before();
  row_parts& parts = block_shared<row_parts>();
  row_subgroup s(p);
  const scale_counts counts = count_scales(s);
  if (s.lane == 0) parts.scales[s.subgroup] = counts;
  block_barrier();
  const row_window w = choose_window(p, parts, s.row, s.lane);
  const int chunks = row_chunks(p.e.k);
  float squares = 0.0f;
  const bool narrow = !subgroup_any(w.ends.span() > int8_window || !w.folds);
  for (int round = 0; round < p.split.rounds; ++round) {
    const upconvert_position at = s.begin(round, true);
    std::uint32_t both = 0;
    if (narrow) {
      squares += static_cast<float>(store_int8(p.e, at, s.codes, w.top, s.lane));
    } else {
      seen_k_blocks k_blocks;
      store_window(p, at, s.codes, s.nonzero, w, s.lane, squares, k_blocks);
      both = subgroup_or(k_blocks.outside | k_blocks.wide << 16);
    }
    const int chunk = s.row.own + round * s.row.count;
    if (s.lane == 0 && s.active && chunk < chunks) p.row_k_blocks[std::int64_t{at.slot} * chunks + chunk] = both;
  }
  squares = subgroup_sum(squares);
  if (s.lane == 0) parts.squares[s.subgroup] = squares;
  block_barrier();
  if (s.active && s.row.own == 0 && s.lane == 0) {
    const int slot = position_of(p.e, s.index, 0).slot;
    p.e.base[slot] = fold_base(w.top + window_headroom);
    p.squares[slot] = row_squares(w, parts, s.row);
  }
}

/// Row `thread` of a tile.
struct tile_row {
  int tile, row, slot;
  bool second, inside;
  __device__ tile_row(const k_block_arguments& p, int t, int thread) : tile(t), second(t >= p.tiles.tiles_a) {
    row = (second ? t - p.tiles.tiles_a : t) * window_tile + thread;
    inside = row < (second ? p.e.b.rows : p.e.a.rows);
    slot = row + (second ? p.e.base_b : 0);
  }
};

/// Stores the largest squares of a tile's rows, with the fallback flag.
__device__ inline void join_squares(const k_block_arguments& p, const tile_row& at,
                                    std::uint32_t (&seen)[window_tile / 32], int thread) {
  const std::uint32_t own = at.inside ? p.squares[at.slot] : 0;
  const std::uint32_t limit = subgroup_max(own == fallback_row ? 0 : own);
  const bool falls_back = subgroup_any(own == fallback_row);
  if (thread % 32 == 0) seen[thread / 32] = limit | (falls_back ? fallback_row : 0u);
  block_barrier();
  if (thread != 0) return;
  int greatest = 0, flag = 0;
  for (const std::uint32_t s : seen) {
    const int of_warp = limit_of(static_cast<log_squares>(s));
    greatest = of_warp > greatest ? of_warp : greatest;
    flag |= static_cast<int>(s) & fallback_row;
  }
  p.tiles.squares[at.tile] = static_cast<log_squares>(greatest | flag);
}

/// One thread block per chunk of a tile of window_tile rows, one thread per row.
[[maybe_unused]] static __global__ void __launch_bounds__(window_tile) join_k_blocks_kernel(const k_block_arguments p) {
  wait_for_kernel_before();
  struct joined_words {
    std::uint32_t squares[window_tile / 32], k_blocks[window_tile / 32];
  };
  joined_words& seen = block_shared<joined_words>();
  const int chunks = row_chunks(p.e.k), thread = static_cast<int>(thread_index().x), lane = thread % 32;
  const int chunk = static_cast<int>(block_index().x) % chunks;
  const tile_row at(p, static_cast<int>(block_index().x) / chunks, thread);
  if (chunk == 0) join_squares(p, at, seen.squares, thread);
  const std::int64_t own = std::int64_t{at.slot} * chunks + chunk;
  const std::uint32_t of_row = at.inside ? p.row_k_blocks[own] : 0;
  std::uint32_t k_blocks = subgroup_or(of_row);
  if (lane == 0) seen.k_blocks[thread / 32] = k_blocks;
  block_barrier();
  k_blocks = 0;
  for (const std::uint32_t b : seen.k_blocks) k_blocks |= b;
  if (thread < 2) {
    auto* words =
        reinterpret_cast<std::uint16_t*>(p.tiles.k_blocks + (std::int64_t{2} * at.tile + thread) * p.tiles.words);
    words[chunk] = static_cast<std::uint16_t>(thread == 0 ? k_blocks : k_blocks >> 16);
    if (chunk == chunks - 1 && chunks % 2 != 0) words[chunks] = 0;
  }
  if ((k_blocks & 0xFFFFu) == 0) return;
  for (int i = 0; i < chunk_k_blocks && chunk_k_blocks * chunk + i < k_block_count(p.e.k); ++i) {
    if ((k_blocks >> i & 1u) == 0) continue;
    const int shift = (of_row >> i & 1u) != 0 ? p.row_shifts[own * chunk_k_blocks + i] : 0;
    const std::int64_t k_block = std::int64_t{at.tile} * k_block_count(p.e.k) + chunk_k_blocks * chunk + i;
    p.tiles.shifts[k_block * window_tile + thread] = shift_factor(shift, at.second);
  }
}

/// Bits of the k-blocks of `chunk` that any tile with these rows multiplies as E5M2. Equal in all lanes.
__device__ inline std::uint32_t k_blocks_for_e5m2(const k_block_arguments& p, int tile, int chunk, int lane) {
  const bool second = tile >= p.tiles.tiles_a;
  const auto wide_of = [&](int t) {
    const std::uint32_t* words = p.tiles.k_blocks + (std::int64_t{2} * t + 1) * p.tiles.words;
    return words[chunk / 2] >> (16 * (chunk % 2)) & 0xFFFFu;
  };
  const int own = limit_of(p.tiles.squares[tile]);
  std::uint32_t k_blocks = wide_of(tile);
  for (int t = (second ? 0 : p.tiles.tiles_a) + lane; t < (second ? p.tiles.tiles_a : p.tiles.tiles()); t += 32) {
    k_blocks |= own + limit_of(p.tiles.squares[t]) > exact_log_squares ? 0xFFFFu : wide_of(t);
  }
  return subgroup_or(k_blocks);
}

/// One thread block per chunk of a tile of rows.
[[maybe_unused]] static __global__ void __launch_bounds__(upconvert_threads)
    upconvert_k_blocks_kernel(const k_block_arguments p) {
  wait_for_kernel_before();
  const upconvert_arguments& e = p.e;
  const int chunks = row_chunks(e.k), tile = static_cast<int>(block_index().x) / chunks,
            chunk = static_cast<int>(block_index().x) % chunks;
  const int subgroup = static_cast<int>(thread_index().x) / 32, lane = static_cast<int>(thread_index().x) % 32;
  const std::uint32_t k_blocks = k_blocks_for_e5m2(p, tile, chunk, lane);
  if (k_blocks == 0) return;
  for (int i = subgroup; i < window_tile; i += upconvert_subgroups) {
    const tile_row row(p, tile, i);
    if (!row.inside) break;
    const upconvert_position at = position_of(e, row.second ? e.a.rows + row.row : row.row, chunk);
    const block_source m = row.second ? e.b : e.a;
    if (p.squares[at.slot] == fallback_row) continue;
    upconvert_codes codes;
    codes.load(m, at, lane, upconvert_codes::k_blocks{k_blocks});
    store_e5m2(e, at, codes, largest_of_base(e.base[at.slot]), lane, upconvert_codes::k_blocks{k_blocks});
  }
}

}  // namespace rotoscale::gpu
