// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// fp32_blockwise on the integer units of x86 processors, chosen at run time: AMX (TDPBSSD), AVX512-VNNI or AVX-VNNI
// (VPDPBUSD). The functions carry their instruction sets, so that no compiler flag is needed. Processors without such a
// unit use exact_blocks (gemm_blocks.hpp).
//
// add_tiles and add_dots are the algorithms; a unit is a struct with their instructions. Tests run both algorithms with
// emulated instructions. The algorithms have no target, so they leave every operation on registers to the unit: g++
// splits wide vectors before it inlines.
#pragma once

#include "rotoscale/detail/gemm_blocks.hpp"
#include "rotoscale/detail/tile_registers.hpp"

// CUDA's compiler does not know GCC's pragma.
#if defined(__CUDACC__)
#define ROTOSCALE_UNROLLED(n)
#else
#define ROTOSCALE_PRAGMA(text) _Pragma(#text)
#define ROTOSCALE_UNROLLED(n) ROTOSCALE_PRAGMA(GCC unroll n)
#endif

namespace rotoscale::detail {
inline namespace ROTOSCALE_ISA {

inline constexpr index_t unit_columns = 32;  ///< of a panel
inline constexpr int unit_block = 32;        ///< products of a block
alignas(64) inline constexpr float zero_sums[unit_columns] = {};

/// Rows of A and a panel of B, as block_packing<unit_columns> packs them, and the blocks of K to add.
struct packed_blocks {
  const std::byte* rows;
  index_t count, row_bytes;  ///< rows, and bytes between them
  const std::byte* panel;
  index_t runs;         ///< blocks of a row
  index_t first, last;  ///< blocks to add, ascending
  float* acc;           ///< count × unit_columns; += each block's sum by one fused multiply-add

  index_t elements_at;  ///< offset of a row's elements, in bytes
  bool starts;          ///< acc is +0, whatever it holds

  /// unit_columns sums of row i to begin with.
  const float* start_of(index_t i) const { return starts ? zero_sums : acc + i * unit_columns; }
  const std::byte* scales_of_row(index_t i) const { return rows + i * row_bytes; }
  const std::byte* elements_of_row(index_t i) const { return rows + i * row_bytes + elements_at; }
  /// Of a row's blocks [g, end).
  std::int32_t correction(index_t i, index_t g, index_t end) const {
    std::int32_t sum = 0;
    for (; g < end; ++g) {
      std::int32_t block;
      __builtin_memcpy(&block, rows + i * row_bytes + 4 * (runs + g), 4);
      sum += block;
    }
    return sum;
  }
  const float* scales_of_panel() const { return reinterpret_cast<const float*>(panel); }
  const std::byte* quads_of_panel() const { return panel + 4 * runs * unit_columns; }
};

/// Tiles 0 and 1 hold C, 4 and 5 A, 6 and 7 B. C and A have `height` rows.
inline tile_configuration block_tiles(int height) {
  tile_configuration tiles;
  for (int t = 0; t < 2; ++t) tiles.set(t, height, 64);
  for (int t = 4; t < 6; ++t) tiles.set(t, height, unit_block);
  for (int t = 6; t < 8; ++t) tiles.set(t, unit_block / 4, 64);
  return tiles;
}

/// Adds blocks to one tile of C: `height` <= 16 rows from `row` on and 16 columns from `column` on. Tile products run
/// one block ahead of the additions. More buffers of sums would cover a page, and their stores would delay the loads of
/// operands at equal places of other pages.
template <class Tiles>
[[gnu::always_inline]] inline void add_tile(const packed_blocks& p, index_t row, int height, int column) {
  constexpr int depth = 2;  // blocks in flight
  constexpr index_t b_block = unit_block * unit_columns;
  alignas(64) std::int32_t sums[depth][256];
  const std::byte *const a = p.elements_of_row(row) + unit_block * p.first, *const b = p.quads_of_panel() +
                                                                                       b_block * p.first + 4 * column;
  const std::byte* const a_scales = p.scales_of_row(row) + 4 * p.first;
  const float* const b_scales = p.scales_of_panel() + unit_columns * p.first + column;
  float* const acc = p.acc + row * unit_columns + column;
  const index_t count = p.last - p.first;

  typename Tiles::floats sum[16];
  ROTOSCALE_UNROLLED(16)
  for (int i = 0; i < 16; ++i) Tiles::clear(sum[i]);
  ROTOSCALE_UNROLLED(16)
  for (int i = 0; i < 16; ++i) {
    if (i < height) __builtin_memcpy(&sum[i], p.start_of(row + i) + column, 64);
  }
  for (int g = 0; g < depth - 1 && g < count; ++g) {
    Tiles::multiply(g, a + unit_block * g, p.row_bytes, b + b_block * g, 4 * unit_columns, sums[g]);
  }
  for (index_t first = 0; first < count; first += depth) {
    ROTOSCALE_UNROLLED(2)
    for (int u = 0; u < depth; ++u) {
      const index_t g = first + u, next = g + depth - 1;
      if (g >= count) break;
      if (next < count) {
        const int slot = (u + depth - 1) % depth;
        Tiles::multiply(slot, a + unit_block * next, p.row_bytes, b + b_block * next, 4 * unit_columns, sums[slot]);
      }
      typename Tiles::floats b_scale;
      __builtin_memcpy(&b_scale, b_scales + g * unit_columns, 64);
      ROTOSCALE_UNROLLED(16)
      for (int i = 0; i < 16; ++i) {
        if (i >= height) continue;
        float scale;
        __builtin_memcpy(&scale, a_scales + 4 * g + i * p.row_bytes, 4);
        Tiles::add(sum[i], sums[u] + 16 * i, scale, b_scale);
      }
    }
  }
  ROTOSCALE_UNROLLED(16)
  for (int i = 0; i < 16; ++i) {
    if (i < height) __builtin_memcpy(acc + i * unit_columns, &sum[i], 64);
  }
}

/// All rows, in tiles of 16 × 16.
template <class Tiles>
[[gnu::always_inline]] inline void add_tiles(const packed_blocks& p) {
  for (index_t i = 0; i < p.count; i += 16) {
    const int height = static_cast<int>(p.count - i < 16 ? p.count - i : 16);
    if (i == 0 || height != 16) Tiles::configure(block_tiles(height));
    for (int column = 0; column < unit_columns; column += 16) {
      if (height == 16) {
        add_tile<Tiles>(p, i, 16, column);  // sums stay in registers
      } else {
        add_tile<Tiles>(p, i, height, column);
      }
    }
  }
  Tiles::release();
}

/// Tiles 0 to 3 hold C, 4 and 5 A, 6 and 7 B. The first 16 rows have `upper` rows, the next 16 `lower`. 64 k a product.
inline tile_configuration folded_tiles(int upper, int lower) {
  tile_configuration tiles;
  for (int t = 0; t < 8; ++t) tiles.set(t, 16, 64);
  for (const int t : {0, 1, 4}) tiles.set(t, upper, 64);
  for (const int t : {2, 3, 5}) tiles.set(t, lower, 64);
  return tiles;
}

/// Adds folded blocks in pairs (zeros follow the last block of K) to `count` <= 16 * Halves rows from `row` on.
template <class Tiles, int Halves>
[[gnu::always_inline]] inline void add_folded_rows(const packed_blocks& p, index_t row, int count) {
  constexpr index_t b_step = 2 * unit_block * unit_columns;
  alignas(64) std::int32_t sums[16 * Halves * unit_columns];
  const std::byte* a = p.elements_of_row(row) + unit_block * p.first;
  const std::byte* b = p.quads_of_panel() + unit_block * unit_columns * p.first;
  Tiles::template clear_sums<Halves>();
  for (index_t g = p.first; g < p.last; g += 2, a += 2 * unit_block, b += b_step) {
    Tiles::template add_products<Halves>(a, p.row_bytes, b, 4 * unit_columns);
  }
  Tiles::template store_sums<Halves>(sums, 4 * unit_columns);
  for (int column = 0; column < unit_columns; column += 16) {
    typename Tiles::floats b_scale, sum;
    __builtin_memcpy(&b_scale, p.scales_of_panel() + column, 64);
    for (int i = 0; i < count; ++i) {
      float* const acc = p.acc + (row + i) * unit_columns + column;
      float scale;
      __builtin_memcpy(&scale, p.scales_of_row(row + i), 4);
      __builtin_memcpy(&sum, p.start_of(row + i) + column, 64);
      Tiles::add(sum, sums + i * unit_columns + column, scale, b_scale);
      __builtin_memcpy(acc, &sum, 64);
    }
  }
}

/// add_tiles for folded rows and a folded panel, 32 rows at a time.
template <class Tiles>
[[gnu::always_inline]] inline void add_folded_tiles(const packed_blocks& p) {
  for (index_t i = 0; i < p.count; i += 32) {
    const auto count = static_cast<int>(p.count - i < 32 ? p.count - i : 32);
    if (i == 0 || count != 32) Tiles::configure(folded_tiles(count < 16 ? count : 16, count > 16 ? count - 16 : 16));
    count > 16 ? add_folded_rows<Tiles, 2>(p, i, count) : add_folded_rows<Tiles, 1>(p, i, count);
  }
  Tiles::release();
}

/// Adds blocks to Rows rows of C in registers of Dots::lanes columns, two at a time. Folded: all blocks in one sum.
template <class Dots, int Rows, bool Folded>
[[gnu::always_inline]] inline void add_dot_rows(const packed_blocks& p, index_t row, index_t column) {
  using floats = typename Dots::floats;
  using ints = typename Dots::ints;
  constexpr int w = Dots::lanes;
  float* const acc = p.acc + row * unit_columns + column;
  floats sum[Rows][2];
  for (int i = 0; i < Rows; ++i) {
    const float* const from = p.start_of(row + i) + column;
    for (int j = 0; j < 2; ++j) __builtin_memcpy(&sum[i][j], from + j * w, sizeof(floats));
  }
  for (index_t g = p.first, end; g < p.last; g = end) {
    end = Folded ? p.last : g + 1;
    ints sums[Rows][2];
    for (int i = 0; i < Rows; ++i) {
      const std::int32_t correction = p.correction(row + i, g, end);
      for (int j = 0; j < 2; ++j) Dots::broadcast(sums[i][j], correction);
    }
    for (index_t block = g; block < end; ++block) {
      const std::byte* const quads = p.quads_of_panel() + unit_block * unit_columns * block + 4 * column;
      ROTOSCALE_UNROLLED(8)
      for (int q = 0; q < unit_block / 4; ++q) {
        ints b[2];
        __builtin_memcpy(&b[0], quads + 4 * unit_columns * q, sizeof(ints));
        __builtin_memcpy(&b[1], quads + 4 * unit_columns * q + 4 * w, sizeof(ints));
        for (int i = 0; i < Rows; ++i) {
          std::int32_t quad;
          __builtin_memcpy(&quad, p.elements_of_row(row + i) + unit_block * block + 4 * q, 4);
          ints a;
          Dots::broadcast(a, quad);
          Dots::add_products(sums[i][0], b[0], a);
          Dots::add_products(sums[i][1], b[1], a);
        }
      }
    }
    floats scales[2];
    __builtin_memcpy(&scales[0], p.scales_of_panel() + unit_columns * g + column, sizeof(floats));
    __builtin_memcpy(&scales[1], p.scales_of_panel() + unit_columns * g + column + w, sizeof(floats));
    for (int i = 0; i < Rows; ++i) {
      float scale;
      __builtin_memcpy(&scale, p.scales_of_row(row + i) + 4 * g, 4);
      for (int j = 0; j < 2; ++j) Dots::add(sum[i][j], sums[i][j], scale, scales[j]);
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < 2; ++j) __builtin_memcpy(acc + i * unit_columns + j * w, &sum[i][j], sizeof(floats));
  }
}

/// All rows, Dots::rows at a time.
template <class Dots, bool Folded>
[[gnu::always_inline]] inline void add_dots(const packed_blocks& p) {
  for (index_t column = 0; column < unit_columns; column += 2 * Dots::lanes) {
    index_t i = 0;
    for (; i + Dots::rows <= p.count; i += Dots::rows) add_dot_rows<Dots, Dots::rows, Folded>(p, i, column);
    for (; i < p.count; ++i) add_dot_rows<Dots, 1, Folded>(p, i, column);
  }
}

/// A unit: how it wants B's elements, and its functions.
struct block_unit {
  std::int8_t bias;  ///< added to B's elements
  index_t slice;     ///< positions of K that one call takes
  void (*add)(const packed_blocks&);
  void (*add_folded)(const packed_blocks&);  ///< rows and panel are folded, in pairs of blocks
};

#if defined(ROTOSCALE_TILE_REGISTERS)

// `flatten` inlines the instructions, whose functions have the same target.
#define ROTOSCALE_TARGET(sets) __attribute__((target(sets)))
#define ROTOSCALE_UNIT(sets) __attribute__((target(sets), flatten))

#define ROTOSCALE_AMX "amx-tile,amx-int8,avx512f,fma"
struct amx_tiles {
  using floats = float __attribute__((vector_size(64)));

  ROTOSCALE_TARGET(ROTOSCALE_AMX) static inline void configure(const tile_configuration& tiles) {
    asm volatile("" : : "r"(&tiles) : "memory");  // GCC's _tile_loadconfig names 8 of the 64 bytes
    _tile_loadconfig(&tiles);
  }
  ROTOSCALE_TARGET(ROTOSCALE_AMX) static inline void release() { _tile_release(); }
  /// sums [rows × 16] = a [rows × 32] · b [8 quads × 16 columns].
  ROTOSCALE_TARGET(ROTOSCALE_AMX)
  static inline void multiply(int slot, const std::byte* a, index_t a_stride, const std::byte* b, index_t b_stride,
                              std::int32_t* sums) {
#define ROTOSCALE_BLOCK(C, A, B) \
  _tile_zero(C);                 \
  _tile_loadd(A, a, a_stride);   \
  _tile_loadd(B, b, b_stride);   \
  _tile_dpbssd(C, A, B);         \
  _tile_stored(C, sums, 64);     \
  break
    switch (slot) {
      case 0: ROTOSCALE_BLOCK(0, 4, 6);
      default: ROTOSCALE_BLOCK(1, 5, 7);
    }
#undef ROTOSCALE_BLOCK
  }
  template <int Halves>
  ROTOSCALE_TARGET(ROTOSCALE_AMX)
  static inline void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Halves == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  /// sums += a [rows × 64] · b [16 quads × 32 columns].
  template <int Halves>
  ROTOSCALE_TARGET(ROTOSCALE_AMX)
  static inline void add_products(const std::byte* a, index_t a_stride, const std::byte* b, index_t b_stride) {
    _tile_loadd(6, b, b_stride);
    _tile_loadd(4, a, a_stride);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + 64, b_stride);
    _tile_dpbssd(1, 4, 7);
    if constexpr (Halves == 2) {
      _tile_loadd(5, a + 16 * a_stride, a_stride);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  }
  template <int Halves>
  ROTOSCALE_TARGET(ROTOSCALE_AMX)
  static inline void store_sums(std::int32_t* sums, index_t stride) {
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + 16, stride);
    if constexpr (Halves == 2) {
      _tile_stored(2, sums + 16 * unit_columns, stride);
      _tile_stored(3, sums + 16 * unit_columns + 16, stride);
    }
  }
  ROTOSCALE_TARGET(ROTOSCALE_AMX) static inline void clear(floats& sum) { sum = floats{}; }
  ROTOSCALE_TARGET(ROTOSCALE_AMX)
  static inline void add(floats& sum, const std::int32_t* block, float scale, const floats& b_scale) {
    const __m512 x = _mm512_maskz_cvtepi32_ps(0xFFFF, _mm512_load_si512(block));
    sum = (floats)_mm512_fmadd_ps(x, (__m512)(b_scale * scale), (__m512)sum);
  }
};
ROTOSCALE_UNIT(ROTOSCALE_AMX) inline void add_blocks_amx(const packed_blocks& p) { add_tiles<amx_tiles>(p); }
ROTOSCALE_UNIT(ROTOSCALE_AMX) inline void add_folded_amx(const packed_blocks& p) { add_folded_tiles<amx_tiles>(p); }
#undef ROTOSCALE_AMX

#define ROTOSCALE_VNNI "avx512f,avx512vnni,fma"
struct avx512_dots {
  static constexpr int lanes = 16, rows = 6;
  using floats = float __attribute__((vector_size(64)));
  using ints = std::int32_t __attribute__((vector_size(64)));

