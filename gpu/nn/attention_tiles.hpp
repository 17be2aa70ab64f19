// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention in tiles on a matrix unit (attention-bf16-tile64x64-exp2deg3@UNIT): what the kernels share, and the forward
// pass. A block is four groups of lanes (warps, waves); each has 16 rows of a tile of 64, all of its columns, and keeps
// them in registers from one product to the next.
#pragma once

#include <type_traits>

#include "gpu/dialect/bf16_tiles.hpp"
#include "gpu/nn/attention_arguments.hpp"

namespace rotoscale::gpu::tiles {

inline constexpr int tile = attention_tile, groups = 4, parts = tile / 16;  // parts: tiles of 16 of a tile

template <class Unit>
inline constexpr int threads = groups* Unit::lanes;

template <class Unit, int D>
using tile_of = typename Unit::template tile<D>;

template <class T>
__device__ inline std::uint32_t load_two(const T* x) {
  return pack_bf16(attention_load(x), attention_load(x + 1));
}
__device__ inline std::uint32_t load_two(const bf16* x) {
  return x[0].bits() | static_cast<std::uint32_t>(x[1].bits()) << 16;
}

/// Rows [first, first + 64) of a head as BF16, zero beyond the tensor, which begins at row `begin`; there after
/// wait_for_copies and a barrier. `vectors`: 16 bytes of a row may be loaded at once.
template <class Unit, int D, class T>
__device__ void load_tile(const head_tensor<const T>& x, int b, int h, int first, const attention_shape& n,
                          bool vectors, tile_of<Unit, D>& to, int begin = 0) {
  constexpr int pieces = D / 8, across = threads<Unit> / pieces;  // rows at a time
  const int row0 = static_cast<int>(thread_index().x) / pieces,
            column = static_cast<int>(thread_index().x) % pieces * 8;
  const T* from = x.row(b, first + row0, h) + column;
  // A whole tile of whole rows: nothing but copies.
  if (sizeof(T) == 2 && vectors && first >= begin && first + tile <= n.seq && n.dim == D) {
    ROTOSCALE_UNROLL
    for (int row = 0; row < tile; row += across, from += across * x.token) {
      copy_async(reinterpret_cast<vec16*>(to.codes + to.place(row0 + row, column)), from);
    }
    return;
  }
  ROTOSCALE_UNROLL
  for (int row = 0; row < tile; row += across, from += across * x.token) {
    auto* const place = reinterpret_cast<vec16*>(to.codes + to.place(row0 + row, column));
    const bool inside = has_row(first + row0 + row, begin, n.seq) && column < n.dim;
    if (sizeof(T) == 2 && vectors && inside) {
      copy_async(place, from);
      continue;
    }
    vec16 v = {};
    if (inside) {
      ROTOSCALE_UNROLL
      for (int w = 0; w < 4; ++w) v.word[w] = load_two(from + 2 * w);
    }
    *place = v;
  }
}

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
    *reinterpret_cast<std::uint32_t*>(to) = canonical_bf16(x) | canonical_bf16(y) << 16;
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

/// Online softmax of a group's 16 rows.
template <class Unit>
struct softmax_rows {
  float top[Unit::rows], sum[Unit::rows][4], factor[Unit::rows];

