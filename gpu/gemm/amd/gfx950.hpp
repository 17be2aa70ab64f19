// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The MXFP4 and MXFP8 GEMM of gfx950 on its scaled matrix instruction.
// Operands are in AITER's layouts: codes shuffled in tiles of 16 × 16 bytes, or row-major; scales of both shuffled. A
// code tile is 16 rows × 64 bytes, 1024 bytes in which lane l finds its 16 bytes at 16 l. A lane's fragment comes from
// one code tile of FP4 (128 k) or from two of FP8.
// 1. A's code tiles are copied to LDS unchanged, for all waves, two steps ahead.
// 2. B's codes go from memory to the registers of the wave with these columns, as do the scales.
// 3. Scaled MFMA over row tiles and column tiles.
// 4. Store through LDS.
// Compiled with clang and tested on an emulator; not timed on a device.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/gemm/amd/common.hpp"
#include "gpu/gemm/amd/gfx950_tile.hpp"

namespace rotoscale::gpu::gfx950 {

using amd::float4;
using amd::int4;

struct operand {
  const std::uint8_t* codes;
  const std::uint32_t* scales;
  std::int64_t row_stride;  ///< bytes between rows; shuffled: a sixteenth of the bytes between groups of 16 rows
  int column_stride;        ///< step from 64 bytes of a row to the next 64, in units of 64 bytes; shuffled: 16
  int rows;
};
struct arguments {
  operand a, b;
  int k, part_k;  ///< k in total, and of a part
  bool fours;     ///< of store_columns
  gemm_arguments p;
};

/// `row`, or 0 if an operand has no such row: the output of such a row is not stored.
__device__ inline int existing_row(const operand& m, int row) { return row < m.rows ? row : 0; }

/// A's codes: a wave's share of the copies to LDS, and its fragments.
template <class Shape>
class a_codes {
 public:
  using buffers = std::uint8_t[2][Shape::lds_bytes / 2];  ///< one step each: [half of k][part][row tile]
  struct fragments {                                      ///< fragments of a turn
    amd::scaled_fragment<Shape::element_a> tile[Shape::turn_tiles];
  };

  /// The block's rows begin at `first_row`, the wave's at `wave_row` of these.
  __device__ a_codes(const operand& a, int first_row, int wave_row, int wave, int lane, buffers& lds)
      : lds_(lds),
        codes_(a.codes + first_row * a.row_stride),
        step_bytes_(128 * Shape::parts_a * a.column_stride),
        wave_(wave) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < copies; ++i) {
      const int code_tile = code_tile_of(i), column = code_tile / Shape::block_row_tiles;
      int row = code_tile % Shape::block_row_tiles * 16;
      if (first_row + row >= a.rows) row = 0;  // its outputs are not stored
      from_[i] = static_cast<std::uint32_t>((row * a.row_stride + column * a.column_stride * 64) / 16);
      const int last = a.rows - 1 - (first_row + row), mine = lane % 16 < last ? lane % 16 : last;
      lane_offset_[i % offsets] =
          a.column_stride == 16 ? static_cast<std::uint32_t>(lane * 16)
                                : static_cast<std::uint32_t>(mine * static_cast<int>(a.row_stride) + lane / 16 * 16);
    }
    read_offset_ = wave_row / 16 * code_tile_bytes + lane * 16;
  }
  /// Starts the copy of step `step`, counted from k = 0.
  __device__ void copy(int step, int buffer) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < copies; ++i) {
      const std::uint64_t offset = std::uint64_t{from_[i]} * 16 + static_cast<std::uint32_t>(step * step_bytes_);
      const std::uint8_t* const from = amd::keep_in_scalar_registers(codes_ + offset);
      amd::keep_in_vector_registers(lane_offset_[i % offsets]);
      amd::load_to_lds(from + lane_offset_[i % offsets], lds_[buffer] + code_tile_of(i) * code_tile_bytes);
    }
  }
  __device__ fragments read(int buffer, int turn) const {
    fragments x;
    const int half = turn / Shape::half_turns, row_tile = turn % Shape::half_turns * Shape::turn_tiles;
    ROTOSCALE_UNROLL
    for (int r = 0; r < Shape::turn_tiles; ++r) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < Shape::parts_a; ++i) {
        const int code_tile = (half * Shape::parts_a + i) * Shape::block_row_tiles + row_tile + r;
        x.tile[r].part[i] = *reinterpret_cast<const int4*>(lds_[buffer] + read_offset_ + code_tile * code_tile_bytes);
      }
    }
    return x;
  }

 private:
  static constexpr int copies = (Shape::step_code_tiles + Shape::waves - 1) / Shape::waves;
  /// Number of distinct lane offsets. Other copies read the same rows, and reuse these offsets.
  static constexpr int offsets =
      Shape::block_row_tiles % Shape::waves == 0 ? Shape::block_row_tiles / Shape::waves : copies;

  /// All waves issue equally many copies; some are duplicates of another wave's.
  __device__ int code_tile_of(int copy) const { return (copy * Shape::waves + wave_) % Shape::step_code_tiles; }

  buffers& lds_;
  const std::uint8_t* codes_;  ///< codes of the block's rows
  int step_bytes_, wave_, read_offset_;
  std::uint32_t from_[copies];  ///< starts of copies, in units of 16 bytes
  std::uint32_t lane_offset_[offsets];
};

