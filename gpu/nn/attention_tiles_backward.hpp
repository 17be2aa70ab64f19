// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The backward pass of attention in tiles: dk and dv by tiles of keys, dq by tiles of queries. Scores and their
// gradients are computed in both, seven products instead of five, so that each sum has one owner and one order: no
// atomic additions, no counters, no sums of dq in memory.
#pragma once

#include "gpu/nn/attention_tiles.hpp"

namespace rotoscale::gpu::tiles {

inline constexpr int halves = 2, half_parts = parts / halves;  // scores of half a tile at a time are in registers

/// What a tile of queries brings for the gradients of keys.
template <class Unit, int D>
struct query_memory {
  feature_tile<D> q[Unit::stages], d_o[Unit::stages];
  float shift[Unit::stages][tile], dot[Unit::stages][tile];
  int begin[Unit::stages][tile];
};
/// Its keys and values, where registers have no room for them.
template <class Unit, int D>
struct own_keys {
  feature_tile<D> k, v;
};
template <class Unit, int D>
constexpr std::size_t keys_shared_bytes() {
  return sizeof(query_memory<Unit, D>) + (Unit::keeps_operands ? 0 : sizeof(own_keys<Unit, D>));
}

/// A group's 16 keys and values as first operands.
template <class Unit, int D, bool Kept = Unit::keeps_operands>
struct key_operands {
  const own_keys<Unit, D>* memory;
  int group;
  __device__ key_operands(const own_keys<Unit, D>* m, int g) : memory(m), group(g) {}
  __device__ void keep(const feature_tile<D>&, const feature_tile<D>&) {}
  __device__ typename Unit::fragment k(int i) const {
    return Unit::load_first(memory->k.at(group, i), feature_tile<D>::stride);
  }
  __device__ typename Unit::fragment v(int i) const {
    return Unit::load_first(memory->v.at(group, i), feature_tile<D>::stride);
  }
};
template <class Unit, int D>
struct key_operands<Unit, D, true> {
  int group;
  row_operand<Unit, D> keys, values;
  __device__ key_operands(const own_keys<Unit, D>*, int g) : group(g) {}
  __device__ void keep(const feature_tile<D>& k, const feature_tile<D>& v) {
    keys.load(k, group);
    values.load(v, group);
  }
  __device__ typename Unit::fragment k(int i) const { return keys.part[i]; }
  __device__ typename Unit::fragment v(int i) const { return values.part[i]; }
};

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
  __device__ void gradients(query_position at, int buffer, int half, float (&x)[half_parts][Unit::elements],
                            float (&dp)[half_parts][Unit::elements]) const {
    const float scale = binary_scale(p.n);
    ROTOSCALE_UNROLL
    for (int i = 0; i < half_parts * Unit::elements; ++i) {
      const int e = i % Unit::elements, part = i / Unit::elements;
      const int column = 16 * (half * half_parts + part) + Unit::column(e);
      const int own = key + 16 * group + Unit::row(Unit::row_of_element(e));
      const bool seen = own <= at.first + column && own >= s.begin[buffer][column];
      const float probability = nn::exp2(nn::fma(x[part][e], scale, -s.shift[buffer][column]));
      const float d = probability * (dp[part][e] - s.dot[buffer][column]);
      x[part][e] = seen ? probability : 0.0f;
      dp[part][e] = seen ? d : 0.0f;
    }
  }

  __device__ void add(query_position at, int buffer, const key_operands<Unit, D>& own,
                      float (&dk)[D / 16][Unit::elements], float (&dv)[D / 16][Unit::elements]) const {
    constexpr int stride = feature_tile<D>::stride;
    ROTOSCALE_UNROLL
    for (int half = 0; half < halves; ++half) {
      float x[half_parts][Unit::elements], dp[half_parts][Unit::elements];
      clear(x);
      clear(dp);
      ROTOSCALE_UNROLL
      for (int d = 0; d < D / 16; ++d) {
        const typename Unit::fragment k = own.k(d), v = own.v(d);
        ROTOSCALE_UNROLL
        for (int i = 0; i < half_parts; ++i) {
          const int part = half * half_parts + i;
          Unit::multiply(k, Unit::load_second(s.q[buffer].at(part, d), stride), x[i]);
          Unit::multiply(v, Unit::load_second(s.d_o[buffer].at(part, d), stride), dp[i]);
        }
      }
      gradients(at, buffer, half, x, dp);
      ROTOSCALE_UNROLL
      for (int i = 0; i < half_parts; ++i) {
        const int part = half * half_parts + i;
        add_rows<Unit>(Unit::as_operand(x[i]), s.d_o[buffer], part, dv);
        add_rows<Unit>(Unit::as_operand(dp[i]), s.q[buffer], part, dk);
      }
    }
  }
};

