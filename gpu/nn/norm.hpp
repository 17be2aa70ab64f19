// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// RMSNorm's kernels. Sixteen lanes sum a row, each in a chain, so a block brings several rows to shared memory at once
// and sums them side by side. Rows that do not fit there are read from global memory again.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/nn/rows.hpp"

namespace rotoscale::gpu {

/// Bytes from a row to the next in shared memory: 64 past a multiple of 128, so that the two rows that a warp sums lie
/// in different banks.
template <class T>
ROTOSCALE_HD constexpr unsigned row_pitch(unsigned cols) {
  return (cols * static_cast<unsigned>(sizeof(T)) + 127) / 128 * 128 + 64;
}

/// A thread's steps over the vectors of some rows, along rows first, without a division in each.
struct vec8_walk {
  unsigned row, vec8;

  __device__ explicit vec8_walk(unsigned vec8s)
      : row(thread_index().x / vec8s),
        vec8(thread_index().x % vec8s),
        vec8s_(vec8s),
        rows_a_step_(block_size().x / vec8s),
        vec8s_a_step_(block_size().x % vec8s) {}
  __device__ void step() {
    row += rows_a_step_;
    vec8 += vec8s_a_step_;
    if (vec8 >= vec8s_) {
      vec8 -= vec8s_;
      ++row;
    }
  }

 private:
  unsigned vec8s_, rows_a_step_, vec8s_a_step_;
};

/// What a block does with `rows` rows, a thread four vec8 at a time: load(i, row, vec8) for all of them, then
/// use(i, row, vec8).
template <class Load, class Use>
__device__ inline void for_each_four_vec8(unsigned rows, unsigned vec8s, const Load& load, const Use& use) {
  vec8_walk at(vec8s);
  while (at.row < rows) {
    vec8_walk behind = at;
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i, at.step()) {
      if (at.row < rows) load(i, at.row, at.vec8);
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i, behind.step()) {
      if (behind.row < rows) use(i, behind.row, behind.vec8);
    }
  }
}

/// A vec8 to shared memory at a multiple of 16 bytes, what lies beyond the row as 0; after wait_for_copies.
template <class T>
__device__ inline void stage_vec8(T* to, const T* from, unsigned count, bool vectors) {
  if (vectors) {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < stored_vec8<T>::vecs; ++i) {
      copy_async(reinterpret_cast<vec16*>(to) + i, reinterpret_cast<const vec16*>(from) + i);
    }
    return;
  }
  stored_vec8<T> vec8;
  vec8.load(from, count, false);
  vec8.store(to, vec8_elements, true);
}

/// y = norm(sum), sum = x + branch; without a branch the sum is x itself and is not written, without a y there is only
/// rstd.
template <class T>
struct norm_args {
  row_extents e;
  row_span<const T> x, branch;
  row_span<T> sum, y;
  const float* gain = nullptr;
  float* rstd = nullptr;
  float eps = 0.0f;
  unsigned block_rows = 0;  ///< at most max_norm_rows
};
inline constexpr unsigned max_norm_rows = 16;

/// The sums of a block's rows, to memory and to keep(row, vec8, sum).
template <class T, class Keep>
__device__ inline void add_branch(const norm_args<T>& a, index_t row0, unsigned rows, const Keep& keep) {
  stored_vec8<T> x[4], branch[4];
  for_each_four_vec8(
      rows, a.e.vec8s,
      [&](unsigned i, unsigned r, unsigned p) {
        x[i].load(a.x[row0 + r] + p * vec8_elements, a.e.count(p), a.e.vectors);
        branch[i].load(a.branch[row0 + r] + p * vec8_elements, a.e.count(p), a.e.vectors);
      },
      [&](unsigned i, unsigned r, unsigned p) {
        float u[vec8_elements], v[vec8_elements];
        x[i].widen(u);
        branch[i].widen(v);
        ROTOSCALE_UNROLL
        for (unsigned j = 0; j < vec8_elements; ++j) u[j] += v[j];
        x[i].narrow(u);
        x[i].store(a.sum[row0 + r] + p * vec8_elements, a.e.count(p), a.e.vectors);
        keep(r, p, x[i]);
      });
}

/// x becomes its norm.
template <class T>
__device__ inline void norm_vec8(stored_vec8<T>& x, float rstd, const float* gain_at, unsigned count, bool vectors) {
  float u[vec8_elements], gain[vec8_elements];
  x.widen(u);
  load_floats(gain_at, count, vectors, gain);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) u[i] = nn::rms_normed(u[i], rstd, gain[i]);
  x.narrow(u);
}

