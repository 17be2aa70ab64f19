// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention in tiles on a matrix unit (attention-bf16-tile64x64-exp2deg3@UNIT): what the kernels share, and the forward
// pass. A block is four groups of lanes (warps, waves); each has 16 rows of a tile of 64, all of its columns, and keeps
// them in registers from one product to the next.
#pragma once

#include "gpu/dialect/bf16_tiles.hpp"
#include "gpu/nn/attention_arguments.hpp"

namespace rotoscale::gpu::tiles {

inline constexpr int tile = attention_tile, groups = 4, parts = tile / 16;  // parts: tiles of 16 of a tile

template <class Unit>
inline constexpr int threads = groups* Unit::lanes;

/// 64 rows of D features in shared memory. Rows are 16 bytes longer, so that eight of them lie in different banks.
template <int D>
struct feature_tile {
  static constexpr int stride = D + 8;
  alignas(16) std::uint16_t codes[tile * stride];

  /// Of part i of the rows, features from 16 j on.
  __device__ const std::uint16_t* at(int i, int j) const { return codes + i * 16 * stride + j * 16; }
};

template <class T>
__device__ inline std::uint32_t load_two(const T* x) {
  return pack_bf16(attention_load(x), attention_load(x + 1));
}
__device__ inline std::uint32_t load_two(const bf16* x) {
  return x[0].bits() | static_cast<std::uint32_t>(x[1].bits()) << 16;
}

/// Rows [first, first + 64) of a head as BF16, zero beyond the tensor; there after wait_for_copies and a barrier.
/// `vectors`: 16 bytes of a row may be loaded at once.
template <class Unit, int D, class T>
__device__ void load_tile(const head_tensor<const T>& x, int b, int h, int first, const attention_shape& n,
                          bool vectors, feature_tile<D>& to) {
  constexpr int pieces = D / 8;
  ROTOSCALE_UNROLL
  for (int i = 0; i < tile * pieces / threads<Unit>; ++i) {
    const int at = i * threads<Unit> + static_cast<int>(thread_index().x), row = at / pieces, column = at % pieces * 8;
    auto* const place = reinterpret_cast<vec16*>(to.codes + row * feature_tile<D>::stride + column);
    const bool inside = first + row < n.seq && column < n.dim;
    const T* const from = inside ? x.row(b, first + row, h) + column : nullptr;
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
    *reinterpret_cast<std::uint32_t*>(to) = attention_bf16(x) | attention_bf16(y) << 16;
  } else {
    attention_store(to, x);
    attention_store(to + 1, y);
  }
}

/// A group's 16 rows from `first` on, times a factor a row.
template <class Unit, int D, class T>
__device__ void store_rows(const head_tensor<T>& to, int b, int h, int first, const attention_shape& n, bool vectors,
                           const float (&x)[D / 16][Unit::elements], const float (&factor)[Unit::rows]) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < D / 16; ++i) {
    ROTOSCALE_UNROLL
    for (int e = 0; e < Unit::elements; e += 2) {  // columns come in pairs
      const int r = Unit::row_of_element(e), t = first + Unit::row(r), column = 16 * i + Unit::column(e);
      if (t >= n.seq || column >= n.dim) continue;
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
        if (seen && s[part][e] > largest) largest = s[part][e];
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

/// A group's rows of a tile that stay for the whole kernel, as first operands.
template <class Unit, int D>
struct row_operand {
  typename Unit::fragment part[D / 16];
  __device__ void load(const feature_tile<D>& x, int group) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < D / 16; ++i) part[i] = Unit::load_first(x.at(group, i), feature_tile<D>::stride);
  }
};

/// x = own rows times Count parts of a tile's rows, from `part` on: chains over the features.
template <class Unit, int D, int Count>
__device__ void multiply_rows(const row_operand<Unit, D>& own, const feature_tile<D>& rows, int part,
                              float (&x)[Count][Unit::elements]) {
  clear(x);
  ROTOSCALE_UNROLL
  for (int d = 0; d < D / 16; ++d) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Count; ++i) {
      Unit::multiply(own.part[d], Unit::load_second(rows.at(part + i, d), feature_tile<D>::stride), x[i]);
    }
  }
}
/// sum += weights, of a part of a tile's rows, times these rows.
template <class Unit, int D>
__device__ void add_rows(const typename Unit::fragment& weights, const feature_tile<D>& rows, int part,
                         float (&sum)[D / 16][Unit::elements]) {
  ROTOSCALE_UNROLL
  for (int d = 0; d < D / 16; ++d) {
    Unit::multiply(weights, Unit::load_second_turned(rows.at(part, d), feature_tile<D>::stride), sum[d]);
  }
}