  ROTOSCALE_TARGET(ROTOSCALE_VNNI) static inline void broadcast(ints& to, std::int32_t x) { to = ints{} + x; }
  ROTOSCALE_TARGET(ROTOSCALE_VNNI)
  static inline void add_products(ints& s, const ints& unsigned_bytes, const ints& signed_bytes) {
    s = (ints)_mm512_dpbusd_epi32((__m512i)s, (__m512i)unsigned_bytes, (__m512i)signed_bytes);
  }
  ROTOSCALE_TARGET(ROTOSCALE_VNNI)
  static inline void add(floats& sum, const ints& block, float scale, const floats& b_scale) {
    const __m512 x = _mm512_maskz_cvtepi32_ps(0xFFFF, (__m512i)block);
    sum = (floats)_mm512_fmadd_ps(x, (__m512)(b_scale * scale), (__m512)sum);
  }
};
ROTOSCALE_UNIT(ROTOSCALE_VNNI)
inline void add_blocks_avx512(const packed_blocks& p) { add_dots<avx512_dots, false>(p); }
ROTOSCALE_UNIT(ROTOSCALE_VNNI)
inline void add_folded_avx512(const packed_blocks& p) { add_dots<avx512_dots, true>(p); }
#undef ROTOSCALE_VNNI

#define ROTOSCALE_VNNI "avx2,fma,avxvnni"
struct avx_dots {
  static constexpr int lanes = 8, rows = 2;
  using floats = float __attribute__((vector_size(32)));
  using ints = std::int32_t __attribute__((vector_size(32)));

