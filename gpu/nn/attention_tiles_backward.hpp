// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Backward pass of attention on tensor cores: dk and dv by tiles of keys, dq by tiles of queries.
//
// Both kernels recompute scores and their gradients, seven products instead of five. Each sum then has one owner and
// one order: no atomics, no counters, no partial sums of dq in memory.
#pragma once

#include "gpu/nn/attention_copies.hpp"

namespace rotoscale::gpu::tiles {

/// Parts in which scores of a tile are computed, to save registers: whole or two halves.
template <class Unit>
inline constexpr int halves = Unit::whole_tiles ? 1 : 2;
template <class Unit>
inline constexpr int half_parts = parts / halves<Unit>;

/// Buffers of query tiles for the gradients of keys, with numbers per query.
template <class Unit, int D, int Stages>
struct query_memory {
  tile_of<Unit, D> q[Stages], d_o[Stages];
  alignas(8) float shift[Stages][tile];  // lse · log2(e)
  alignas(8) float dot[Stages][tile];
  int begin[Stages][tile];
  typename Unit::engine::template barriers<Stages> barriers;
};

template <class Unit, int D>
using key_operand = std::conditional_t<Unit::keeps_operands, kept_rows<Unit, D>, shared_rows<Unit, D>>;

template <class Unit, int D>
struct keys_layout : block_layout<Unit, Unit::template keys_plan<D>> {
  static constexpr bool kept = Unit::keeps_operands;
  using memory = query_memory<Unit, D, keys_layout::plan.stages>;
  static constexpr std::size_t shared = shared_bytes<kept, 2 * keys_layout::plan.tiles, tile_of<Unit, D>, memory>;
};

/// A tile of queries: head, first token, and the first key that it reads.
struct query_position {
  int h, first, first_key;
};
/// Numbers of one query: lse, D, and its document's start.
struct query_numbers {
  float shift, dot;
  int begin;
};

/// Computes dk and dv of tiles of keys over the query heads of their group in turn.
template <class Unit, class T, int D>
struct keys_pass {
  using layout = keys_layout<Unit, D>;
  using half_tile = float[half_parts<Unit>][Unit::elements];

  const attention_backward_pass<T>& p;
  typename layout::memory& s;
  tile_copies<Unit, layout::plan.stages> copies;
  place_in_block<Unit> place;
  int b, kv, block_key, key;  // first keys of the block and of this tile
  const std::int32_t* starts;
  query_numbers prefetched = {};  // for the thread's query of the next tile to load

  // Stored numbers need a block barrier, which ping-pong scheduling does not have.
  static_assert(!layout::pingpong);

  /// Each of the block's first `tile` threads prefetches the numbers of one query one tile early, which hides the
  /// latency. With one buffer, as in AMD's plan, the tile is loaded at once.
  __device__ void fetch(query_position at) {
    if (place.thread >= tile) return;
    const int t = at.first + place.thread;
    prefetched = {0.0f, 0.0f, p.n.seq};  // beyond the sequence: sees no key
    if (t < p.n.seq) prefetched = {p.n.lse[p.n.row(b, at.h, t)], p.n.dots[p.n.row(b, at.h, t)], start_of(starts, t)};
  }
  __device__ void load(query_position at, int buffer) const {
    copies.template load<D, layout::threads>(p.q, p.d_o, b, at.h, at.first, p.n, p.vectors, s.q[buffer], s.d_o[buffer],
                                             buffer);
    const int i = place.thread;
    if (i >= tile) return;
    s.shift[buffer][i] = to_binary(prefetched.shift);
    s.dot[buffer][i] = prefetched.dot;
    s.begin[buffer][i] = prefetched.begin;
  }
  /// First tile of a head: the queries at the block's first keys, which they always read.
  __device__ query_position first_of_head(int h) const { return {h, block_key, block_key}; }
  __device__ bool next(query_position& at) {
    if (!move(at)) return false;
    fetch(at);
    return true;
  }
  __device__ bool move(query_position& at) const {
    do {
      at.first += tile;
      if (at.first >= p.n.seq) {
        at = first_of_head(at.h + 1);
        return at.h < (kv + 1) * p.n.group();
      }
      at.first_key = Unit::uniform(first_key_of(starts, at.first, p.n.seq));
    } while (at.first_key >= block_key + layout::plan.tiles * tile);
    return true;
  }
  /// True if this tile reads the pair. The block loads pairs that any of its tiles reads.
  __device__ bool reads(query_position at) const { return at.first >= key && at.first_key <= key; }
  /// True if a query of the pair may not see every key.
  __device__ bool masks(query_position at) const {
    return starts != nullptr || at.first == key || at.first + tile > p.n.seq;
  }

