// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Backward kernels of RMSNorm and LayerNorm. A block has the 64 rows of one chain of the gain's gradient, in a pipeline
// of groups. Concurrent are gradients of group i, dot products of group i + 1 by separate warps, and copies of groups
// i + 2 (and i + 3) to shared memory.
#pragma once

#include "gpu/nn/norm.hpp"

namespace rotoscale::gpu {

/// dx += gradient of y = norm(x). `partial` receives one row per 64 rows: that chain's part of the gain's gradient,
/// then as many rows for the bias of LayerNorm, then as many of the columns of dx. Null: gain and bias are frozen.
template <class T>
struct norm_gradient_args {
  row_extents e;
  row_span<const T> dy, x;
  row_span<T> dx;
  const float *gain = nullptr, *rstd = nullptr, *mean = nullptr;
  float* partial = nullptr;
  bool adds_dx = false;  ///< adds the columns of dx

  /// First row of the parts of the bias (1) or of dx (2).
  __device__ float* parts_of(unsigned which) const {
    return partial + which * ((e.rows + nn::gain_chunk - 1) / nn::gain_chunk) * index_t{e.cols};
  }
};

/// Threads that compute a group's dot products, 16 per row.
template <unsigned Rows>
inline constexpr unsigned dot_threads = (Rows * nn::sum_lanes + subgroup_lanes - 1) / subgroup_lanes* subgroup_lanes;
/// Blocks per SM: two, so that one has copies in flight while the other waits; one if long rows fill shared memory.
template <unsigned Vec8s>
inline constexpr unsigned norm_gradient_blocks = bounds_count_waves || Vec8s > 2 ? 1 : 2;

/// Row pitch in shared memory, in bytes: a multiple of 128 plus 16 elements, so that a subgroup's two rows are in
/// different banks.
template <class T>
ROTOSCALE_HD constexpr unsigned dot_pitch(unsigned cols) {
  return (cols * static_cast<unsigned>(sizeof(T)) + 127) / 128 * 128 + 16 * static_cast<unsigned>(sizeof(T));
}
/// Shared memory of a block in bytes: dy and x of all stages, and the gain.
template <class T>
constexpr std::size_t norm_gradient_bytes(unsigned cols, unsigned group_rows, unsigned stages) {
  return std::size_t{2 * stages} * group_rows * dot_pitch<T>(cols) + cols * sizeof(float);
}

/// Sums of a row: nn::rms_pull, or pull and pulled of nn::layer_gradient.
struct norm_pulls {
  float pull, pulled;
};
template <norm_kind Kind>
struct norm_gradient_shared {
  float rstd[nn::gain_chunk], mean[Kind == norm_kind::layer ? nn::gain_chunk : 1];
  norm_pulls pulls[2][4];  ///< of the rows, double-buffered by group
};

/// Computes a row's pulls by 16 neighbouring lanes.
template <norm_kind Kind, class T>
__device__ inline norm_pulls sum_pulls(const T* dy, const T* x, const float* gain, unsigned cols, unsigned lane,
                                       index_t d, float mean, float rstd) {
  if constexpr (Kind == norm_kind::layer) {
    const float pulled =
        lane_sum(cols, lane, [&](unsigned i, float sum) { return nn::fma(gain[i], widened(dy[i]), sum); });
    const float pull = lane_sum(cols, lane, [&](unsigned i, float sum) {
      return nn::fma(gain[i] * widened(dy[i]), nn::layer_unit(widened(x[i]), mean, rstd), sum);
    });
    return {pull / static_cast<float>(d), pulled / static_cast<float>(d)};
  } else {
    const float dot = lane_sum(
        cols, lane, [&](unsigned i, float sum) { return nn::fma(gain[i] * widened(dy[i]), widened(x[i]), sum); });
    return {nn::rms_pull(dot, d, rstd), 0.0f};
  }
}

/// Adds one element's terms to dx and to the sums of gain and bias.
template <norm_kind Kind>
__device__ inline void add_gradients(float x, float dy, float gain, float mean, float rstd, const norm_pulls& pulls,
                                     float& dx, float& gain_sum, float& bias_sum) {
  if constexpr (Kind == norm_kind::layer) {
    const float unit = nn::layer_unit(x, mean, rstd);
    dx = nn::layer_gradient(unit, pulls.pulled, pulls.pull, gain, dy, rstd, dx);
    gain_sum = nn::fma(dy, unit, gain_sum);
    bias_sum += dy;
  } else {
    dx = nn::rms_gradient(x, pulls.pull, gain, dy, rstd, dx);
    gain_sum = nn::fma(dy * x, rstd, gain_sum);
  }
}

/// A block's work on rows of whole vec8s. A thread has Vec8s vec8s of each row; a group has Rows rows. Shared memory
/// holds Stages groups: one in the gradient step, one in the dot products, the others in flight.
template <class T, norm_kind Kind, unsigned Vec8s, unsigned Rows, unsigned Stages>
struct norm_gradient_block {
  static_assert(Rows <= 4 && Stages >= 3);
  static constexpr unsigned ahead = Stages - 2;
  const norm_gradient_args<T>& a;
  norm_gradient_shared<Kind>& shared;
  unsigned char* stages;
  float* gain;
  index_t row0;
  unsigned rows, groups, pitch;
  unsigned threads;  ///< threads that compute gradients
  // The thread's first vec8 of the next row to copy, and of the next dx to load and to store.
  const T *next_dy, *next_x, *next_dx;
  T* to_dx;
  stored_vec8<T> dx[Rows][Vec8s];
  float sums[Vec8s][vec8_elements] = {}, bias_sums[Vec8s][vec8_elements] = {}, dx_sums[Vec8s][vec8_elements] = {};

