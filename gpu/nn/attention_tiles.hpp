// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention in tiles on a matrix unit (attention-bf16-tile64x64-EXP2@UNIT): what the kernels compute with. A tile
// of 64 rows belongs to four groups of lanes (warps, waves); each has 16 rows of it, all of its columns, and keeps them
// in registers from one product to the next. A block computes as many tiles side by side as the unit's plan says, which
// share what they read.
#pragma once

#include <type_traits>

#include "gpu/dialect/bf16_tiles.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/nn/attention_arguments.hpp"

namespace rotoscale::gpu::tiles {

inline constexpr int tile = attention_tile, groups = 4, parts = tile / 16;  // parts: tiles of 16 of a tile

template <class Unit>
inline constexpr int threads = groups* Unit::lanes;  // of a tile

/// This thread among those of its block, the tile that it works for, and its group there.
template <class Unit>
struct place_in_block {
  int thread = static_cast<int>(thread_index().x), tile = Unit::uniform(thread / threads<Unit>),
      in_tile = thread % threads<Unit>, group = Unit::uniform(in_tile / Unit::lanes);
};

template <class Unit, int D>
using tile_of = typename Unit::template tile<D>;

/// Neighbours in shared memory, the first at a multiple of 8 bytes.
struct alignas(8) two_floats {
  float of[2];
};
__device__ inline two_floats load_pair(const float* x) { return *reinterpret_cast<const two_floats*>(x); }

template <int Count, int Elements>
__device__ void clear(float (&x)[Count][Elements]) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < Count; ++i) {
    ROTOSCALE_UNROLL
    for (int e = 0; e < Elements; ++e) x[i][e] = 0.0f;
  }
}

__device__ inline float canonical(float x) { return x == x ? x : fp32_from_bits(fp32_nan_bits); }
__device__ inline void store_two(float* to, float x, float y, bool) {
  to[0] = x;
  to[1] = y;
}
__device__ inline void store_two(bf16* to, float x, float y, bool vectors) {
  if (vectors) {
    *reinterpret_cast<any_word*>(to) = canonical_bf16(x) | canonical_bf16(y) << 16;
  } else {
    attention_store(to, x);
    attention_store(to + 1, y);
  }
}

/// A group's 16 rows from `first` on, times a factor a row; the tensor begins at row `begin`.
template <class Unit, int D, class T>
__device__ void store_rows(const head_tensor<T>& to, int b, int h, int first, const attention_shape& n, bool vectors,
                           const float (&x)[D / 16][Unit::elements], const float (&factor)[Unit::rows], int begin = 0) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    ROTOSCALE_UNROLL
    for (int e = 0; e < Unit::elements; e += 2) {  // columns come in pairs
      const int r = Unit::row_of_element(e), t = first + Unit::row(r), column = 16 * i + Unit::column(e);
      if (!has_row(t, begin, n.seq) || column >= n.dim) continue;
      store_two(to.row(b, t, h) + column, canonical(x[i][e] * factor[r]), canonical(x[i][e + 1] * factor[r]), vectors);
    }
  }
}

/// log2(e) / sqrt(dim), and log2(e).
__device__ inline float binary_scale(const attention_shape& n) { return n.scale * 0x1.715476p+0f; }
__device__ inline float to_binary(float x) { return x * 0x1.715476p+0f; }

/// Queries that a lane has rows of.
template <class Unit>
struct query_rows {
  int t[Unit::rows], begin[Unit::rows];  ///< places; the first keys that they see

  __device__ query_rows(const std::int32_t* starts, int first, int seq) {
    ROTOSCALE_UNROLL
    for (int r = 0; r < Unit::rows; ++r) {
      t[r] = first + Unit::row(r);
      begin[r] = t[r] < seq ? start_of(starts, t[r]) : 0;
    }
  }
  __device__ bool sees(int r, int key) const { return key <= t[r] && key >= begin[r]; }
};

/// A matrix unit under the contracts whose exponential is ex2_approx; under the others it stands for itself.
template <class Base>
struct ex2_unit : Base {};
template <class Unit>
inline constexpr bool takes_ex2 = false;
template <class Base>
inline constexpr bool takes_ex2<ex2_unit<Base>> = true;

template <class Unit>
__device__ float exp2_of(float x) {
  return takes_ex2<Unit> ? ex2_approx(x) : nn::exp2(x);
}
/// 2^x of a lane's elements; where the largest magnitude shows that the polynomial flushes none, and that none
/// overflows or is NaN, by fewer operations.
template <class Unit, int Count>
__device__ void exponentials(float (&x)[Count][Unit::elements]) {
  if constexpr (!takes_ex2<Unit> && Unit::has_nan_maximum) {
    float largest = 0.0f;
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count * Unit::elements; ++i) {
      largest = larger_or_nan(__builtin_fabsf(x[i / Unit::elements][i % Unit::elements]), largest);
    }
    if (!segment_any(!(largest <= 60.0f))) {
      ROTOSCALE_UNROLL
      for (int i = 0; i < Count * Unit::elements; ++i) {
        float& y = x[i / Unit::elements][i % Unit::elements];
        y = nn::exp2_normal(y);
      }
      return;
    }
  }
  ROTOSCALE_UNROLL
  for (int i = 0; i < Count * Unit::elements; ++i) {
    float& y = x[i / Unit::elements][i % Unit::elements];
    y = exp2_of<Unit>(y);
  }
}