  /// Calls body(part, e, column) for the lane's pairs of elements of half a tile. Rows are keys, columns queries.
  template <class Body>
  __device__ static void for_pairs(int half, const Body& body) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < half_parts<Unit> * Unit::elements; i += 2) {
      const int e = i % Unit::elements, part = i / Unit::elements;
      body(part, e, 16 * (half * half_parts<Unit> + part) + Unit::column(e));
    }
  }
  /// Zeroes elements whose query does not see the key.
  __device__ void mask(query_position at, int buffer, int half, half_tile& x) const {
    for_pairs(half, [&](int part, int e, int column) {
      const int own = key + 16 * place.group + Unit::row(Unit::row_of_element(e));
      ROTOSCALE_UNROLL
      for (int c = 0; c < 2; ++c) {
        if (own > at.first + column + c || own < s.begin[buffer][column + c]) x[part][e + c] = 0.0f;
      }
    });
  }
  /// Replaces scores by probabilities.
  __device__ void probabilities(query_position at, int buffer, int half, half_tile& x) const {
    const float scale = binary_scale(p.n);
    for_pairs(half, [&](int part, int e, int column) {
      const two_floats shift = load_pair(&s.shift[buffer][column]);
      ROTOSCALE_UNROLL
      for (int c = 0; c < 2; ++c) x[part][e + c] = nn::fma(x[part][e + c], scale, -shift.of[c]);
    });
    exponentials<Unit>(x);
    if (masks(at)) mask(at, buffer, half, x);
  }
  /// Replaces dp by the gradient of the scores; x are the probabilities.
  __device__ void gradients(query_position at, int buffer, int half, const half_tile& x, half_tile& dp) const {
    for_pairs(half, [&](int part, int e, int column) {
      const two_floats dot = load_pair(&s.dot[buffer][column]);
      ROTOSCALE_UNROLL
      for (int c = 0; c < 2; ++c) {
        dp[part][e + c] = x[part][e + c] * (dp[part][e + c] - dot.of[c]);
      }
    });
    if (masks(at)) mask(at, buffer, half, dp);
  }

  /// Adds one pair of tiles: scores and dp, exp2, ds, then dv and dk. The product of dv starts only after ds. Earlier,
  /// its operands would be live together with dp, and the compiler would serialize the products.
  template <class Signal>
  __device__ void add(query_position at, int buffer, const Signal& signal_next, const key_operand<Unit, D>& k,
                      const key_operand<Unit, D>& v, float (&dk)[D / 16][Unit::elements],
                      float (&dv)[D / 16][Unit::elements]) const {
    ROTOSCALE_UNROLL
    for (int half = 0; half < halves<Unit>; ++half) {
      const int part = half * half_parts<Unit>;
      half_tile x, dp;
      multiply_rows<D>(Unit{}, k, s.q[buffer], part, x);
      multiply_rows<D>(Unit{}, v, s.d_o[buffer], part, dp);
      if (half == 0) signal_next();
      finish<1>(Unit{}, x);
      probabilities(at, buffer, half, x);
      finish(Unit{}, dp);
      gradients(at, buffer, half, x, dp);
      add_rows<D>(Unit{}, packed_rows<Unit, half_parts<Unit>>(x), s.d_o[buffer], part, dv);
      add_rows<D>(Unit{}, packed_rows<Unit, half_parts<Unit>>(dp), s.q[buffer], part, dk);
      finish(Unit{}, dv, dk);
    }
  }
};