  ROTOSCALE_TARGET(ROTOSCALE_VNNI) static inline void broadcast(ints& to, std::int32_t x) { to = ints{} + x; }
  ROTOSCALE_TARGET(ROTOSCALE_VNNI)
  static inline void add_products(ints& s, const ints& unsigned_bytes, const ints& signed_bytes) {
    s = (ints)_mm256_dpbusd_avx_epi32((__m256i)s, (__m256i)unsigned_bytes, (__m256i)signed_bytes);
  }
  ROTOSCALE_TARGET(ROTOSCALE_VNNI)
  static inline void add(floats& sum, const ints& block, float scale, const floats& b_scale) {
    sum = (floats)_mm256_fmadd_ps(_mm256_cvtepi32_ps((__m256i)block), (__m256)(b_scale * scale), (__m256)sum);
  }
};
ROTOSCALE_UNIT(ROTOSCALE_VNNI) inline void add_blocks_avx(const packed_blocks& p) { add_dots<avx_dots, false>(p); }
ROTOSCALE_UNIT(ROTOSCALE_VNNI) inline void add_folded_avx(const packed_blocks& p) { add_dots<avx_dots, true>(p); }
#undef ROTOSCALE_VNNI
#undef ROTOSCALE_UNIT
#undef ROTOSCALE_TARGET

/// Units of this processor that the system permits, the fastest first; null after the last.
struct block_units {
  static constexpr block_unit amx{0, 2048, &add_blocks_amx, &add_folded_amx},
      avx512{folded_bias, 512, &add_blocks_avx512, &add_folded_avx512},
      avx{folded_bias, 512, &add_blocks_avx, &add_folded_avx};
  const block_unit* found[4] = {};