  __device__ softmax_rows() {
    ROTOSCALE_UNROLL
    for (int r = 0; r < Unit::rows; ++r) {
      top[r] = -__builtin_inff();
      ROTOSCALE_UNROLL
      for (int c = 0; c < 4; ++c) sum[r][c] = 0.0f;
    }
  }
  /// Scores of the keys from `key` on become probabilities relative to `top`; `factor`: what sums so far must be
  /// multiplied by.
  template <bool Masked>
  __device__ void take(float (&s)[parts][Unit::elements], const query_rows<Unit>& rows, int key, float scale) {
    float shift[Unit::rows];
    ROTOSCALE_UNROLL
    for (int r = 0; r < Unit::rows; ++r) {
      float largest = top[r];
      ROTOSCALE_UNROLL
      for (int i = 0; i < parts * Unit::elements; ++i) {
        const int e = i % Unit::elements, part = i / Unit::elements;
        if (Unit::row_of_element(e) != r) continue;
        const bool seen = !Masked || rows.sees(r, key + 16 * part + Unit::column(e));
        if (seen) largest = __builtin_fmaxf(largest, s[part][e]);  // NaN takes no part
      }
      largest = Unit::row_max(largest);
      const float base = largest == -__builtin_inff() ? 0.0f : largest;
      factor[r] = nn::exp2((top[r] - base) * scale);
      shift[r] = base * scale;
      top[r] = largest;
    }
    ROTOSCALE_UNROLL
    for (int i = 0; i < parts * Unit::elements; ++i) {
      const int e = i % Unit::elements, part = i / Unit::elements, r = Unit::row_of_element(e);
      const float p = nn::exp2(nn::fma(s[part][e], scale, -shift[r]));
      s[part][e] = !Masked || rows.sees(r, key + 16 * part + Unit::column(e)) ? p : 0.0f;
      float& lane = sum[r][Unit::column_of_element(e)];
      lane = part == 0 ? nn::fma(lane, factor[r], s[part][e]) : lane + s[part][e];
    }
  }
};

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
/// sum += weights, of Count parts of a tile's rows from `part` on, times these rows. There after finish.
template <int D, class Unit, int Count>
__device__ void add_rows(Unit, const float (&weights)[Count][Unit::elements], const tile_of<Unit, D>& rows, int part,
                         float (&sum)[D / 16][Unit::elements]) {
  if constexpr (Unit::whole_tiles) {
    Unit::template start_sum<D>(weights, rows, sum);
  } else {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count; ++i) {
      const typename Unit::fragment a = Unit::as_operand(weights[i]);
      ROTOSCALE_UNROLL
      for (int d = 0; d < D / 16; ++d) {
        Unit::multiply(a, Unit::load_second_turned(rows.at(part + i, d), rows.stride), sum[d]);
      }
    }
  }
}
template <class Unit, class... Result>
__device__ void finish(Unit, [[maybe_unused]] Result&... results) {
  if constexpr (Unit::whole_tiles) Unit::finish(results...);
}

/// Leads compute(buffer) through pairs of tiles that load(position, buffer) brings: the next one comes while one is
/// computed on, where there are two buffers. `next` moves a position on, false at the end.
template <class Unit, int Stages, class Position, class Load, class Next, class Compute>
__device__ void pipeline(Position at, const Load& load, const Next& next, const Compute& compute) {
  if (Stages == 1) {
    do {
      block_barrier();
      load(at, 0);
      wait_for_copies();
      Unit::publish();
      block_barrier();
      compute(at, 0);
    } while (next(at));
    return;
  }
  load(at, 0);
  int buffer = 0;
  for (bool more = true; more; buffer ^= 1) {
    wait_for_copies();
    Unit::publish();
    block_barrier();
    const Position now = at;
    more = next(at);
    if (more) load(at, buffer ^ 1);
    compute(now, buffer);
  }
}

/// Rows of sums times a factor each, which is 1 as long as no row has a larger score.
template <class Unit, int Count>
__device__ void rescale(float (&sum)[Count][Unit::elements], const float (&factor)[Unit::rows]) {
  bool any = false;
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) any |= !(factor[r] == 1.0f);
  if (!segment_any(any)) return;
  ROTOSCALE_UNROLL
  for (int i = 0; i < Count * Unit::elements; ++i) {
    sum[i / Unit::elements][i % Unit::elements] *= factor[Unit::row_of_element(i % Unit::elements)];
  }
}

