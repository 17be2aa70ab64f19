// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Building blocks of attention on tensor or matrix cores (attention-bf16-tile64x64-EXP2@UNIT).
//
// A tile of 64 rows belongs to four groups of lanes (warps or waves). Each group owns 16 rows with all columns and
// keeps them in registers from one product to the next. A block computes plan.tiles tiles, which share the streamed
// tiles.
#pragma once

#include <type_traits>

#include "gpu/dialect/bf16_tiles.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/nn/attention_arguments.hpp"

namespace rotoscale::gpu::tiles {

inline constexpr int tile = attention_tile, groups = 4, parts = tile / 16;  // parts: 16-row parts of a tile

template <class Unit>
inline constexpr int threads = groups* Unit::lanes;  // threads of a tile

/// Position of this thread in its block, its tile, its position in the tile, and its group there.
template <class Unit>
struct place_in_block {
  int thread = static_cast<int>(thread_index().x), tile = Unit::uniform(thread / threads<Unit>),
      in_tile = thread % threads<Unit>, group = Unit::uniform(in_tile / Unit::lanes);
};

template <class Unit, int D>
using tile_of = typename Unit::template tile<D>;

/// Two adjacent floats of shared memory, aligned to 8 bytes.
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

/// Stores a group's 16 rows from `first` on, each times its factor. The tensor starts at row `begin`.
template <class Unit, int D, class T>
__device__ void store_rows(const head_tensor<T>& to, int b, int h, int first, const attention_shape& n, bool vectors,
                           const float (&x)[D / 16][Unit::elements], const float (&factor)[Unit::rows], int begin = 0) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    ROTOSCALE_UNROLL
    for (int e = 0; e < Unit::elements; e += 2) {  // two adjacent columns
      const int r = Unit::row_of_element(e), t = first + Unit::row(r), column = 16 * i + Unit::column(e);
      if (!has_row(t, begin, n.seq) || column >= n.dim) continue;
      store_two(to.row(b, t, h) + column, canonical(x[i][e] * factor[r]), canonical(x[i][e + 1] * factor[r]), vectors);
    }
  }
}

/// Factors for base-2 exponentials: log2(e) / sqrt(dim), and x · log2(e).
__device__ inline float binary_scale(const attention_shape& n) { return n.scale * 0x1.715476p+0f; }
__device__ inline float to_binary(float x) { return x * 0x1.715476p+0f; }

/// Queries of a lane's rows.
template <class Unit>
struct query_rows {
  int t[Unit::rows], begin[Unit::rows];  ///< token; first key that it sees

  __device__ query_rows(const std::int32_t* starts, int first, int seq) {
    ROTOSCALE_UNROLL
    for (int r = 0; r < Unit::rows; ++r) {
      t[r] = first + Unit::row(r);
      begin[r] = t[r] < seq ? start_of(starts, t[r]) : 0;
    }
  }
  __device__ bool sees(int r, int key) const { return key <= t[r] && key >= begin[r]; }
};

/// The unit with exponential ex2_approx. Contracts with the polynomial (nn::exp2) use Base.
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
/// Replaces a lane's elements by 2^x. Uses fewer operations if the largest magnitude in the warp is at most 60: the
/// polynomial then neither flushes nor overflows, and nothing is NaN.
template <class Unit, int Count>
__device__ void exponentials(float (&x)[Count][Unit::elements]) {
  if constexpr (!takes_ex2<Unit> && Unit::has_nan_maximum) {
    float largest = 0.0f;
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count * Unit::elements; ++i) {
      largest = larger_or_nan(__builtin_fabsf(x[i / Unit::elements][i % Unit::elements]), largest);
    }
    if (!subgroup_any(!(largest <= 60.0f))) {
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
/// The same in shared memory.
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
/// Operand of the tile's own queries: registers, unless the unit reads whole tiles from shared memory.
template <class Unit, int D>
using query_operand = std::conditional_t<Unit::whole_tiles, shared_rows<Unit, D>, kept_rows<Unit, D>>;

/// Starts x = own · rowsᵀ over Count parts of 16 rows from `part` on. x is valid after finish.
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
/// Results rounded to BF16 as first operands.
template <class Unit, int Count>
struct packed_rows {
  typename Unit::fragment part[Count];
  packed_rows() = default;
  __device__ explicit packed_rows(const float (&x)[Count][Unit::elements]) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count; ++i) part[i] = Unit::as_operand(x[i]);
  }
};
/// Starts sum += weights · rows over Count parts of 16 rows from `part` on. sum is valid after finish.
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
/// Waits for all products except the latest `Youngest`.
template <int Youngest = 0, class Unit, class... Result>
__device__ void finish(Unit, [[maybe_unused]] Result&... results) {
  if constexpr (Unit::whole_tiles) Unit::template finish<Youngest>(results...);
}

/// Keys that a tile of queries reads: tiles from `begin` to `end`, inclusive.
struct key_range {
  int begin, end;
  /// Tells the compiler that both are equal in all lanes.
  template <class Unit>
  __device__ key_range uniform() const {
    return {Unit::uniform(begin), Unit::uniform(end)};
  }
  __device__ bool has(int key) const { return key >= begin && key <= end; }
};
/// Keys of the tile of queries at `first`. Empty if it is beyond the sequence.
__device__ inline key_range keys_of_tile(const std::int32_t* starts, int first, int seq, int past = 0) {
  return {first_key_of(starts, first, seq, past), first < seq ? first : -1};
}
/// Union of the keys of `Tiles` tiles of queries. The first tile, at `first`, is inside the sequence.
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