/// B's codes of a step in a wave's registers.
template <class Shape>
class b_codes {
 public:
  amd::scaled_fragment<Shape::element_b> tile[2][Shape::column_tiles];  ///< [half of k][column tile]

  __device__ b_codes(const operand& b, int first_column, int lane)
      : codes_(b.codes),
        column_bytes_(b.column_stride * 64),
        lane_offset_(b.column_stride == 16
                         ? static_cast<std::uint32_t>(lane * 16)
                         : static_cast<std::uint32_t>(lane % 16 * static_cast<int>(b.row_stride) + lane / 16 * 16)) {
    ROTOSCALE_UNROLL
    for (int j = 0; j < Shape::column_tiles; ++j) {
      first_[j] = static_cast<std::uint32_t>(existing_row(b, first_column + 16 * j) * b.row_stride / 16);
    }
  }
  /// Starts the load of column tile j for a half of step `step`, counted from k = 0.
  __device__ void load(int step, int half, int j) {
    amd::keep_in_vector_registers(lane_offset_);
    ROTOSCALE_UNROLL
    for (int i = 0; i < Shape::parts_b; ++i) {
      const int column = (2 * step + half) * Shape::parts_b + i;
      const std::uint64_t offset = std::uint64_t{first_[j]} * 16 + static_cast<std::uint32_t>(column * column_bytes_);
      tile[half][j].part[i] = amd::load_counted<amd::any_int4>(codes_ + offset, lane_offset_);
    }
  }

 private:
  const std::uint8_t* codes_;
  int column_bytes_;                          ///< byte distance between 64-byte columns of a row
  std::uint32_t first_[Shape::column_tiles];  ///< starts of column tiles, in units of 16 bytes (check_aiter_operands)
  std::uint32_t lane_offset_;
};

/// A wave's scales of a step and of the next. The scales of 32 rows × 8 blocks are 64 dwords. Byte 2 h + r is for half
/// h and row tile r.
template <class Shape>
class block_scales {
 public:
  std::uint32_t a[Shape::row_pairs], b[Shape::column_pairs];

  __device__ block_scales(const arguments& g, int first_row, int first_column, int lane)
      : scales_a_(g.a.scales), scales_b_(g.b.scales), lane_offset_(static_cast<std::uint32_t>(lane * 4)) {
    const auto first = [&](const operand& m, int row) { return existing_row(m, row) / 32 * (g.k / step_k); };
    ROTOSCALE_UNROLL
    for (int i = 0; i < Shape::row_pairs; ++i) first_a_[i] = first(g.a, first_row + 32 * i);
    ROTOSCALE_UNROLL
    for (int j = 0; j < Shape::column_pairs; ++j) first_b_[j] = first(g.b, first_column / 32 * 32 + 32 * j);
    pair_selector_ = first_column % 32 == 0 ? 0x03020100u : 0x06030401u;
  }
  /// Starts the load of the scales of step `step`. They are available after `advance`.
  __device__ void load(int step) {
    const auto load = [&](const std::uint32_t* scales, int tile) {
      amd::keep_in_vector_registers(lane_offset_);
      const auto* const from = reinterpret_cast<const std::uint8_t*>(scales + std::int64_t{tile} * 64);
      return amd::load_counted<any_word>(from, lane_offset_);
    };
    ROTOSCALE_UNROLL
    for (int i = 0; i < Shape::row_pairs; ++i) next_a_[i] = load(scales_a_, first_a_[i] + step);
    ROTOSCALE_UNROLL
    for (int j = 0; j < Shape::column_pairs; ++j) next_b_[j] = load(scales_b_, first_b_[j] + step);
  }
  __device__ void advance() {
    const auto take = [](std::uint32_t& now, std::uint32_t next) {
      now = next;
      amd::keep_in_vector_registers(now);
    };
    ROTOSCALE_UNROLL
    for (int i = 0; i < Shape::row_pairs; ++i) take(a[i], next_a_[i]);
    ROTOSCALE_UNROLL
    for (int j = 0; j < Shape::column_pairs; ++j) {
      const std::uint32_t above = next_b_[j + 1 < Shape::column_pairs ? j + 1 : j];
      take(b[j], Shape::column_tiles % 2 == 0 ? next_b_[j] : amd::permute(next_b_[j], above, pair_selector_));
    }
  }

