// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Forward pass of attention on tensor cores, with online softmax. Loads and ping-pong scheduling are in
// attention_copies.hpp.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/math.hpp"
#include "gpu/nn/attention_copies.hpp"

namespace rotoscale::gpu::tiles {

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
  /// Replaces the scores of keys from `key` on by probabilities relative to `top`, the running row_max. `factor`
  /// rescales the sums so far.
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
        if (seen) largest = larger_number(largest, s[part][e]);  // NaN is ignored
      }
      largest = Unit::row_max(largest);
      const float base = largest == -__builtin_inff() ? 0.0f : largest;
      factor[r] = exp2_of<Unit>(nn::fma(top[r] - base, scale, 0.0f));  // fma: a bare product could be fused into exp2
      shift[r] = base * scale;
      top[r] = largest;
    }
    ROTOSCALE_UNROLL
    for (int i = 0; i < parts * Unit::elements; ++i) {
      float& x = s[i / Unit::elements][i % Unit::elements];
      x = nn::fma(x, scale, -shift[Unit::row_of_element(i % Unit::elements)]);
    }
    exponentials<Unit>(s);
    ROTOSCALE_UNROLL
    for (int i = 0; i < parts * Unit::elements; ++i) {
      const int e = i % Unit::elements, part = i / Unit::elements, r = Unit::row_of_element(e);
      if (Masked && !rows.sees(r, key + 16 * part + Unit::column(e))) s[part][e] = 0.0f;
      float& lane = sum[r][Unit::column_of_element(e)];
      lane = part == 0 ? nn::fma(lane, factor[r], s[part][e]) : lane + s[part][e];
    }
  }
};

/// Multiplies each row of sums by its factor. The factor is 1 if the row's maximum did not grow.
template <class Unit, int Count>
__device__ void rescale(float (&sum)[Count][Unit::elements], const float (&factor)[Unit::rows]) {
  bool any = false;
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) any |= !(factor[r] == 1.0f);
  if (!subgroup_any(any)) return;
  ROTOSCALE_UNROLL
  for (int i = 0; i < Count * Unit::elements; ++i) {
    sum[i / Unit::elements][i % Unit::elements] *= factor[Unit::row_of_element(i % Unit::elements)];
  }
}

/// Stores a group's rows of o and log-sum-exp.
template <class Unit, int D, class T>
__device__ void store_output(const attention_pass<T>& p, int b, int h, int first, const softmax_rows<Unit>& softmax,
                             const query_rows<Unit>& rows, const float (&o)[D / 16][Unit::elements]) {
  float inverse[Unit::rows];
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) {
    const float sum = Unit::fold(softmax.sum[r]);
    inverse[r] = 1.0f / sum;
    if (Unit::leads() && p.has_query(rows.t[r])) {
      p.n.lse[p.row(b, h, rows.t[r])] = canonical(nn::fma(softmax.top[r], p.n.scale, nn::log(sum)));
    }
  }
  store_rows<Unit, D>(p.o, b, h, first, p.n, p.vectors, o, inverse, p.past);
}

/// The product P · V of a tile. It runs at once, or, if the plan overlaps, together with Q · Kᵀ of the next tile.
/// `add(weights, buffer)` starts it.
template <class Unit, bool Overlaps>
struct last_product {
  packed_rows<Unit, parts> weights;
  int buffer = -1;  // -1: none pending

  /// Starts the pending P · V after this tile's Q · Kᵀ, calls signal_next(), and waits for Q · Kᵀ.
  template <class Add, class Signal, class First>
  __device__ void start(const Add& add, const Signal& signal_next, First& first) const {
    if (Overlaps && buffer >= 0) {
      add(weights, buffer);
      signal_next();
      tiles::finish<1>(Unit{}, first);
    } else {
      signal_next();
      tiles::finish(Unit{}, first);
    }
  }
  /// Waits for the pending product before the sum is rescaled.
  template <class Sum>
  __device__ void finish(Sum& sum) const {
    if constexpr (Overlaps) tiles::finish(Unit{}, sum);
  }
  /// Runs a tile's product, or keeps it pending.
  template <class Add, class Sum>
  __device__ void take(const packed_rows<Unit, parts>& of, int in_buffer, const Add& add, Sum& sum) {
    if constexpr (Overlaps) {
      weights = of;
      buffer = in_buffer;
    } else {
      add(of, in_buffer);
      tiles::finish(Unit{}, sum);
    }
  }
  /// Runs the pending product and calls signal_next() meanwhile, which loads into the buffer before the pending one's.
  template <class Add, class Sum, class Signal>
  __device__ void complete(const Add& add, Sum& sum, const Signal& signal_next) {
    if (Overlaps && buffer >= 0) add(weights, buffer);
    signal_next();
    finish(sum);
    buffer = -1;
  }
};