  block_units() {
    unsigned features = 0, b = 0, c = 0, d = 0;
    constexpr unsigned avx_vnni = 1u << 4;
    if (__get_cpuid_count(7, 1, &features, &b, &c, &d) == 0) return;
    const bool avx512f = __builtin_cpu_supports("avx512f") != 0;
    const block_unit** next = found;
    if (usable_tiles().int8 && avx512f) *next++ = &amx;
    if (avx512f && __builtin_cpu_supports("avx512vnni") != 0) *next++ = &avx512;
    if ((features & avx_vnni) != 0 && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
      *next++ = &avx;
    }
  }
};

#else

struct block_units {
  const block_unit* found[1] = {};
};

#endif

/// Asked once a process.
inline const block_units& processor_units() {
  static const block_units units;
  return units;
}

/// exact_blocks on the processor's unit, for blocks of 32.
///
/// A row of A and a panel of B are folded where no addition of the chain rounds: all K is one sum in int32. Let s be
/// the product of the least scales, divided by 4, and f the binades of scales (operand_range::folded) of both. Every
/// block's sum is then a multiple of s, and every sum of the chain, from +0, is s * n with
/// |n| <= K * 12 * 12 * 2^f <= 2^24. That is an FP32 number if s >= 2^-149 (see admits) and s * 2^24 does not overflow.
class unit_blocks : public exact_block_operands<unit_columns> {
 public:
  static bool applies(const gemm_operand& a, const gemm_operand& b, const gemm_options& o) {
    return o.model.group == unit_block && exact_block_operands::applies(a, b, o) &&
           processor_units().found[0] != nullptr;
  }
  static index_t slice(const mma_model&) { return processor_units().found[0]->slice; }