/// A group's rows of a tile as first operands, in registers.
template <class Unit, int D>
struct kept_rows {
  typename Unit::fragment part[D / 16];
  __device__ void take(const tile_of<Unit, D>& x, int group) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < D / 16; ++i) part[i] = Unit::load_first(x.at(group, i), x.stride);
  }
  __device__ typename Unit::fragment at(int i) const { return part[i]; }
};
/// The same, left in shared memory.
template <class Unit, int D>
struct shared_rows {
  const tile_of<Unit, D>* rows;
  int group;
  __device__ void take(const tile_of<Unit, D>& x, int g) {
    rows = &x;
    group = g;
  }
  __device__ typename Unit::fragment at(int i) const { return Unit::load_first(rows->at(group, i), rows->stride); }
};
/// What a tile of queries has of its own: registers, unless the unit reads whole tiles.
template <class Unit, int D>
using query_operand = std::conditional_t<Unit::whole_tiles, shared_rows<Unit, D>, kept_rows<Unit, D>>;

/// x = own rows times Count parts of a tile's rows, from `part` on: chains over the features. There after finish.
template <int D, class Unit, class Own, int Count>
__device__ void multiply_rows(Unit, const Own& own, const tile_of<Unit, D>& rows, int part,
                              float (&x)[Count][Unit::elements]) {
  if constexpr (Unit::whole_tiles) {
    static_assert(Count == parts);
    Unit::template start_rows<D>(*own.rows, rows, x);
  } else {
    clear(x);
    ROTOSCALE_UNROLL
    for (int d = 0; d < D / 16; ++d) {
      const typename Unit::fragment a = own.at(d);
      ROTOSCALE_UNROLL
      for (int i = 0; i < Count; ++i) Unit::multiply(a, Unit::load_second(rows.at(part + i, d), rows.stride), x[i]);
    }
  }
}
/// Results, rounded, as first operands.
template <class Unit, int Count>
struct packed_rows {
  typename Unit::fragment part[Count];
  packed_rows() = default;
  __device__ explicit packed_rows(const float (&x)[Count][Unit::elements]) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count; ++i) part[i] = Unit::as_operand(x[i]);
  }
};
/// sum += weights, of Count parts of a tile's rows from `part` on, times these rows. There after finish.
template <int D, class Unit, int Count>
__device__ void add_rows(Unit, const packed_rows<Unit, Count>& weights, const tile_of<Unit, D>& rows, int part,
                         float (&sum)[D / 16][Unit::elements]) {
  if constexpr (Unit::whole_tiles) {
    Unit::template start_sum<D>(weights.part, rows, sum);
  } else {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count; ++i) {
      ROTOSCALE_UNROLL
      for (int d = 0; d < D / 16; ++d) {
        Unit::multiply(weights.part[i], Unit::load_second_transposed(rows.at(part + i, d), rows.stride), sum[d]);
      }
    }
  }
}
/// Waits for all products but the `Youngest` that were started last.
template <int Youngest = 0, class Unit, class... Result>
__device__ void finish(Unit, [[maybe_unused]] Result&... results) {
  if constexpr (Unit::whole_tiles) Unit::template finish<Youngest>(results...);
}

/// Keys that queries of a tile read: those of the tiles from `begin` to `end`, which is included.
struct key_range {
  int begin, end;
  /// Known to be the same in all lanes.
  template <class Unit>
  __device__ key_range uniform() const {
    return {Unit::uniform(begin), Unit::uniform(end)};
  }
  __device__ bool has(int key) const { return key >= begin && key <= end; }
};
/// Of the tile of queries at `first`; of none beyond the sequence.
__device__ inline key_range keys_of_tile(const std::int32_t* starts, int first, int seq, int past = 0) {
  return {first_key_of(starts, first, seq, past), first < seq ? first : -1};
}
/// Of `Tiles` tiles of queries, the first at `first`, which is not beyond the sequence.
template <int Tiles>
__device__ key_range keys_of_tiles(const std::int32_t* starts, int first, int seq, int past = 0) {
  key_range all = keys_of_tile(starts, first, seq, past);
  ROTOSCALE_UNROLL
  for (int i = 1; i < Tiles; ++i) {
    const key_range own = keys_of_tile(starts, first + i * tile, seq, past);
    all.begin = own.begin < all.begin ? own.begin : all.begin;
    all.end = own.end > all.end ? own.end : all.end;
  }
  return all;
}

}  // namespace rotoscale::gpu::tiles