template <class Unit, int D>
struct forward_layout : block_layout<Unit, Unit::template forward_plan<D>> {
  static constexpr bool kept = !Unit::whole_tiles;
  using memory = key_memory<Unit, D, forward_layout::plan.stages>;
  static constexpr std::size_t shared = shared_bytes<kept, forward_layout::plan.tiles, tile_of<Unit, D>, memory>;
};

/// Computes o and lse. Grid: (tiles of queries, heads, batch), the last tiles first.
template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__((forward_layout<Unit, D>::threads),
                                                          (forward_layout<Unit, D>::plan.blocks))
    forward_kernel(const ROTOSCALE_GRID_CONSTANT attention_pass<T> p,
                   const ROTOSCALE_GRID_CONSTANT typename Unit::engine::maps maps) {
  using layout = forward_layout<Unit, D>;
  constexpr int tiles = layout::plan.tiles;
  auto& s = aligned_shared<typename layout::memory>();
  const place_in_block<Unit> place;
  const int block_first = p.first_query(tiles), first = block_first + place.tile * tile;
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z), kv = h / p.n.group();
  const std::int32_t* const starts = p.n.starts_of(b);

  const tile_copies<Unit, layout::plan.stages> copies{maps, s.barriers, layout::producer};
  query_operand<Unit, D> q;
  const auto prepare = [&] {
    load_own_tiles<layout, D>(place, s, b, h, first, p.n, p.vectors, p.past, own_rows{p.q, q});
  };
  const query_rows<Unit> rows(starts, first + 16 * place.group, p.n.seq);
  const float scale = binary_scale(p.n);
  softmax_rows<Unit> softmax;
  float o[D / 16][Unit::elements];
  clear(o);

  const key_range keys = keys_of_tile(starts, first, p.n.seq, p.past).template uniform<Unit>(),
                  all_keys = keys_of_tiles<tiles>(starts, block_first, p.n.seq, p.past).template uniform<Unit>();
  const auto load = [&](int key, int buffer) {
    copies.template load<D, layout::threads>(p.k, p.v, b, kv, key, p.n, p.vectors, s.k[buffer], s.v[buffer], buffer);
  };
  const auto next = [&](int& key) { return (key += tile) <= all_keys.end; };
  last_product<Unit, layout::plan.overlaps> last;
  const auto add = [&](const packed_rows<Unit, parts>& weights, int buffer) {
    add_rows<D>(Unit{}, weights, s.v[buffer], 0, o);
  };
  // x = q · kᵀ, then row_max and exp2 (softmax.take), o = o * factor + x · v.
  const auto compute = [&](int key, int buffer, const auto& signal_next) {
    if (tiles > 1 && !keys.has(key)) return last.complete(add, o, signal_next);
    float x[parts][Unit::elements];
    multiply_rows<D>(Unit{}, q, s.k[buffer], 0, x);
    last.start(add, signal_next, x);
    if (key == first || starts != nullptr) {
      softmax.template take<true>(x, rows, key, scale);
    } else {
      softmax.template take<false>(x, rows, key, scale);
    }
    last.finish(o);
    rescale<Unit>(o, softmax.factor);
    last.take(packed_rows<Unit, parts>(x), buffer, add, o);
  };
  run_pipeline<layout, layout::plan.overlaps ? 1 : 0>(copies, place.tile, all_keys.begin, load, next, prepare, compute);
  last.complete(add, o, [] {});

  store_output<Unit, D>(p, b, h, first + 16 * place.group, softmax, rows, o);
}

}  // namespace rotoscale::gpu::tiles