 private:
  const std::uint32_t *scales_a_, *scales_b_;
  int first_a_[Shape::row_pairs], first_b_[Shape::column_pairs];  ///< index of 256 bytes of scales, per 32 rows
  std::uint32_t next_a_[Shape::row_pairs], next_b_[Shape::column_pairs], lane_offset_;
  std::uint32_t pair_selector_;  ///< with an odd number of column tiles a wave may begin in the middle of 32 columns
};

/// A wave's outputs.
template <class Shape>
class wave_sums {
 public:
  /// Adds the products of row tile i and column tile j over half a step: columns (rows of B) times rows (rows of A). So
  /// lane l gets row l % 16 of C and columns 4 (l / 16) .. + 3.
  __device__ void multiply(const amd::scaled_fragment<Shape::element_a>& x, const b_codes<Shape>& b,
                           const block_scales<Shape>& s, int half, int i, int j) {
    const int scale_a = static_cast<int>(s.a[i / 2]), scale_b = static_cast<int>(s.b[j / 2]);
    const auto with = [&]<int Half, int Row, int Column>() {
      if (half != Half || i % 2 != Row || j % 2 != Column) return;
      sum_[i][j] =
          amd::multiply_scaled<2 * Half + Column, 2 * Half + Row>(b.tile[Half][j], x, sum_[i][j], scale_b, scale_a);
    };
    with.template operator()<0, 0, 0>();
    with.template operator()<0, 0, 1>();
    with.template operator()<0, 1, 0>();
    with.template operator()<0, 1, 1>();
    with.template operator()<1, 0, 0>();
    with.template operator()<1, 0, 1>();
    with.template operator()<1, 1, 0>();
    with.template operator()<1, 1, 1>();
  }
  /// Stores the sums through the wave's part of LDS, which is no longer in use, as many tiles at a time as fit. This
  /// way the store code is instantiated once, not per tile.
  __device__ void store(const arguments& g, std::uint8_t* lds, int first_row, int first_column, int part,
                        int lane) const {
    constexpr int tiles = Shape::row_tiles * Shape::column_tiles;
    constexpr int places = std::min(tiles, Shape::lds_bytes / Shape::waves / Shape::sum_tile_bytes);
    amd::any_float4* const mine = reinterpret_cast<amd::any_float4*>(lds) + lane;
    ROTOSCALE_UNROLL
    for (int first = 0; first < tiles; first += places) {
      ROTOSCALE_UNROLL
      for (int t = 0; t < places; ++t) {
        const int tile = first + t < tiles ? first + t : first;
        mine[64 * t] = sum_[tile / Shape::column_tiles][tile % Shape::column_tiles];
      }
      ROTOSCALE_KEEP_LOOP
      for (int t = 0; t < places && first + t < tiles; ++t) {
        const int row = first_row + (first + t) / Shape::column_tiles * 16 + lane % 16,
                  column = first_column + (first + t) % Shape::column_tiles * 16 + lane / 16 * 4;
        amd::store_columns(g.p, g.fours, mine[64 * t], row, column, part);
      }
    }
  }

 private:
  float4 sum_[Shape::row_tiles][Shape::column_tiles] = {};
};

/// Multiplies the steps of a block's part of K.
template <class Shape>
class wave_loop {
 public:
  __device__ wave_loop(a_codes<Shape>& a, b_codes<Shape>& b, block_scales<Shape>& scales, wave_sums<Shape>& sums)
      : a_(a), b_(b), scales_(scales), sums_(sums) {}

  __device__ void run(int first, int end) {
    a_.copy(first, first % 2);
    scales_.load(first);
    ROTOSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      ROTOSCALE_UNROLL
      for (int j = 0; j < Shape::column_tiles; ++j) b_.load(first, half, j);
    }
    amd::loads_done<>();
    block_barrier();
    scales_.advance();
    if (first + 1 < end) a_.copy(first + 1, (first + 1) % 2);
    ROTOSCALE_UNROLL
    for (int t = 0; t < Shape::turns_ahead; ++t) front_[t] = a_.read(first % 2, t);