  __device__ norm_gradient_block(const norm_gradient_args<T>& args, unsigned char* memory,
                                 norm_gradient_shared<Kind>& s)
      : a(args),
        shared(s),
        stages(memory),
        row0(block_index().x * nn::gain_chunk),
        threads(block_size().x - dot_threads<Rows>) {
    const index_t left = a.e.rows - row0;
    rows = static_cast<unsigned>(left < nn::gain_chunk ? left : nn::gain_chunk);
    groups = (rows + Rows - 1) / Rows;
    pitch = dot_pitch<T>(a.e.cols);
    gain = reinterpret_cast<float*>(memory + 2 * Stages * Rows * pitch);
    const unsigned col = thread_index().x * vec8_elements;
    next_dy = a.dy[row0] + col;
    next_x = a.x[row0] + col;
    to_dx = a.dx[row0] + col;
    next_dx = to_dx;
  }
  __device__ unsigned count(unsigned group) const { return rows - group * Rows < Rows ? rows - group * Rows : Rows; }
  __device__ T* staged(unsigned group, unsigned r, unsigned which) const {
    return reinterpret_cast<T*>(stages + ((group % Stages * Rows + r) * 2 + which) * pitch);
  }
  /// Column of the thread's k-th vec8.
  __device__ unsigned column(unsigned k) const { return (thread_index().x + k * threads) * vec8_elements; }