template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__(threads<Unit>)
    keys_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  auto* const memory = dynamic_shared<unsigned char>();
  auto& s = *reinterpret_cast<query_memory<Unit, D>*>(memory);
  auto* const keys = reinterpret_cast<own_keys<Unit, D>*>(memory + sizeof(query_memory<Unit, D>));
  const int key = static_cast<int>(block_index().x) * tile, kv = static_cast<int>(block_index().y);
  const int b = static_cast<int>(block_index().z), group = static_cast<int>(thread_index().x) / Unit::lanes;
  const keys_pass<Unit, T, D> pass{p, s, b, kv, key, group, p.n.starts_of(b)};

  key_operands<Unit, D> own(keys, group);
  feature_tile<D>& k = Unit::keeps_operands ? s.q[0] : keys->k;
  feature_tile<D>& v = Unit::keeps_operands ? s.d_o[0] : keys->v;
  load_tile<Unit, D>(p.k, b, kv, key, p.n, p.vectors, k);
  load_tile<Unit, D>(p.v, b, kv, key, p.n, p.vectors, v);
  if (Unit::keeps_operands) {
    wait_for_copies();
    block_barrier();
    own.keep(k, v);
  }
  float dk[D / 16][Unit::elements], dv[D / 16][Unit::elements];
  clear(dk);
  clear(dv);
  pipeline<Unit>(
      query_position{kv * p.n.group(), key}, [&](query_position at, int buffer) { pass.load(at, buffer); },
      [&](query_position& at) { return pass.next(at); },
      [&](query_position at, int buffer) { pass.add(at, buffer, own, dk, dv); });
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
[[maybe_unused]] static __global__ void __launch_bounds__(threads<Unit>)
    queries_kernel(const ROTOSCALE_GRID_CONSTANT attention_backward_pass<T> p) {
  auto& s = *dynamic_shared<key_memory<Unit, D>>();
  const int group = static_cast<int>(thread_index().x) / Unit::lanes;
  const int first = static_cast<int>(grid_size().x - 1 - block_index().x) * tile;
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z), kv = h / p.n.group();
  const std::int32_t* const starts = p.n.starts_of(b);

  row_operand<Unit, D> q, d_o;
  load_tile<Unit, D>(p.q, b, h, first, p.n, p.vectors, s.k[0]);
  load_tile<Unit, D>(p.d_o, b, h, first, p.n, p.vectors, s.v[0]);
  wait_for_copies();
  block_barrier();
  q.load(s.k[0], group);
  d_o.load(s.v[0], group);
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
  pipeline<Unit>(first_key_of(starts, first, p.n.seq), load, next, [&](int key, int buffer) {
    ROTOSCALE_UNROLL
    for (int half = 0; half < halves; ++half) {
      float x[half_parts][Unit::elements], dp[half_parts][Unit::elements];
      multiply_rows(q, s.k[buffer], half * half_parts, x);
      multiply_rows(d_o, s.v[buffer], half * half_parts, dp);
      ROTOSCALE_UNROLL
      for (int i = 0; i < half_parts; ++i) {
        const int part = half * half_parts + i;
        ROTOSCALE_UNROLL
        for (int e = 0; e < Unit::elements; ++e) {
          const int r = Unit::row_of_element(e);
          const float probability = nn::exp2(nn::fma(x[i][e], scale, -shift[r]));
          const float d = probability * (dp[i][e] - dot[r]);
          dp[i][e] = rows.sees(r, key + 16 * part + Unit::column(e)) ? d : 0.0f;
        }
        add_rows<Unit>(Unit::as_operand(dp[i]), s.k[buffer], part, dq);
      }
    }
  });
  store_rows<Unit, D>(p.dq, b, h, first + 16 * group, p.n, p.vectors, dq, factor);
}

}  // namespace rotoscale::gpu::tiles