/// Computes dk and dv. Grid: (tiles of keys, key heads, batch).
template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__((keys_layout<Unit, D>::threads),
                                                          (keys_layout<Unit, D>::plan.blocks))
    keys_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p,
                const ROTOSCALE_GRID_CONSTANT typename Unit::engine::maps maps) {
  using layout = keys_layout<Unit, D>;
  constexpr int tiles = layout::plan.tiles;
  auto& s = aligned_shared<typename layout::memory>();
  const place_in_block<Unit> place;
  const int block_key = static_cast<int>(block_index().x) * tiles * tile, key = block_key + place.tile * tile;
  const int kv = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z);
  keys_pass<Unit, T, D> pass{
      p, s, {maps, s.barriers, layout::producer}, place, b, kv, block_key, key, p.n.starts_of(b)};

  key_operand<Unit, D> own_k, own_v;
  const auto prepare = [&] {
    load_own_tiles<layout, D>(place, s, b, kv, key, p.n, p.vectors, 0, own_rows{p.k, own_k}, own_rows{p.v, own_v});
  };
  float dk[D / 16][Unit::elements], dv[D / 16][Unit::elements];
  clear(dk);
  clear(dv);
  const query_position begin = pass.first_of_head(kv * p.n.group());
  pass.fetch(begin);
  const auto load = [&](query_position at, int buffer) { pass.load(at, buffer); };
  const auto next = [&](query_position& at) { return pass.next(at); };
  const auto compute = [&](query_position at, int buffer, const auto& signal_next) {
    if (tiles > 1 && !pass.reads(at)) return signal_next();
    pass.add(at, buffer, signal_next, own_k, own_v, dk, dv);
  };
  run_pipeline<layout>(pass.copies, place.tile, begin, load, next, prepare, compute);
  float scale[Unit::rows], one[Unit::rows];
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) {
    scale[r] = p.n.scale;
    one[r] = 1.0f;
  }
  store_rows<Unit, D>(p.dk, b, kv, key + 16 * place.group, p.n, p.vectors, dk, scale);
  store_rows<Unit, D>(p.dv, b, kv, key + 16 * place.group, p.n, p.vectors, dv, one);
}

template <class Unit, int D>
struct queries_layout : block_layout<Unit, Unit::template queries_plan<D>> {
  static constexpr bool kept = !Unit::whole_tiles;
  using memory = key_memory<Unit, D, queries_layout::plan.stages>;
  static constexpr std::size_t shared = shared_bytes<kept, 2 * queries_layout::plan.tiles, tile_of<Unit, D>, memory>;
};

/// A lane's rows for dq: lse, D, and the scale.
template <class Unit, class T>
struct queries_rows {
  query_rows<Unit> rows;
  float shift[Unit::rows], dot[Unit::rows], scale;

  __device__ queries_rows(const attention_backward_pass<T>& p, const std::int32_t* starts, int b, int h, int first)
      : rows(starts, first, p.n.seq), scale(binary_scale(p.n)) {
    ROTOSCALE_UNROLL
    for (int r = 0; r < Unit::rows; ++r) {
      const std::int64_t row = p.n.row(b, h, rows.t[r] < p.n.seq ? rows.t[r] : p.n.seq - 1);
      shift[r] = to_binary(p.n.lse[row]);
      dot[r] = p.n.dots[row];
    }
  }
  /// Replaces scores by probabilities.
  template <int Count>
  __device__ void probabilities(float (&x)[Count][Unit::elements]) const {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count * Unit::elements; ++i) {
      float& score = x[i / Unit::elements][i % Unit::elements];
      score = nn::fma(score, scale, -shift[Unit::row_of_element(i % Unit::elements)]);
    }
    exponentials<Unit>(x);
  }
  /// Replaces dp by the gradient of the scores; x are the probabilities.
  template <int Count>
  __device__ void gradients(bool masked, int key, const float (&x)[Count][Unit::elements],
                            float (&dp)[Count][Unit::elements]) const {
    if (masked) {
      take_gradients<true>(key, x, dp);
    } else {
      take_gradients<false>(key, x, dp);
    }
  }

 private:
  template <bool Masked, int Count>
  __device__ void take_gradients(int key, const float (&x)[Count][Unit::elements],
                                 float (&dp)[Count][Unit::elements]) const {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count * Unit::elements; ++i) {
      const int e = i % Unit::elements, part = i / Unit::elements, r = Unit::row_of_element(e);
      const float d = x[part][e] * (dp[part][e] - dot[r]);
      dp[part][e] = !Masked || rows.sees(r, key + 16 * part + Unit::column(e)) ? d : 0.0f;
    }
  }
};