/// Leads compute(buffer) through pairs of tiles that load(position, buffer) brings: the next one comes while one is
/// computed on, where there are two buffers. `next` moves a position on, false at the end.
template <class Unit, class Position, class Load, class Next, class Compute>
__device__ void pipeline(Position at, const Load& load, const Next& next, const Compute& compute) {
  if (Unit::stages == 1) {
    do {
      block_barrier();
      load(at, 0);
      wait_for_copies();
      block_barrier();
      compute(at, 0);
    } while (next(at));
    return;
  }
  load(at, 0);
  int buffer = 0;
  for (bool more = true; more; buffer ^= 1) {
    wait_for_copies();
    block_barrier();
    const Position now = at;
    more = next(at);
    if (more) load(at, buffer ^ 1);
    compute(now, buffer);
  }
}

template <class Unit, int D>
struct key_memory {
  feature_tile<D> k[Unit::stages], v[Unit::stages];
};

/// A grid of (tiles of queries, heads, batch) blocks, the last tile first.
template <class Unit, class T, int D>
[[maybe_unused]] static __global__ void __launch_bounds__(threads<Unit>)
    forward_kernel(const ROTOSCALE_GRID_CONSTANT attention_pass<T> p) {
  auto& s = *dynamic_shared<key_memory<Unit, D>>();
  const int group = static_cast<int>(thread_index().x) / Unit::lanes;
  const int first = static_cast<int>(grid_size().x - 1 - block_index().x) * tile;
  const int h = static_cast<int>(block_index().y), b = static_cast<int>(block_index().z), kv = h / p.n.group();
  const std::int32_t* const starts = p.n.starts_of(b);

  row_operand<Unit, D> q;
  load_tile<Unit, D>(p.q, b, h, first, p.n, p.vectors, s.k[0]);
  wait_for_copies();
  block_barrier();
  q.load(s.k[0], group);
  block_barrier();

  const query_rows<Unit> rows(starts, first + 16 * group, p.n.seq);
  const float scale = binary_scale(p.n);
  softmax_rows<Unit> softmax;
  float o[D / 16][Unit::elements];
  clear(o);
  const auto load = [&](int key, int buffer) {
    load_tile<Unit, D>(p.k, b, kv, key, p.n, p.vectors, s.k[buffer]);
    load_tile<Unit, D>(p.v, b, kv, key, p.n, p.vectors, s.v[buffer]);
  };
  const auto next = [&](int& key) { return (key += tile) <= first; };
  pipeline<Unit>(first_key_of(starts, first, p.n.seq), load, next, [&](int key, int buffer) {
    float x[parts][Unit::elements];
    multiply_rows(q, s.k[buffer], 0, x);
    if (key == first || starts != nullptr) {
      softmax.template take<true>(x, rows, key, scale);
    } else {
      softmax.template take<false>(x, rows, key, scale);
    }
    ROTOSCALE_UNROLL
    for (int d = 0; d < D / 16; ++d) {
      ROTOSCALE_UNROLL
      for (int e = 0; e < Unit::elements; ++e) o[d][e] *= softmax.factor[Unit::row_of_element(e)];
    }
    ROTOSCALE_UNROLL
    for (int i = 0; i < parts; ++i) add_rows<Unit>(Unit::as_operand(x[i]), s.v[buffer], i, o);
  });

  float inverse[Unit::rows];
  ROTOSCALE_UNROLL
  for (int r = 0; r < Unit::rows; ++r) {
    const float sum = Unit::fold(softmax.sum[r]);
    inverse[r] = 1.0f / sum;
    if (Unit::leads() && rows.t[r] < p.n.seq) {
      p.n.lse[p.n.row(b, h, rows.t[r])] = canonical(nn::fma(softmax.top[r], p.n.scale, nn::log(sum)));
    }
  }
  store_rows<Unit, D>(p.o, b, h, first + 16 * group, p.n, p.vectors, o, inverse);
}

}  // namespace rotoscale::gpu::tiles