template <class T, bool Residual, bool Staged>
__global__ void __launch_bounds__(row_threads) norm_kernel(const ROTOSCALE_GRID_CONSTANT norm_args<T> a) {
  const unsigned t = thread_index().x, pitch = row_pitch<T>(a.e.cols);
  const index_t row0 = block_index().x * index_t{a.block_rows};
  const unsigned rows = a.e.rows - row0 < a.block_rows ? static_cast<unsigned>(a.e.rows - row0) : a.block_rows;
  auto* const staged = dynamic_shared<unsigned char>();
  auto& rstd = block_shared<float[max_norm_rows]>();
  const auto row_of = [&](unsigned r) {
    return Staged ? reinterpret_cast<const T*>(staged + r * pitch) : Residual ? a.sum[row0 + r] : a.x[row0 + r];
  };
  const auto staged_row = [&](unsigned r) { return reinterpret_cast<T*>(staged + r * pitch); };
  // 1. What is normed, as it is stored.
  if constexpr (Residual) {
    add_branch(a, row0, rows, [&](unsigned r, unsigned p, const stored_vec8<T>& sum) {
      if constexpr (Staged) sum.store(staged_row(r) + p * vec8_elements, vec8_elements, true);
    });
  } else if constexpr (Staged) {
    for (vec8_walk at(a.e.vec8s); at.row < rows; at.step()) {
      const unsigned col = at.vec8 * vec8_elements;
      stage_vec8(staged_row(at.row) + col, a.x[row0 + at.row] + col, a.e.count(at.vec8), a.e.vectors);
    }
    wait_for_copies();
  }
  block_barrier();
  // 2. Its squares, a row by 16 lanes.
  for (unsigned r = t / 16; r - t / 16 % 2 < rows; r += block_size().x / 16) {
    const T* const row = row_of(r < rows ? r : 0);
    const float squares = lane_sum(r < rows ? a.e.cols : 0, t % 16, [&](unsigned i, float sum) {
      const float x = widened(row[i]);
      return nn::fma(x, x, sum);
    });
    if (t % 16 == 0 && r < rows) {
      rstd[r] = nn::rms_reciprocal(squares, a.e.cols, a.eps);
      a.rstd[row0 + r] = rstd[r];
    }
  }
  if (a.y.data == nullptr) return;
  block_barrier();
  // 3. The norm.
  for (vec8_walk at(a.e.vec8s); at.row < rows; at.step()) {
    const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
    stored_vec8<T> x;
    x.load(row_of(at.row) + col, Staged ? vec8_elements : count, Staged || a.e.vectors);
    norm_vec8(x, rstd[at.row], a.gain + col, count, a.e.vectors);
    x.store(a.y[row0 + at.row] + col, count, a.e.vectors);
  }
}

/// dx += the gradient of y = norm(x); `partial` gets the gain's chains over 64 rows, a row for each; null: frozen.
template <class T>
struct norm_gradient_args {
  row_extents e;
  row_span<const T> dy, x;
  row_span<T> dx;
  const float *gain = nullptr, *rstd = nullptr;
  float* partial = nullptr;
  unsigned group_rows = 0;  ///< that are staged at once; at most max_norm_rows
};

/// Floats between the terms of neighbouring lanes: even, for two-float loads; padded against bank conflicts.
ROTOSCALE_HD constexpr unsigned lane_stride(unsigned cols) { return (cols + 63) / 64 * 4 + 2; }

/// fma(a, b, sum) over n terms from +0 on; both begin at multiples of 8 bytes.
__device__ inline float chain_of_products(const float* a, const float* b, unsigned n) {
  struct alignas(8) pair {
    float first, second;
  };
  float sum = 0.0f;
  ROTOSCALE_UNROLL_16
  for (unsigned i = 0; i < n / 2; ++i) {
    const pair p = reinterpret_cast<const pair*>(a)[i], q = reinterpret_cast<const pair*>(b)[i];
    sum = nn::fma(p.first, q.first, sum);
    sum = nn::fma(p.second, q.second, sum);
  }
  return n % 2 == 0 ? sum : nn::fma(a[n - 1], b[n - 1], sum);
}

/// A block's state in its 64 rows: dy, x and dx of a group of rows are in shared memory, those of the next two groups
/// are being copied there.
inline constexpr unsigned norm_stages = 3;
template <class T>
struct norm_gradient_group {
  const norm_gradient_args<T>& a;
  unsigned char* memory;
  index_t row0;
  unsigned rows, first, pitch;