/// Computes dq. Grid as in forward_kernel.
template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__((queries_layout<Unit, D>::threads),
                                                          (queries_layout<Unit, D>::plan.blocks))
    queries_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p,
                   const ROTOSCALE_GRID_CONSTANT typename Unit::engine::maps maps) {
  using layout = queries_layout<Unit, D>;
  constexpr int tiles = layout::plan.tiles;
  auto& s = aligned_shared<typename layout::memory>();
  const place_in_block<Unit> place;
  const int block_first = static_cast<int>(grid_size().x - 1 - block_index().x) * tiles * tile,
            first = block_first + place.tile * tile;
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z), kv = h / p.n.group();
  const std::int32_t* const starts = p.n.starts_of(b);

  const tile_copies<Unit, layout::plan.stages> copies{maps, s.barriers, layout::producer};
  query_operand<Unit, D> q, d_o;
  const auto prepare = [&] {
    load_own_tiles<layout, D>(place, s, b, h, first, p.n, p.vectors, 0, own_rows{p.q, q}, own_rows{p.d_o, d_o});
  };

  const queries_rows<Unit, T> rows(p, starts, b, h, first + 16 * place.group);
  float dq[D / 16][Unit::elements];
  clear(dq);
  const key_range keys = keys_of_tile(starts, first, p.n.seq).template uniform<Unit>(),
                  all_keys = keys_of_tiles<tiles>(starts, block_first, p.n.seq).template uniform<Unit>();
  const auto load = [&](int key, int buffer) {
    copies.template load<D, layout::threads>(p.k, p.v, b, kv, key, p.n, p.vectors, s.k[buffer], s.v[buffer], buffer);
  };
  const auto next = [&](int& key) { return (key += tile) <= all_keys.end; };
  // x = q · kᵀ and dp = do · vᵀ, then exp2, ds = x * (dp - D), dq += ds · k.
  const auto compute = [&](int key, int buffer, const auto& signal_next) {
    if (tiles > 1 && !keys.has(key)) return signal_next();
    ROTOSCALE_UNROLL
    for (int half = 0; half < halves<Unit>; ++half) {
      float x[half_parts<Unit>][Unit::elements], dp[half_parts<Unit>][Unit::elements];
      const int part = half * half_parts<Unit>;
      multiply_rows<D>(Unit{}, q, s.k[buffer], part, x);
      multiply_rows<D>(Unit{}, d_o, s.v[buffer], part, dp);
      if (half == 0) signal_next();
      finish<1>(Unit{}, x);
      rows.probabilities(x);
      finish(Unit{}, dp);
      rows.gradients(key == first || starts != nullptr, key + 16 * part, x, dp);
      add_rows<D>(Unit{}, packed_rows<Unit, half_parts<Unit>>(dp), s.k[buffer], part, dq);
      finish(Unit{}, dq);
    }
  };
  run_pipeline<layout>(copies, place.tile, all_keys.begin, load, next, prepare, compute);
  float scale[Unit::rows];
  ROTOSCALE_UNROLL
  for (float& r : scale) r = p.n.scale;
  store_rows<Unit, D>(p.dq, b, h, first + 16 * place.group, p.n, p.vectors, dq, scale);
}

}  // namespace rotoscale::gpu::tiles
