// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Epilogue of the sm_90 GEMM kernels: unfold a tile's sums in registers, scale them, store them in groups of 32
// columns.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "gpu/dialect/packed.hpp"
#include "gpu/dialect/sm90_ptx.hpp"
#include "gpu/gemm/arguments.hpp"
#include "gpu/gemm/output.hpp"

namespace rotoscale::gpu::sm90 {

__device__ inline float sum_of(float acc) { return acc; }
/// Exact: equal to the sum of E5M2 products.
__device__ inline float sum_of(std::int32_t acc) { return static_cast<float>(acc) * int8_unit; }

/// Position of a thread's accumulators in a group of 32 columns.
/// Accumulator i is at (row + 8 * (i / 2 % 2), column + 8 * (i / 4) + i % 2).
struct fragment_position {
  int row, column;
};

/// Adds eight numbers to eight BF16 outputs, which are rounded again.
__device__ inline void add_bias(uint4& v, const float4& low, const float4& high) {
  const auto biased = [](std::uint32_t pair, float x, float y) {
    return bf16_pair(fp32_from_bits(pair << 16) + x, fp32_from_bits(pair & 0xFFFF0000u) + y);
  };
  v = {biased(v.x, low.x, low.y), biased(v.y, low.z, low.w), biased(v.z, high.x, high.y), biased(v.w, high.z, high.w)};
}

/// Bias of the eight columns whose outputs a lane stores after a transpose, as FP32.
struct row_bias {
  float4 of[2];
  /// First of a lane's eight columns. `at`: its accumulators.
  __device__ static int first_column(fragment_position at, int lane) { return at.column + 6 * (lane % 4); }
  __device__ void load(const gemm_arguments& p, fragment_position at, int lane) {
    const int first = first_column(at, lane);
    if (p.output_bias == nullptr || first >= p.n) return;
    of[0] = *reinterpret_cast<const float4*>(p.output_bias + first);
    of[1] = *reinterpret_cast<const float4*>(p.output_bias + first + 4);
  }
};

/// Stores BF16, sixteen bytes per lane, after transposing each quad's 4 × 4 pairs. `bias`: loaded, if the problem has
/// one.
__device__ inline void store_plain(const gemm_arguments& p, float factor, const float (&sum)[16], const row_bias& bias,
                                   fragment_position at, int lane) {
  const int first = row_bias::first_column(at, lane);
  ROTOSCALE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = at.row + 8 * h;
    std::uint32_t w[4];
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) w[i] = bf16_pair(sum[4 * i + 2 * h] * factor, sum[4 * i + 2 * h + 1] * factor);
    uint4 v = transpose_quad(w[0], w[1], w[2], w[3], lane);
    if (p.output_bias != nullptr) add_bias(v, bias.of[0], bias.of[1]);
    std::uint16_t* to = static_cast<std::uint16_t*>(p.out) + row * p.out_stride + first;
    if (row < p.m && first < p.n) *reinterpret_cast<uint4*>(to) = v;
  }
}

/// FP32 outputs of a thread's 32 columns, as pairs of columns: [g][h] of fragment_position.
struct column_pairs {
  float2 of[4][2];
  template <class Use>
  __device__ static void for_each(const gemm_arguments& p, fragment_position at, const Use& use) {
    ROTOSCALE_UNROLL
    for (int g = 0; g < 4; ++g) {
      ROTOSCALE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int row = at.row + 8 * h, column = at.column + 8 * g;
        if (row < p.m && column < p.n) {
          use(g, h, reinterpret_cast<float2*>(static_cast<float*>(p.out) + row * p.out_stride + column));
        }
      }
    }
  }
  __device__ void load(const gemm_arguments& p, fragment_position at) {
    for_each(p, at, [&](int g, int h, const float2* from) { of[g][h] = *from; });
  }
  /// Stores the outputs of `sum`, plus the loaded ones if the problem accumulates.
  __device__ void store(const gemm_arguments& p, float factor, const float (&sum)[16], fragment_position at) const {
    const gemm_epilogue finish{factor, p.accumulate, p.beta, false, p.nan_bits};
    for_each(p, at, [&](int g, int h, float2* to) {
      *to = {float_output(p, finish(sum[4 * g + 2 * h], of[g][h].x, 0.0f)),
             float_output(p, finish(sum[4 * g + 2 * h + 1], of[g][h].y, 0.0f))};
    });
  }
};

/// Stores any output, or the unscaled sums of a part of K, one element at a time.
template <output_mode Mode>
__device__ void store_each(const gemm_arguments& p, float factor, const float (&sum)[16], fragment_position at,
                           int part) {
  float* to = p.partial + static_cast<std::int64_t>(part) * p.m * p.n;
  ROTOSCALE_UNROLL
  for (int i = 0; i < 16; ++i) {
    const int row = at.row + i / 2 % 2 * 8, column = at.column + i / 4 * 8 + i % 2;
    if (row >= p.m || column >= p.n) continue;
    if constexpr (Mode == output_mode::partial) to[static_cast<std::int64_t>(row) * p.n + column] = sum[i];
    if constexpr (Mode == output_mode::general) store_output(p, factor, sum[i], row, column);
  }
}

template <class Tile, output_mode Mode>
inline constexpr bool unfolds = Tile::folded&& Mode != output_mode::partial;