  enum tensor : unsigned { dy, x, dx };
  __device__ T* staged(unsigned r, unsigned which) const {
    const unsigned stage = first / a.group_rows % norm_stages;
    return reinterpret_cast<T*>(memory + ((stage * a.group_rows + r) * 3 + which) * pitch);
  }
  __device__ const T* source(unsigned r, unsigned which) const {
    return which == dx ? a.dx[row0 + first + r] : (which == x ? a.x : a.dy)[row0 + first + r];
  }
  __device__ unsigned count() const { return rows - first < a.group_rows ? rows - first : a.group_rows; }
  __device__ void fetch() const {
    for (vec8_walk at(a.e.vec8s); at.row < 3 * count(); at.step()) {
      const unsigned col = at.vec8 * vec8_elements, r = at.row / 3, which = at.row % 3;
      stage_vec8(staged(r, which) + col, source(r, which) + col, a.e.count(at.vec8), a.e.vectors);
    }
  }
};

/// The pull of each row of a group (nn::rms_pull), by 16 lanes a row, read from global memory.
template <class T>
__device__ inline void compute_pulls_unstaged(const norm_gradient_group<T>& g, float* pulls) {
  const unsigned t = thread_index().x, count = g.count(), cols = g.a.e.cols;
  for (unsigned r = t / 16; r - t / 16 % 2 < count; r += block_size().x / 16) {
    const T *const dy = g.source(r < count ? r : 0, g.dy), *const x = g.source(r < count ? r : 0, g.x);
    const float dot = lane_sum(r < count ? cols : 0, t % 16, [&](unsigned i, float sum) {
      return nn::fma(g.a.gain[i] * widened(dy[i]), widened(x[i]), sum);
    });
    if (t % 16 == 0 && r < count) pulls[r] = nn::rms_pull(dot, cols, g.a.rstd[g.row0 + g.first + r]);
  }
}

/// The same of staged rows. One warp has to go through the chains, so all threads first lay out their terms for it: the
/// steps of a lane side by side, for gain · dy and for x.
template <class T>
__device__ inline void compute_pulls(const norm_gradient_group<T>& g, float* pulls) {
  const unsigned t = thread_index().x, count = g.count(), cols = g.a.e.cols, steps = lane_stride(cols);
  float* const terms = reinterpret_cast<float*>(g.memory + 3 * norm_stages * g.a.group_rows * g.pitch);
  for (vec8_walk at(g.a.e.vec8s); at.row < count; at.step()) {
    const unsigned col = at.vec8 * vec8_elements, some = g.a.e.count(at.vec8);
    float dy[vec8_elements], x[vec8_elements], gain[vec8_elements];
    stored_vec8<T> vec8;
    vec8.load(g.staged(at.row, g.dy) + col, vec8_elements, true);
    vec8.widen(dy);
    vec8.load(g.staged(at.row, g.x) + col, vec8_elements, true);
    vec8.widen(x);
    load_floats(g.a.gain + col, some, g.a.e.vectors, gain);
    float* const to = terms + (at.row * 32 + col % 16) * steps + col / 16;
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) {
      to[i * steps] = gain[i] * dy[i];
      to[(16 + i) * steps] = x[i];
    }
  }
  block_barrier();
  for (unsigned r = t / 16; r - t / 16 % 2 < count; r += block_size().x / 16) {
    const float* const lane = terms + ((r < count ? r : 0) * 32 + t % 16) * steps;
    const float dot = fold_lanes(chain_of_products(lane, lane + 16 * steps, r < count ? (cols + 15 - t % 16) / 16 : 0));
    if (t % 16 == 0 && r < count) pulls[r] = nn::rms_pull(dot, cols, g.a.rstd[g.row0 + g.first + r]);
  }
}

