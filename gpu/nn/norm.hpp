// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Forward kernel of RMSNorm and LayerNorm, with an optional residual addition. Sixteen lanes sum a row, one chain each,
// so a block stages several rows in shared memory and sums them concurrently. Rows too long for that are read again
// from global memory.
#pragma once

#include "gpu/nn/rows.hpp"

namespace rotoscale::gpu {

/// Row pitch in shared memory, in bytes: a multiple of 128 plus 64, so that a warp's two rows are in different banks.
template <class T>
ROTOSCALE_HD constexpr unsigned row_pitch(unsigned cols) {
  return (cols * static_cast<unsigned>(sizeof(T)) + 127) / 128 * 128 + 64;
}

/// A thread's walk over the vec8s of some rows, along rows first, without a division per step.
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

/// Visits `rows` rows: each thread calls load(i, row, vec8) for four vec8s, then use(i, row, vec8) for the
/// same.
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

enum class norm_kind { rms, layer };

/// y = norm(sum), sum = x + branch. Without a branch the sum is x and is not written. Without y only mean and rstd are
/// computed.
template <class T>
struct norm_args {
  row_extents e;
  row_span<const T> x, branch;
  row_span<T> sum, y;
  const float* gain = nullptr;
  float* rstd = nullptr;
  const float* bias = nullptr;  ///< of LayerNorm
  float* mean = nullptr;        ///< of LayerNorm
  float eps = 0.0f;
  unsigned block_rows = 0;  ///< at most max_norm_rows
};
inline constexpr unsigned max_norm_rows = 16;
template <norm_kind Kind>
struct norm_shared {
  float rstd[max_norm_rows], mean[Kind == norm_kind::layer ? max_norm_rows : 1];
};

/// Stores x + branch of a block's rows and passes them to keep(row, vec8, sum).
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

/// Gain and bias of eight columns.
template <norm_kind Kind>
struct norm_columns {
  float gain[vec8_elements], bias[vec8_elements];

  __device__ void load(const float* gains, const float* biases, unsigned col, unsigned count, bool vectors) {
    load_floats(gains + col, count, vectors, gain);
    if constexpr (Kind == norm_kind::layer) load_floats(biases + col, count, vectors, bias);
  }
};

/// Normalizes x in place.
template <norm_kind Kind, class T>
__device__ inline void norm_vec8(stored_vec8<T>& x, float mean, float rstd, const norm_columns<Kind>& c) {
  float u[vec8_elements];
  x.widen(u);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < vec8_elements; ++i) {
    if constexpr (Kind == norm_kind::layer) {
      u[i] = nn::layer_normed(u[i], mean, rstd, c.gain[i], c.bias[i]);
    } else {
      u[i] = nn::rms_normed(u[i], rstd, c.gain[i]);
    }
  }
  x.narrow(u);
}

/// Computes the sum, mean, rstd and y of block_rows rows per block. Staged: rows are in shared memory.
template <class T, bool Residual, bool Staged, norm_kind Kind>
__global__ void __launch_bounds__(row_threads) norm_kernel(const ROTOSCALE_GRID_CONSTANT norm_args<T> a) {
  const unsigned t = thread_index().x, pitch = row_pitch<T>(a.e.cols);
  const index_t row0 = block_index().x * index_t{a.block_rows};
  const unsigned rows = a.e.rows - row0 < a.block_rows ? static_cast<unsigned>(a.e.rows - row0) : a.block_rows;
  auto* const staged = dynamic_shared<unsigned char>();
  auto& [rstd, mean] = block_shared<norm_shared<Kind>>();
  const auto row_of = [&](unsigned r) {
    return Staged ? reinterpret_cast<const T*>(staged + r * pitch) : Residual ? a.sum[row0 + r] : a.x[row0 + r];
  };
  const auto staged_row = [&](unsigned r) { return reinterpret_cast<T*>(staged + r * pitch); };
  // 1. Load x or the sum, rounded as stored.
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
  // 2. mean and rstd, 16 lanes per row.
  for (unsigned r = t / 16; r - t / 16 % 2 < rows; r += block_size().x / 16) {
    const T* const row = row_of(r < rows ? r : 0);
    const unsigned cols = r < rows ? a.e.cols : 0;
    float center = 0.0f;
    if constexpr (Kind == norm_kind::layer) {
      center = lane_sum(cols, t % 16, [&](unsigned i, float sum) { return sum + widened(row[i]); }) /
               static_cast<float>(a.e.cols);
    }
    const float squares = lane_sum(cols, t % 16, [&](unsigned i, float sum) {
      const float x = Kind == norm_kind::layer ? widened(row[i]) - center : widened(row[i]);
      return nn::fma(x, x, sum);
    });
    if (t % 16 == 0 && r < rows) {
      rstd[r] = nn::rms_reciprocal(squares, a.e.cols, a.eps);
      a.rstd[row0 + r] = rstd[r];
      if constexpr (Kind == norm_kind::layer) a.mean[row0 + r] = mean[r] = center;
    }
  }
  if (a.y.data == nullptr) return;
  block_barrier();
  // 3. y.
  for (vec8_walk at(a.e.vec8s); at.row < rows; at.step()) {
    const unsigned col = at.vec8 * vec8_elements, count = a.e.count(at.vec8);
    norm_columns<Kind> columns;
    columns.load(a.gain, a.bias, col, count, a.e.vectors);
    stored_vec8<T> x;
    x.load(row_of(at.row) + col, Staged ? vec8_elements : count, Staged || a.e.vectors);
    norm_vec8(x, Kind == norm_kind::layer ? mean[at.row] : 0.0f, rstd[at.row], columns);
    x.store(a.y[row0 + at.row] + col, count, a.e.vectors);
  }
}

}  // namespace rotoscale::gpu