    int step = first;
    ROTOSCALE_KEEP_LOOP
    for (; step + 2 < end; ++step) multiply_step<2>(step);
    if (step + 1 < end) multiply_step<1>(step++);
    multiply_step<0>(step);
  }

 private:
  /// Multiplies one step. Following: number of steps after this one, at most 2. Order of loads:
  /// 1. Scales of the next step come first, so they have a whole step to arrive.
  /// 2. Fragments of A are read turns_ahead before their products. The read comes after the products of a turn's first
  ///    column tile, which wait for older reads only.
  /// 3. Once all waves have read this step's last fragments, A's codes of the step after next are copied over them. At
  ///    that barrier each wave also waits for its copies of the next step.
  /// 4. B's codes of the next step are loaded after the last product that uses this step's, so they have half a step.
  template <int Following>
  __device__ void multiply_step(int step) {
    constexpr int turns = Shape::turns, ahead = Shape::turns_ahead;
    const int buffer = step % 2;
    typename a_codes<Shape>::fragments x[turns + ahead];
    ROTOSCALE_UNROLL
    for (int t = 0; t < ahead; ++t) x[t] = front_[t];
    if constexpr (Following > 0) scales_.load(step + 1);
    ROTOSCALE_UNROLL
    for (int turn = 0; turn < turns; ++turn) {
      if (turn + ahead == turns && Following > 0) {
        amd::loads_done<Shape::younger_loads>();
        block_barrier();
        if (Following > 1) a_.copy(step + 2, buffer);
        amd::schedule_barrier();
      }
      const int half = turn / Shape::half_turns, first = turn % Shape::half_turns * Shape::turn_tiles;
      ROTOSCALE_UNROLL
      for (int j = 0; j < Shape::column_tiles; ++j) {
        ROTOSCALE_UNROLL
        for (int r = 0; r < Shape::turn_tiles; ++r) sums_.multiply(x[turn].tile[r], b_, scales_, half, first + r, j);
        if (j == 0) {
          amd::schedule_barrier();
          if (turn + ahead < turns) x[turn + ahead] = a_.read(buffer, turn + ahead);
          if (turn + ahead >= turns && Following > 0) x[turn + ahead] = a_.read(1 - buffer, turn + ahead - turns);
          amd::schedule_barrier();
        }
        if (first + Shape::turn_tiles == Shape::row_tiles && Following > 0) b_.load(step + 1, half, j);
      }
      amd::schedule_barrier();
    }
    ROTOSCALE_UNROLL
    for (int t = 0; t < ahead; ++t) front_[t] = x[turns + t];
    if constexpr (Following > 0) scales_.advance();
  }

  a_codes<Shape>& a_;
  b_codes<Shape>& b_;
  block_scales<Shape>& scales_;
  wave_sums<Shape>& sums_;
  typename a_codes<Shape>::fragments front_[Shape::turns_ahead];  ///< fragments of the next step's first turns
};

template <class Shape>
struct shared_memory {
  alignas(16) typename a_codes<Shape>::buffers codes;
};

/// Computes the outputs of a block.
template <class Shape>
__device__ inline void compute_tile(const arguments& g) {
  const int thread = static_cast<int>(thread_index().x), lane = thread % 64, wave = amd::uniform(thread / 64);
  const int part = static_cast<int>(block_index().z);
  const int block_row = static_cast<int>(block_index().y) * Shape::rows;
  const int wave_row = wave / Shape::waves_across * Shape::wave_rows;
  const int column =
      static_cast<int>(block_index().x) * Shape::columns + wave % Shape::waves_across * Shape::wave_columns;

  auto& codes = block_shared<shared_memory<Shape>>().codes;
  a_codes<Shape> a(g.a, block_row, wave_row, wave, lane, codes);
  b_codes<Shape> b(g.b, column, lane);
  block_scales<Shape> scales(g, block_row + wave_row, column, lane);
  wave_sums<Shape> sums;
  const int first_k = part * g.part_k, last_k = first_k + g.part_k < g.k ? first_k + g.part_k : g.k;
  wave_loop<Shape>(a, b, scales, sums).run(first_k / step_k, last_k / step_k);
  block_barrier();  // LDS is reused for the sums
  constexpr int wave_bytes = Shape::lds_bytes / Shape::waves / Shape::sum_tile_bytes * Shape::sum_tile_bytes;
  sums.store(g, &codes[0][0] + wave * wave_bytes, block_row + wave_row, column, part, lane);
}

/// The grid is (columns of tiles, rows of tiles, parts of K). Elements A and B: FP4 both, or FP8 of either kind.
template <int Rows, int Columns, gemm_element A, gemm_element B>
[[maybe_unused]] static __global__ void ROTOSCALE_AMD_BLOCK((tile<Rows, Columns>::threads),
                                                            (shape<tile<Rows, Columns>, A, B>::waves_a_simd),
                                                            (shape<tile<Rows, Columns>, A, B>::waves_a_simd))
    gemm_kernel(const arguments g) {
  if constexpr (amd::is_gfx950) compute_tile<shape<tile<Rows, Columns>, A, B>>(g);
}

}  // namespace rotoscale::gpu::gfx950