  __device__ void copy(unsigned group) {
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < Rows; ++r) {
      if (r >= count(group)) break;
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < Vec8s; ++k) {
        if (column(k) >= a.e.cols) continue;
        stage_vec8(staged(group, r, 0) + column(k), next_dy + k * threads * vec8_elements, vec8_elements, true);
        stage_vec8(staged(group, r, 1) + column(k), next_x + k * threads * vec8_elements, vec8_elements, true);
      }
      next_dy += a.dy.stride;
      next_x += a.x.stride;
    }
  }
  template <bool Whole>
  __device__ void load_dx(unsigned r) {
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < Vec8s; ++k) {
      if (Whole || column(k) < a.e.cols) dx[r][k].load(next_dx + k * threads * vec8_elements, vec8_elements, true);
    }
    next_dx += a.dx.stride;
  }

  __device__ float mean_of(unsigned row) const {
    if constexpr (Kind == norm_kind::layer) return shared.mean[row];
    return 0.0f;
  }

  /// Computes a group's pulls, on the threads after the gradients' threads.
  __device__ void sum_dots(unsigned group) const {
    const unsigned t = thread_index().x - threads, lane = t % nn::sum_lanes, r = t / nn::sum_lanes;
    const bool any = r < count(group);
    const T *const dy = staged(group, any ? r : 0, 0), *const x = staged(group, any ? r : 0, 1);
    const unsigned row = any ? group * Rows + r : 0;
    const norm_pulls pulls =
        sum_pulls<Kind>(dy, x, gain, any ? a.e.cols : 0, lane, a.e.cols, mean_of(row), shared.rstd[row]);
    if (any && lane == 0) shared.pulls[group % 2][r] = pulls;
  }

  /// Computes the gradients of `group` from dx in registers, then loads dx of the next group into them.
  ///
  /// The branch for whole groups and columns has no condition between a register's use and its next load. So loads do
  /// not wait for each other. Waits that count loads need no such branch.
  __device__ void update(unsigned group) {
    const unsigned here = count(group), behind = group + 1 < groups ? count(group + 1) : 0;
    if (!waits_count_loads && behind == Rows && column(Vec8s - 1) < a.e.cols) {  // this group is whole too
      update_rows<true>(group, here, behind);
    } else {
      update_rows<false>(group, here, behind);
    }
  }
  template <bool Whole>
  __device__ void update_rows(unsigned group, unsigned here, unsigned behind) {
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < Rows; ++r) {
      if (!Whole && r >= here) break;
      const float rstd = shared.rstd[group * Rows + r], mean = mean_of(group * Rows + r);
      const norm_pulls pulls = shared.pulls[group % 2][r];
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < Vec8s; ++k) {
        if (Whole || column(k) < a.e.cols) update_vec8(group, r, k, mean, rstd, pulls);
      }
      to_dx += a.dx.stride;
    }
    // After all updates: the scoreboard of a row's update covers the loads of all rows.
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < Rows; ++r) {
      if (Whole || r < behind) load_dx<Whole>(r);
    }
  }
  __device__ void update_vec8(unsigned group, unsigned r, unsigned k, float mean, float rstd, const norm_pulls& pulls) {
    float g[vec8_elements], dy[vec8_elements], x[vec8_elements], sum[vec8_elements];
    load_floats(gain + column(k), vec8_elements, true, g);
    stored_vec8<T> vec8;
    vec8.load(staged(group, r, 0) + column(k), vec8_elements, true);
    vec8.widen(dy);
    vec8.load(staged(group, r, 1) + column(k), vec8_elements, true);
    vec8.widen(x);
    dx[r][k].widen(sum);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < vec8_elements; ++i) {
      add_gradients<Kind>(x[i], dy[i], g[i], mean, rstd, pulls, sum[i], sums[k][i], bias_sums[k][i]);
    }
    vec8.narrow(sum);
    vec8.store(to_dx + k * threads * vec8_elements, vec8_elements, true);
    if constexpr (Kind == norm_kind::layer) add_columns(vec8, dx_sums[k]);
  }

  __device__ void run() {
    const unsigned t = thread_index().x;
    const bool sums_dots = t >= threads;
    for (unsigned c = 2 * t; c < a.e.cols; c += 2 * block_size().x) {
      gain[c] = a.gain[c];
      gain[c + 1] = a.gain[c + 1];
    }
    for (unsigned r = t; r < rows; r += block_size().x) {
      shared.rstd[r] = a.rstd[row0 + r];
      if constexpr (Kind == norm_kind::layer) shared.mean[r] = a.mean[row0 + r];
    }
    if (!sums_dots) {
      ROTOSCALE_UNROLL
      for (unsigned group = 0; group < ahead; ++group) {
        if (group < groups) copy(group);
        end_copy_group();
      }
      ROTOSCALE_UNROLL
      for (unsigned r = 0; r < Rows; ++r) {
        if (r < count(0)) load_dx<false>(r);
      }
      wait_for_all_but<ahead - 1>();
    }
    block_barrier();
    ROTOSCALE_KEEP_LOOP
    for (unsigned group = 0; group <= groups; ++group) {
      if (sums_dots) {
        if (group < groups) sum_dots(group);
      } else {
        if (group + ahead < groups) copy(group + ahead);
        end_copy_group();
        if (group != 0) update(group - 1);
        wait_for_all_but<ahead - 1>();
      }
      block_barrier();
    }
    release_kernel_behind();  // not earlier: a waiting kernel takes space from blocks that have not started
    if (a.partial == nullptr || sums_dots) return;
    store_sums(a.partial, sums);
    if constexpr (Kind == norm_kind::layer) {
      store_sums(a.parts_of(1), bias_sums);
      if (a.adds_dx) store_sums(a.parts_of(2), dx_sums);
    }
  }
  __device__ void store_sums(float* partial, const float (&from)[Vec8s][vec8_elements]) const {
    float* const to = partial + block_index().x * index_t{a.e.cols};
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < Vec8s; ++k) {
      if (column(k) >= a.e.cols) continue;
      stored_vec8<float> vec8;
      vec8.narrow(from[k]);
      vec8.store(to + column(k), vec8_elements, true);
    }
  }
};