  unit_blocks(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const gemm_plan& plan)
      : unit_blocks(a, b, o, plan, *processor_units().found[0]) {}
  unit_blocks(const gemm_operand& a, const gemm_operand& b, const gemm_options& o, const gemm_plan& plan,
              const block_unit& unit)
      : exact_block_operands(a, b, plan, unit.bias, !o.start_from_c),
        unit_(unit),
        largest_sum_(std::uint64_t{144} * static_cast<std::uint64_t>(plan.positions())) {}

  void run(const gemm_span& span, index_t, index_t, const operand_range* ranges, const std::byte* rows, index_t count,
           const operand_range& panel_range, const std::byte* panel, float* acc) const {
    for (index_t i = 0, last; i < count; i = last) {
      const bool folded = folds(span, ranges[i], panel_range);
      for (last = i + 1; last < count && folds(span, ranges[last], panel_range) == folded;) ++last;
      add(span, rows + i * row_bytes(), last - i, panel, acc + i * columns, folded, false);
    }
  }
  /// The same from +0, for rows of which most have equal ranges. `joined`: of all rows.
  static constexpr bool takes_joined_rows = true;
  void run_joined(const gemm_span& span, const operand_range* ranges, const operand_range& joined,
                  const std::byte* rows, index_t count, const operand_range& panel_range, const std::byte* panel,
                  float* acc) const {
    if (folds(span, joined, panel_range)) return add(span, rows, count, panel, acc, true, true);
    __builtin_memset(acc, 0, static_cast<std::size_t>(count * columns) * sizeof(float));
    run(span, 0, 0, ranges, rows, count, panel_range, panel, acc);
  }

