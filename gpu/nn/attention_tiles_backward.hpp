// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The backward pass of attention in tiles: dk and dv by tiles of keys, dq by tiles of queries. Scores and their
// gradients are computed in both, seven products instead of five, so that each sum has one owner and one order: no
// atomic additions, no counters, no sums of dq in memory.
#pragma once

#include "gpu/nn/attention_tiles.hpp"

namespace rotoscale::gpu::tiles {

/// Scores of half a tile at a time are in registers, or of a whole one.
template <class Unit>
inline constexpr int halves = Unit::whole_tiles ? 1 : 2;
template <class Unit>
inline constexpr int half_parts = parts / halves<Unit>;

/// What a tile of queries brings for the gradients of keys.
template <class Unit, int D>
struct query_memory {
  tile_of<Unit, D> q[Unit::stages], d_o[Unit::stages];
  float shift[Unit::stages][tile], dot[Unit::stages][tile];
  int begin[Unit::stages][tile];
};
/// Its keys and values, where registers have no room for them.
template <class Unit, int D>
struct own_keys {
  tile_of<Unit, D> k, v;
};
template <class Unit, int D>
constexpr std::size_t keys_shared_bytes() {
  return sizeof(query_memory<Unit, D>) + (Unit::keeps_operands ? 0 : sizeof(own_keys<Unit, D>)) +
         alignof(query_memory<Unit, D>);
}

template <class Unit, int D>
using key_operand = std::conditional_t<Unit::keeps_operands, kept_rows<Unit, D>, shared_rows<Unit, D>>;

/// A tile of queries of a head.
struct query_position {
  int h, first;
};

/// dk and dv of a tile of keys from the query heads of its group, one after the other. A grid of (tiles of keys, key
/// heads, batch) blocks.
template <class Unit, class T, int D>
struct keys_pass {
  const attention_backward_pass<T>& p;
  query_memory<Unit, D>& s;
  int b, kv, key, group;
  const std::int32_t* starts;

  __device__ void load(query_position at, int buffer) const {
    load_tile<Unit, D>(p.q, b, at.h, at.first, p.n, p.vectors, s.q[buffer]);
    load_tile<Unit, D>(p.d_o, b, at.h, at.first, p.n, p.vectors, s.d_o[buffer]);
    const int i = static_cast<int>(thread_index().x), t = at.first + i;
    if (i >= tile) return;
    const bool inside = t < p.n.seq;
    s.shift[buffer][i] = inside ? to_binary(p.n.lse[p.n.row(b, at.h, t)]) : 0.0f;
    s.dot[buffer][i] = inside ? p.n.dots[p.n.row(b, at.h, t)] : 0.0f;
    s.begin[buffer][i] = inside ? start_of(starts, t) : p.n.seq;  // beyond the sequence: nothing is seen
  }
  /// Is the pair of tiles read?
  __device__ bool reads(int first) const { return first_key_of(starts, first, p.n.seq) <= key; }
  __device__ bool next(query_position& at) const {
    do {
      at.first += tile;
      if (at.first >= p.n.seq) {
        at.first = key;  // the tile of queries that are these keys always is
        return ++at.h < (kv + 1) * p.n.group();
      }
    } while (!reads(at.first));
    return true;
  }

  /// Scores and dp of half a tile become probabilities and gradients: rows are keys, columns queries.
  __device__ void gradients(query_position at, int buffer, int half, float (&x)[half_parts<Unit>][Unit::elements],
                            float (&dp)[half_parts<Unit>][Unit::elements]) const {
    const float scale = binary_scale(p.n);
    ROTOSCALE_UNROLL
    for (int i = 0; i < half_parts<Unit> * Unit::elements; ++i) {
      const int e = i % Unit::elements, part = i / Unit::elements;
      const int column = 16 * (half * half_parts<Unit> + part) + Unit::column(e);
      const int own = key + 16 * group + Unit::row(Unit::row_of_element(e));
      const bool seen = own <= at.first + column && own >= s.begin[buffer][column];
      const float probability = nn::exp2(nn::fma(x[part][e], scale, -s.shift[buffer][column]));
      const float d = probability * (dp[part][e] - s.dot[buffer][column]);
      x[part][e] = seen ? probability : 0.0f;
      dp[part][e] = seen ? d : 0.0f;
    }
  }

  __device__ void add(query_position at, int buffer, const key_operand<Unit, D>& k, const key_operand<Unit, D>& v,
                      float (&dk)[D / 16][Unit::elements], float (&dv)[D / 16][Unit::elements]) const {
    ROTOSCALE_UNROLL
    for (int half = 0; half < halves<Unit>; ++half) {
      const int part = half * half_parts<Unit>;
      float x[half_parts<Unit>][Unit::elements], dp[half_parts<Unit>][Unit::elements];
      multiply_rows<D>(Unit{}, k, s.q[buffer], part, x);
      multiply_rows<D>(Unit{}, v, s.d_o[buffer], part, dp);
      finish(Unit{}, x, dp);
      gradients(at, buffer, half, x, dp);
      add_rows<D>(Unit{}, x, s.d_o[buffer], part, dv);
      add_rows<D>(Unit{}, dp, s.q[buffer], part, dk);
      finish(Unit{}, dv, dk);
    }
  }
};

template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__(threads<Unit>)
    keys_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  auto& s = aligned_shared<query_memory<Unit, D>>();
  auto* const keys = reinterpret_cast<own_keys<Unit, D>*>(&s + 1);
  const int key = static_cast<int>(block_index().x) * tile, kv = static_cast<int>(block_index().y);
  const int b = static_cast<int>(block_index().z), group = static_cast<int>(thread_index().x) / Unit::lanes;
  const keys_pass<Unit, T, D> pass{p, s, b, kv, key, group, p.n.starts_of(b)};