/// The gradients of one vec8 of a group's rows; `sums` are the gain's.
template <class T, bool Staged>
__device__ inline void update_vec8(const norm_gradient_group<T>& g, const float* pulls, unsigned p,
                                   float (&sums)[vec8_elements]) {
  const unsigned col = p * vec8_elements, count = g.a.e.count(p);
  const auto load = [&](unsigned r, unsigned which, float(&to)[vec8_elements]) {
    stored_vec8<T> vec8;
    if constexpr (Staged) {
      vec8.load(g.staged(r, which) + col, vec8_elements, true);
    } else {
      vec8.load(g.source(r, which) + col, count, g.a.e.vectors);
    }
    vec8.widen(to);
  };
  float gain[vec8_elements];
  load_floats(g.a.gain + col, count, g.a.e.vectors, gain);
  for (unsigned r = 0; r < g.count(); ++r) {
    const float rstd = g.a.rstd[g.row0 + g.first + r], pull = pulls[r];
    float dy[vec8_elements], x[vec8_elements], dx[vec8_elements];
    load(r, g.dy, dy);
    load(r, g.x, x);
    load(r, g.dx, dx);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) {
      dx[i] = nn::rms_gradient(x[i], pull, gain[i], dy[i], rstd, dx[i]);
      sums[i] = nn::fma(dy[i] * x[i], rstd, sums[i]);
    }
    stored_vec8<T> to;
    to.narrow(dx);
    to.store(g.a.dx[g.row0 + g.first + r] + col, count, g.a.e.vectors);
  }
}

/// A block takes 64 rows in groups. Vec8s: vectors of 8 columns a thread, column sums in registers; 0: rows are not
/// staged, sums in `partial`.
template <class T, unsigned Vec8s>
__global__ void __launch_bounds__(row_threads)
    norm_gradient_kernel(const ROTOSCALE_GRID_CONSTANT norm_gradient_args<T> a) {
  constexpr bool staged = Vec8s != 0;
  const unsigned t = thread_index().x, threads = block_size().x;
  auto& pulls = block_shared<float[max_norm_rows]>();
  const index_t row0 = block_index().x * nn::gain_chunk, left = a.e.rows - row0;
  norm_gradient_group<T> g{a,    dynamic_shared<unsigned char>(),
                           row0, static_cast<unsigned>(left < nn::gain_chunk ? left : nn::gain_chunk),
                           0,    row_pitch<T>(a.e.cols)};
  float* const partial = a.partial + block_index().x * index_t{a.e.cols};
  float sums[staged ? Vec8s : 1][vec8_elements] = {};
  const auto fetch = [&](unsigned groups_ahead) {
    norm_gradient_group<T> later = g;
    later.first += groups_ahead * a.group_rows;
    if (staged && later.first < g.rows) later.fetch();
    end_copy_group();
  };
  fetch(0);
  fetch(1);
  for (; g.first < g.rows; g.first += a.group_rows) {
    wait_for_all_but<1>();
    block_barrier();
    fetch(2);
    if constexpr (staged) {
      compute_pulls(g, pulls);
    } else {
      compute_pulls_unstaged(g, pulls);
    }
    block_barrier();
    if constexpr (staged) {
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < Vec8s; ++k) {
        if (t + k * threads < a.e.vec8s) update_vec8<T, true>(g, pulls, t + k * threads, sums[k]);
      }
    } else {
      for (unsigned p = t; p < a.e.vec8s; p += threads) {
        const unsigned col = p * vec8_elements;
        for (float& sum : sums[0]) sum = 0.0f;
        if (a.partial != nullptr && g.first != 0) load_floats(partial + col, a.e.count(p), false, sums[0]);
        update_vec8<T, false>(g, pulls, p, sums[0]);
        if (a.partial != nullptr) store_floats(partial + col, a.e.count(p), sums[0]);
      }
    }
  }
  if constexpr (staged) {
    if (a.partial == nullptr) return;
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < Vec8s; ++k) {
      const unsigned p = t + k * threads;
      if (p < a.e.vec8s) store_floats(partial + p * vec8_elements, a.e.count(p), sums[k]);
    }
  }
}

/// dgain += the sum of the partial rows in order.
inline constexpr unsigned gain_threads = 32, gain_batch = 32;
struct gain_sum_args {
  const float* partial = nullptr;
  float* dgain = nullptr;
  index_t chunks = 0;
  unsigned cols = 0;
};
[[maybe_unused]] static __global__ void __launch_bounds__(gain_threads)
    gain_sum_kernel(const ROTOSCALE_GRID_CONSTANT gain_sum_args a) {
  const unsigned col = block_index().x * gain_threads + thread_index().x;
  if (col >= a.cols) return;
  float sum = 0.0f;
  index_t c = 0;
  for (; c + gain_batch <= a.chunks; c += gain_batch) {
    float some[gain_batch];
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < gain_batch; ++i) some[i] = a.partial[(c + i) * a.cols + col];
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < gain_batch; ++i) sum += some[i];
  }
  for (; c < a.chunks; ++c) sum += a.partial[c * a.cols + col];
  a.dgain[col] += sum;
}

}  // namespace rotoscale::gpu