 private:
  void add(const gemm_span& span, const std::byte* rows, index_t count, const std::byte* panel, float* acc, bool folded,
           bool starts) const {
    (folded ? unit_.add_folded : unit_.add)({rows, count, row_bytes(), panel, pack_.runs(), span.first, span.last, acc,
                                             pack_.elements_at<float>(), starts});
  }
  /// Can all blocks be one sum? They are taken in pairs.
  bool folds(const gemm_span& span, const operand_range& row, const operand_range& panel) const {
    const bool pairs = (span.last - span.first) % 2 == 0 || (span.first % 2 == 0 && span.last == pack_.runs());
    return pairs && folds_exactly(row, panel);
  }
  bool folds_exactly(const operand_range& row, const operand_range& panel) const {
    if (row.folded < 0 || panel.folded < 0) return false;
    return row.empty() || panel.empty() ||
           (largest_sum_ << (row.folded + panel.folded) <= 1u << 24 && row.most + panel.most - 2 + 24 <= 127);
  }

  const block_unit& unit_;
  std::uint64_t largest_sum_;  ///< of a row whose scales are equal
};

#undef ROTOSCALE_UNROLLED
#undef ROTOSCALE_PRAGMA

}  // namespace ROTOSCALE_ISA
}  // namespace rotoscale::detail