/// Tiles of keys and values, and behind them those of the queries where a unit reads whole tiles.
template <class Unit, int D>
struct key_memory {
  tile_of<Unit, D> k[Unit::dq_stages], v[Unit::dq_stages];
};
template <class Unit, int D>
struct forward_memory {
  tile_of<Unit, D> k, v;
};
/// Bytes of `Memory` and `own` tiles of queries behind it.
template <class Unit, int D, class Memory>
constexpr std::size_t queries_shared_bytes(int own) {
  const std::size_t tiles = Unit::whole_tiles ? static_cast<std::size_t>(own) * sizeof(tile_of<Unit, D>) : 0;
  return sizeof(Memory) + tiles + alignof(Memory);
}
/// The block's shared memory, aligned as T.
template <class T>
__device__ T& aligned_shared() {
  auto* const memory = dynamic_shared<unsigned char>();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return *reinterpret_cast<T*>(memory + (alignof(T) - address % alignof(T)) % alignof(T));
}

/// Waits until all copies but the youngest group have arrived for the whole block.
template <class Unit>
__device__ void arrive() {
  wait_for_all_but<1>();
  Unit::publish();
  block_barrier();
}

/// A grid of (tiles of queries, heads, batch) blocks, the last tile first.
template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__(threads<Unit>, Unit::forward_blocks)
    forward_kernel(const ROTOSCALE_GRID_CONSTANT attention_pass<T> p) {
  auto& s = aligned_shared<forward_memory<Unit, D>>();
  const int group = static_cast<int>(thread_index().x) / Unit::lanes;
  const int first = p.first_query();
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z), kv = h / p.n.group();
  const std::int32_t* const starts = p.n.starts_of(b);

  query_operand<Unit, D> q;
  auto& own = Unit::whole_tiles ? *reinterpret_cast<tile_of<Unit, D>*>(&s + 1) : s.k;
  load_tile<Unit, D>(p.q, b, h, first, p.n, p.vectors, own, p.past);
  wait_for_copies();
  block_barrier();
  q.take(own, group);
  block_barrier();
  const query_rows<Unit> rows(starts, first + 16 * group, p.n.seq);
  const float scale = binary_scale(p.n);
  softmax_rows<Unit> softmax;
  float o[D / 16][Unit::elements];
  clear(o);
  // Keys come while probabilities are made, values while scores are: one tile of each, so that more blocks fit.
  const int first_key = first_key_of(starts, first, p.n.seq, p.past);
  load_tile<Unit, D>(p.k, b, kv, first_key, p.n, p.vectors, s.k);
  end_copy_group();
  load_tile<Unit, D>(p.v, b, kv, first_key, p.n, p.vectors, s.v);
  end_copy_group();
  for (int key = first_key; key <= first; key += tile) {
    float x[parts][Unit::elements];
    arrive<Unit>();
    multiply_rows<D>(Unit{}, q, s.k, 0, x);
    finish(Unit{}, x);
    block_barrier();
    if (key < first) load_tile<Unit, D>(p.k, b, kv, key + tile, p.n, p.vectors, s.k);
    end_copy_group();
    if (key == first || starts != nullptr) {
      softmax.template take<true>(x, rows, key, scale);
    } else {
      softmax.template take<false>(x, rows, key, scale);
    }
    rescale<Unit>(o, softmax.factor);
    arrive<Unit>();
    add_rows<D>(Unit{}, x, s.v, 0, o);
    finish(Unit{}, o);
    block_barrier();
    if (key < first) load_tile<Unit, D>(p.v, b, kv, key + tile, p.n, p.vectors, s.v);
    end_copy_group();
  }

  float inverse[Unit::rows];
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) {
    const float sum = Unit::fold(softmax.sum[r]);
    inverse[r] = 1.0f / sum;
    if (Unit::leads() && p.has_query(rows.t[r])) {
      p.n.lse[p.row(b, h, rows.t[r])] = canonical(nn::fma(softmax.top[r], p.n.scale, nn::log(sum)));
    }
  }
  store_rows<Unit, D>(p.o, b, h, first + 16 * group, p.n, p.vectors, o, inverse, p.past);
}

}  // namespace rotoscale::gpu::tiles