/// Exponents that unfold a warp's sums: bases of its rows and, in shared memory, of the tile's columns.
template <class Tile>
struct fold_bases {
  int rows[2 * Tile::warpgroup_tiles];  ///< exponents: warpgroup tiles, then halves
  static constexpr int columns_each = (Tile::columns + 127) / 128;
  int columns[columns_each];  ///< bases of columns `thread`, `thread` + 128 of the warpgroup
  /// `column`: the warpgroup's first column.
  __device__ void load(const gemm_arguments& p, fragment_position at, int column, int thread) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < 2 * Tile::warpgroup_tiles; ++i) {
      const int row = at.row + i / 2 * 64 + i % 2 * 8;
      rows[i] = row < p.m ? p.base[row] : 0;
    }
    ROTOSCALE_UNROLL
    for (int i = 0; i < columns_each; ++i) {
      const int mine = column + thread + 128 * i;
      columns[i] = mine < p.n ? p.base[p.base_b + mine] : 0;
    }
  }
  /// Writes the columns' exponents to `shared`, the warpgroup's array. Returns true, uniformly in a warp, if row and
  /// column powers can be multiplied one after the other.
  __device__ bool share(int* shared, int group, int thread) const {
    group_sync(group);  // waits for readers of the previous tile
    ROTOSCALE_UNROLL
    for (int i = 0; i < columns_each; ++i) {
      if (Tile::columns % 128 == 0 || thread < Tile::columns) shared[thread + 128 * i] = columns[i];
    }
    bool plain = true;
    ROTOSCALE_UNROLL
    for (int i = 0; i < 2 * Tile::warpgroup_tiles; ++i) plain &= first_base_is_plain(rows[i]);
    group_sync(group);
    // All columns must pass, so every warp tests all of them.
    ROTOSCALE_UNROLL
    for (int i = 0; i < Tile::columns / 32; ++i) plain &= second_base_is_plain(shared[thread % 32 + 32 * i]);
    return __all_sync(0xFFFFFFFFu, plain);
  }
};
/// Unfolds 16 sums. `columns`: exponents from the thread's first column on.
template <bool Plain>
__device__ void unfold(int row, int row_8, const int* columns, float (&sum)[16]) {
  const int rows[2] = {row, row_8};
  ROTOSCALE_UNROLL
  for (int g = 0; g < 4; ++g) {
    const int2 pair = *reinterpret_cast<const int2*>(columns + 8 * g);
    const int exponents[2] = {pair.x, pair.y};
    ROTOSCALE_UNROLL
    for (int i = 0; i < 4; ++i) {
      float& x = sum[4 * g + i];
      if constexpr (Plain) {
        x = x * __int_as_float((rows[i / 2] + 127) << 23) * __int_as_float((exponents[i % 2] + 127) << 23);
      } else {
        x = times_power(x, rows[i / 2] + exponents[i % 2]);
      }
    }
  }
}

/// Stores all sums of a thread, 32 columns of a warpgroup tile at a time to save registers. `exponents`: of the tile's
/// columns. `first_bias`: of the first group.
template <class Tile, output_mode Mode, bool Plain, class Number, int Half>
__device__ void store_tile(const gemm_arguments& p, float factor, const Number (&acc)[Tile::warpgroup_tiles][Half],
                           const fold_bases<Tile>& bases, const int* exponents, const row_bias& first_bias,
                           fragment_position at, int lane, int part) {
  constexpr int column_groups = Tile::columns / 32, groups = Tile::warpgroup_tiles * column_groups;
  const auto position = [&](int i) {
    return fragment_position{at.row + 64 * (i / column_groups), at.column + 32 * (i % column_groups)};
  };
  // Old outputs and biases are prefetched one group ahead: a load after a store would stall once per group.
  row_bias bias[2] = {first_bias, {}};
  column_pairs old[2] = {};
  const bool adds = Mode == output_mode::pairs && p.accumulate;
  if (adds) old[0].load(p, at);
  ROTOSCALE_UNROLL
  for (int i = 0; i < groups; ++i) {
    const int warpgroup_tile = i / column_groups, column_group = i % column_groups;
    if (adds && i + 1 < groups) old[(i + 1) % 2].load(p, position(i + 1));
    if (Mode == output_mode::vector && i + 1 < groups) bias[(i + 1) % 2].load(p, position(i + 1), lane);
    float sum[16];
    ROTOSCALE_UNROLL
    for (int j = 0; j < 16; ++j) sum[j] = sum_of(acc[warpgroup_tile][16 * column_group + j]);
    if constexpr (unfolds<Tile, Mode>) {
      const int* columns = exponents + 2 * (lane % 4) + 32 * column_group;
      unfold<Plain>(bases.rows[2 * warpgroup_tile], bases.rows[2 * warpgroup_tile + 1], columns, sum);
    }
    const fragment_position here = position(i);
    if constexpr (Mode == output_mode::vector) {
      store_plain(p, factor, sum, bias[i % 2], here, lane);
    } else if constexpr (Mode == output_mode::pairs) {
      old[i % 2].store(p, factor, sum, here);
    } else {
      store_each<Mode>(p, factor, sum, here, part);
    }
  }
}

}  // namespace rotoscale::gpu::sm90
