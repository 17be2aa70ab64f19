// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// GEMM kernel for mma_sum::split_chains on AMX (TDPBF16PS): its own instruction. Operands are packed as pairs of k.
// gemm_flushing_chains.hpp has the same bits on other processors.
//
// add_pair_tiles is the algorithm. Its instructions are a struct, which a test emulates.
#pragma once

#include "rotoscale/detail/gemm_flushing_chains.hpp"
#include "rotoscale/detail/tile_registers.hpp"

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

inline constexpr index_t pair_columns = 32;       ///< of a panel: two tiles
inline constexpr index_t pair_step = 32;          ///< k of a product
inline constexpr index_t pair_tile_bytes = 1024;  ///< 16 pairs of k × 16 columns

/// Packed rows of A, BF16 along k, and a panel of B: tiles of the left 16 columns along k, then of the right ones.
struct packed_pairs {
  const std::byte* rows;
  index_t count, row_bytes;  ///< rows, and bytes between them
  const std::byte* panel;
  index_t half_bytes;   ///< from the left tiles to the right ones
  index_t first, last;  ///< steps of pair_step to add, ascending
  float* acc;           ///< count × pair_columns
  bool starts;          ///< acc is +0, whatever it holds
};

/// Adds to `Halves` times 16 rows (the last ones may be fewer, as configured) from `row` on.
template <class Tiles, int Halves>
[[gnu::always_inline]] inline void add_pair_rows(const packed_pairs& p, index_t row) {
  float* const acc = p.acc + row * pair_columns;
  p.starts ? Tiles::template clear<Halves>() : Tiles::template load<Halves>(acc);
  const std::byte* a = p.rows + row * p.row_bytes + 2 * pair_step * p.first;
  const std::byte* b = p.panel + pair_tile_bytes * p.first;
  for (index_t s = p.first; s < p.last; ++s, a += 2 * pair_step, b += pair_tile_bytes) {
    Tiles::template multiply<Halves>(a, p.row_bytes, b, b + p.half_bytes);
  }
  Tiles::template store<Halves>(acc);
}

/// All rows, 32 at a time. Tiles 0 to 3 hold C, 4 and 5 A, 6 and 7 B.
template <class Tiles>
[[gnu::always_inline]] inline void add_pair_tiles(const packed_pairs& p) {
  for (index_t i = 0; i < p.count; i += 32) {
    const auto upper = static_cast<int>(p.count - i < 16 ? p.count - i : 16),
               lower = static_cast<int>(p.count - i < 32 ? p.count - i : 32) - 16;
    if (i == 0 || lower < 16) {
      tile_configuration tiles;
      for (int t = 0; t < 8; ++t) tiles.set(t, 16, 64);
      for (const int t : {0, 1, 4}) tiles.set(t, upper, 64);
      for (const int t : {2, 3, 5}) tiles.set(t, lower > 0 ? lower : 16, 64);
      Tiles::configure(tiles);
    }
    lower > 0 ? add_pair_rows<Tiles, 2>(p, i) : add_pair_rows<Tiles, 1>(p, i);
  }
  Tiles::release();
}