  key_operand<Unit, D> own_k, own_v;
  tile_of<Unit, D>& k = Unit::keeps_operands ? s.q[0] : keys->k;
  tile_of<Unit, D>& v = Unit::keeps_operands ? s.d_o[0] : keys->v;
  load_tile<Unit, D>(p.k, b, kv, key, p.n, p.vectors, k);
  load_tile<Unit, D>(p.v, b, kv, key, p.n, p.vectors, v);
  if (Unit::keeps_operands) {
    wait_for_copies();
    block_barrier();
  }
  own_k.take(k, group);
  own_v.take(v, group);
  float dk[D / 16][Unit::elements], dv[D / 16][Unit::elements];
  clear(dk);
  clear(dv);
  pipeline<Unit, Unit::stages>(
      query_position{kv * p.n.group(), key}, [&](query_position at, int buffer) { pass.load(at, buffer); },
      [&](query_position& at) { return pass.next(at); },
      [&](query_position at, int buffer) { pass.add(at, buffer, own_k, own_v, dk, dv); });
  float scale[Unit::rows], one[Unit::rows];
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) {
    scale[r] = p.n.scale;
    one[r] = 1.0f;
  }
  store_rows<Unit, D>(p.dk, b, kv, key + 16 * group, p.n, p.vectors, dk, scale);
  store_rows<Unit, D>(p.dv, b, kv, key + 16 * group, p.n, p.vectors, dv, one);
}

/// dq; grid as forward_kernel.
template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__(threads<Unit>, Unit::dq_blocks)
    queries_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  auto& s = aligned_shared<key_memory<Unit, D>>();
  const int group = static_cast<int>(thread_index().x) / Unit::lanes;
  const int first = static_cast<int>(grid_size().x - 1 - block_index().x) * tile;
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z), kv = h / p.n.group();
  const std::int32_t* const starts = p.n.starts_of(b);

  query_operand<Unit, D> q, d_o;
  auto* const own = reinterpret_cast<tile_of<Unit, D>*>(&s + 1);
  tile_of<Unit, D>&own_q = Unit::whole_tiles ? own[0] : s.k[0], &own_d_o = Unit::whole_tiles ? own[1] : s.v[0];
  load_tile<Unit, D>(p.q, b, h, first, p.n, p.vectors, own_q);
  load_tile<Unit, D>(p.d_o, b, h, first, p.n, p.vectors, own_d_o);
  wait_for_copies();
  block_barrier();
  q.take(own_q, group);
  d_o.take(own_d_o, group);
  block_barrier();

  const query_rows<Unit> rows(starts, first + 16 * group, p.n.seq);
  float shift[Unit::rows], dot[Unit::rows], factor[Unit::rows];
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) {
    const std::int64_t row = p.n.row(b, h, rows.t[r] < p.n.seq ? rows.t[r] : p.n.seq - 1);
    shift[r] = to_binary(p.n.lse[row]);
    dot[r] = p.n.dots[row];
    factor[r] = p.n.scale;
  }
  const float scale = binary_scale(p.n);
  float dq[D / 16][Unit::elements];
  clear(dq);
  const auto load = [&](int key, int buffer) {
    load_tile<Unit, D>(p.k, b, kv, key, p.n, p.vectors, s.k[buffer]);
    load_tile<Unit, D>(p.v, b, kv, key, p.n, p.vectors, s.v[buffer]);
  };
  const auto next = [&](int& key) { return (key += tile) <= first; };
  pipeline<Unit, Unit::dq_stages>(first_key_of(starts, first, p.n.seq), load, next, [&](int key, int buffer) {
    ROTOSCALE_UNROLL
    for (int half = 0; half < halves<Unit>; ++half) {
      float x[half_parts<Unit>][Unit::elements], dp[half_parts<Unit>][Unit::elements];
      const int part = half * half_parts<Unit>;
      multiply_rows<D>(Unit{}, q, s.k[buffer], part, x);
      multiply_rows<D>(Unit{}, d_o, s.v[buffer], part, dp);
      finish(Unit{}, x, dp);
      ROTOSCALE_UNROLL
      for (int i = 0; i < half_parts<Unit> * Unit::elements; ++i) {
        const int e = i % Unit::elements, own_part = i / Unit::elements, r = Unit::row_of_element(e);
        const float probability = nn::exp2(nn::fma(x[own_part][e], scale, -shift[r]));
        const float d = probability * (dp[own_part][e] - dot[r]);
        dp[own_part][e] = rows.sees(r, key + 16 * (part + own_part) + Unit::column(e)) ? d : 0.0f;
      }
      add_rows<D>(Unit{}, dp, s.k[buffer], part, dq);
      finish(Unit{}, dq);
    }
  });
  store_rows<Unit, D>(p.dq, b, h, first + 16 * group, p.n, p.vectors, dq, factor);
}

}  // namespace rotoscale::gpu::tiles