/// Template arguments of norm_gradient_kernel.
template <unsigned Vec8s, unsigned Rows, unsigned Stages>
struct norm_gradient_shape {};

template <class T, norm_kind Kind, unsigned Vec8s, unsigned Rows, unsigned Stages>
__global__ void __launch_bounds__(row_threads + dot_threads<Rows>, norm_gradient_blocks<Vec8s>)
    norm_gradient_kernel(const ROTOSCALE_GRID_CONSTANT norm_gradient_args<T> a) {
  norm_gradient_block<T, Kind, Vec8s, Rows, Stages>(a, dynamic_shared<unsigned char>(),
                                                    block_shared<norm_gradient_shared<Kind>>())
      .run();
}

/// The same for any row length, without staging: rows are read twice from global memory. A block takes 64 rows, 16 at a
/// time, and keeps the sums in `partial`.
template <class T, norm_kind Kind>
__global__ void __launch_bounds__(row_threads)
    norm_gradient_unstaged_kernel(const ROTOSCALE_GRID_CONSTANT norm_gradient_args<T> a) {
  const unsigned t = thread_index().x, cols = a.e.cols;
  auto& pulls = block_shared<norm_pulls[max_norm_rows]>();
  const index_t row0 = block_index().x * nn::gain_chunk,
                end = a.e.rows - row0 < nn::gain_chunk ? a.e.rows : row0 + nn::gain_chunk;
  const index_t own = block_index().x * index_t{cols};
  float *const partial = a.partial + own, *const bias_partial = a.parts_of(1) + own,
               *const dx_partial = a.parts_of(2) + own;
  const auto mean_of = [&](index_t row) { return Kind == norm_kind::layer ? a.mean[row] : 0.0f; };
  for (index_t row = row0; row < end; row += max_norm_rows) {
    const unsigned count = end - row < max_norm_rows ? static_cast<unsigned>(end - row) : max_norm_rows;
    for (unsigned r = t / 16; r - t / 16 % 2 < count; r += row_threads / 16) {
      const index_t at = row + (r < count ? r : 0);
      const norm_pulls made =
          sum_pulls<Kind>(a.dy[at], a.x[at], a.gain, r < count ? cols : 0, t % 16, cols, mean_of(at), a.rstd[at]);
      if (t % 16 == 0 && r < count) pulls[r] = made;
    }
    block_barrier();
    for (unsigned p = t; p < a.e.vec8s; p += row_threads) {
      const unsigned col = p * vec8_elements, some = a.e.count(p);
      float sums[vec8_elements] = {}, bias_sums[vec8_elements] = {}, dx_sums[vec8_elements] = {}, gain[vec8_elements];
      if (a.partial != nullptr && row != row0) {
        load_floats(partial + col, some, false, sums);
        if constexpr (Kind == norm_kind::layer) {
          load_floats(bias_partial + col, some, false, bias_sums);
          if (a.adds_dx) load_floats(dx_partial + col, some, false, dx_sums);
        }
      }
      load_floats(a.gain + col, some, a.e.vectors, gain);
      for (unsigned r = 0; r < count; ++r) {
        const float rstd = a.rstd[row + r], mean = mean_of(row + r);
        float dy[vec8_elements], x[vec8_elements], dx[vec8_elements];
        stored_vec8<T> vec8;
        vec8.load(a.dy[row + r] + col, some, a.e.vectors);
        vec8.widen(dy);
        vec8.load(a.x[row + r] + col, some, a.e.vectors);
        vec8.widen(x);
        vec8.load(a.dx[row + r] + col, some, a.e.vectors);
        vec8.widen(dx);
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < vec8_elements; ++i) {
          add_gradients<Kind>(x[i], dy[i], gain[i], mean, rstd, pulls[r], dx[i], sums[i], bias_sums[i]);
        }
        vec8.narrow(dx);
        vec8.store(a.dx[row + r] + col, some, a.e.vectors);
        if constexpr (Kind == norm_kind::layer) add_columns(vec8, dx_sums);
      }
      if (a.partial == nullptr) continue;
      store_floats(partial + col, some, sums);
      if constexpr (Kind == norm_kind::layer) {
        store_floats(bias_partial + col, some, bias_sums);
        if (a.adds_dx) store_floats(dx_partial + col, some, dx_sums);
      }
    }
    block_barrier();
  }
}

}  // namespace rotoscale::gpu