#if defined(ROTOSCALE_TILE_REGISTERS)
#define ROTOSCALE_TARGET __attribute__((target("amx-tile,amx-bf16")))
struct amx_pairs {
  ROTOSCALE_TARGET static inline void configure(const tile_configuration& tiles) {
    asm volatile("" : : "r"(&tiles) : "memory");  // GCC's intrinsics do not say that they read memory
    _tile_loadconfig(&tiles);
  }
  ROTOSCALE_TARGET static inline void release() { _tile_release(); }
  template <int Halves>
  ROTOSCALE_TARGET static inline void clear() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Halves == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  template <int Halves>
  ROTOSCALE_TARGET static inline void load(const float* acc) {
    constexpr index_t stride = 4 * pair_columns;
    _tile_loadd(0, acc, stride);
    _tile_loadd(1, acc + 16, stride);
    if constexpr (Halves == 2) {
      _tile_loadd(2, acc + 16 * pair_columns, stride);
      _tile_loadd(3, acc + 16 * pair_columns + 16, stride);
    }
  }
  template <int Halves>
  ROTOSCALE_TARGET static inline void multiply(const std::byte* a, index_t a_stride, const std::byte* left,
                                               const std::byte* right) {
    _tile_loadd(6, left, 64);
    _tile_loadd(4, a, a_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (Halves == 2) {
      _tile_loadd(5, a + 16 * a_stride, a_stride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  template <int Halves>
  ROTOSCALE_TARGET static inline void store(float* acc) {
    constexpr index_t stride = 4 * pair_columns;
    _tile_stored(0, acc, stride);
    _tile_stored(1, acc + 16, stride);
    if constexpr (Halves == 2) {
      _tile_stored(2, acc + 16 * pair_columns, stride);
      _tile_stored(3, acc + 16 * pair_columns + 16, stride);
    }
  }
};
__attribute__((target("amx-tile,amx-bf16"), flatten)) inline void add_pairs_amx(const packed_pairs& p) {
  add_pair_tiles<amx_pairs>(p);
}
#undef ROTOSCALE_TARGET
#else
inline void add_pairs_amx(const packed_pairs&) {}
#endif

/// Packs BF16 operands as pairs of k: 32-bit words.
class pair_packing {
 public:
  static constexpr index_t columns = pair_columns;

  pair_packing(const gemm_operand& a, const gemm_operand& b, const gemm_plan& plan)
      : a_(a), b_(b), depth_(plan.positions()) {}

  index_t depth() const { return depth_; }
  /// A line more than k needs, so that rows do not share sets of the cache.
  index_t row_bytes() const { return 2 * depth_ + 64; }
  index_t panel_bytes() const { return 2 * depth_ * columns; }
  static std::size_t pack_bytes() { return 0; }

  operand_range pack_row(index_t r, std::byte* to) const {
    if (a_.k != 0) __builtin_memcpy(to, a_.codes + r * a_.code_stride, static_cast<std::size_t>(2 * a_.k));
    std::fill(to + 2 * a_.k, to + row_bytes(), std::byte{0});
    lanes_u32 nan{};
    for (index_t i = 0; i < 2 * depth_; i += register_bytes) nan |= nan_of(load_lanes<lanes_u32>(to + i));
    return range_of(nan);
  }
  void pack_transposed_rows(index_t first, index_t last, std::byte* to, operand_range* ranges) const {
    for (index_t r = first; r < last; r += lane_count) {
      const index_t count = std::min<index_t>(lane_count, last - r);
      lanes_u32 nan{};  // a row in each lane
      for (index_t w = 0; w < depth_ / 2; w += lane_count) {
        lanes_u32 t[lane_count];
        for (index_t i = 0; i < lane_count; ++i) {
          t[i] = pair_strip(a_, w + i, r, count);
          nan |= nan_of(t[i]);
        }
        transpose_lanes(t);
        for (index_t i = 0; i < count; ++i) store_lanes(to + (r - first + i) * row_bytes() + 4 * w, t[i]);
      }
      for (index_t i = 0; i < count; ++i) ranges[r - first + i] = {.special = nan[i] != 0};
    }
  }
  operand_range pack_panel(index_t first, index_t valid, std::byte* to) const {
    lanes_u32 nan{};
    for (index_t j = 0; j < columns; j += 16) {
      std::byte* const half = to + j / 16 * panel_bytes() / 2;
      for (index_t i = 0; i < 16; i += lane_count) {
        nan |= pack_columns(first + j + i, std::clamp<index_t>(valid - j - i, 0, lane_count), half + 4 * i);
      }
    }
    return range_of(nan);
  }

 private:
  /// Words of pair `pair` of k for `count` rows of a transposed operand; zeros beyond them and beyond k.
  static lanes_u32 pair_strip(const gemm_operand& x, index_t pair, index_t first, index_t count) {
    std::uint16_t low[lane_count] = {}, high[lane_count] = {};
    const auto read = [&](index_t k, std::uint16_t* to) {
      if (k >= x.k) return;
      const std::uint8_t* const from = x.codes + k * x.code_stride + 2 * first;
      if (count == lane_count) {
        __builtin_memcpy(to, from, 2 * lane_count);
      } else {
        __builtin_memcpy(to, from, static_cast<std::size_t>(2 * count));
      }
    };
    read(2 * pair, low);
    read(2 * pair + 1, high);
    lanes_u32 words{};
    for (int l = 0; l < lane_count; ++l) words[l] = low[l] | std::uint32_t{high[l]} << 16;
    return words;
  }
  /// One register of columns of a panel; its words are 64 bytes apart along k. Returns words with NaN.
  lanes_u32 pack_columns(index_t first, index_t valid, std::byte* to) const {
    const index_t words = depth_ / 2;
    lanes_u32 nan{};
    if (b_.transposed) {
      for (index_t w = 0; w < words; ++w) {
        const lanes_u32 strip = pair_strip(b_, w, first, valid);
        nan |= nan_of(strip);
        store_lanes(to + 64 * w, strip);
      }
      return nan;
    }
    for (index_t w = 0; w < words; w += lane_count) {
      lanes_u32 t[lane_count] = {};
      const auto bytes = static_cast<std::size_t>(std::clamp<index_t>(2 * b_.k - 4 * w, 0, register_bytes));
      for (index_t j = 0; j < valid; ++j) {
        const std::uint8_t* const from = b_.codes + (first + j) * b_.code_stride + 4 * w;
        if (bytes == register_bytes) {
          t[j] = load_lanes<lanes_u32>(from);
        } else {
          __builtin_memcpy(&t[j], from, bytes);
        }
        nan |= nan_of(t[j]);
      }
      transpose_lanes(t);
      for (index_t i = 0; i < lane_count; ++i) store_lanes(to + 64 * (w + i), t[i]);
    }
    return nan;
  }
  /// All ones in words with a NaN.
  static lanes_u32 nan_of(const lanes_u32& pairs) {
    return __builtin_bit_cast(lanes_u32, (pairs << 16 & fp32_magnitude_mask) > fp32_infinity_bits) |
           __builtin_bit_cast(lanes_u32, (pairs & 0x7FFF0000u) > fp32_infinity_bits);
  }
  static operand_range range_of(const lanes_u32& nan) {
    operand_range range;
    range.special = any_bit(nan);
    return range;
  }

  const gemm_operand &a_, &b_;
  const index_t depth_;
};

/// flushing_chains on AMX. NaN operands go through the definition.
class tile_chains : public pair_packing {
 public:
  static constexpr index_t slice(const mma_model&) { return 1024; }

  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    return usable_tiles().bf16 && flushing_chains::applies(a, b, o);
  }
  tile_chains(const gemm_operand& a, const gemm_operand& b, const gemm_options&, const gemm_plan& plan,
              void (*add)(const packed_pairs&) = &add_pairs_amx)
      : pair_packing(a, b, plan), add_(add) {}

  static bool admits(const operand_range& a, const operand_range& b) { return flushing_chains::admits(a, b); }
  static bool admits_start(const operand_range& a, const operand_range& b, float c) {
    return flushing_chains::admits_start(a, b, c);
  }

  void run(const gemm_span& span, index_t, index_t, const operand_range*, const std::byte* rows, index_t count,
           const operand_range&, const std::byte* panel, float* acc) const {
    add_({rows, count, row_bytes(), panel, panel_bytes() / 2, span.first, span.last, acc, false});
  }
  static constexpr bool takes_joined_rows = true;
  void run_joined(const gemm_span& span, const operand_range*, const operand_range&, const std::byte* rows,
                  index_t count, const operand_range&, const std::byte* panel, float* acc) const {
    add_({rows, count, row_bytes(), panel, panel_bytes() / 2, span.first, span.last, acc, true});
  }

 private:
  void (*add_)(const packed_pairs&);
};

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
