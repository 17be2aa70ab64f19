// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// RMSNorm's kernels. Sixteen lanes sum a row, each in a chain, so a block brings several rows to shared memory at once
// and sums them side by side. Rows that do not fit there are read from global memory again.
#pragma once

#include "gpu/nn/rows.hpp"

namespace rotoscale::gpu {

/// Bytes from a row to the next in shared memory: 64 past a multiple of 128, so that the two rows that a warp sums lie
/// in different banks.
template <class T>
ROTOSCALE_HD constexpr unsigned row_pitch(unsigned cols) {
  return (cols * static_cast<unsigned>(sizeof(T)) + 127) / 128 * 128 + 64;
}

/// Calls body(row, piece) for the pieces of `rows` rows, those of a thread being in the same columns as long as a row
/// has no more pieces than the block threads.
template <class Body>
__device__ inline void for_each_piece(const row_extents& e, unsigned rows, const Body& body) {
  const unsigned t = thread_index().x, threads = block_size().x;
  const unsigned side_by_side = e.pieces < threads ? threads / e.pieces : 1;
  const unsigned row = t / e.pieces, first = t % e.pieces;
  if (e.pieces <= threads && row >= side_by_side) return;
  for (unsigned p = e.pieces <= threads ? first : t; p < e.pieces; p += threads) {
    for (unsigned r = e.pieces <= threads ? row : 0; r < rows; r += side_by_side) body(r, p);
  }
}

/// y = norm(sum), sum = x + branch; without a branch the sum is x itself and is not written.
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
  // 1. What is normed, as it is stored.
  if constexpr (Residual || Staged) {
    for_each_piece(a.e, rows, [&](unsigned r, unsigned p) {
      const unsigned col = p * piece_elements, count = a.e.count(p);
      stored_piece<T> x;
      x.load(a.x[row0 + r] + col, count, a.e.vectors);
      if constexpr (Residual) {
        stored_piece<T> branch;
        branch.load(a.branch[row0 + r] + col, count, a.e.vectors);
        float u[piece_elements], v[piece_elements];
        x.widen(u);
        branch.widen(v);
        ROTOSCALE_UNROLL
        for (unsigned i = 0; i < piece_elements; ++i) u[i] += v[i];
        x.narrow(u);
        x.store(a.sum[row0 + r] + col, count, a.e.vectors);
      }
      if constexpr (Staged) x.store(reinterpret_cast<T*>(staged + r * pitch) + col, piece_elements, true);
    });
    block_barrier();
  }
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
  block_barrier();
  // 3. The norm.
  for_each_piece(a.e, rows, [&](unsigned r, unsigned p) {
    const unsigned col = p * piece_elements, count = a.e.count(p);
    stored_piece<T> x;
    x.load(row_of(r) + col, Staged ? piece_elements : count, Staged || a.e.vectors);
    float u[piece_elements], gain[piece_elements];
    x.widen(u);
    load_floats(a.gain + col, count, a.e.vectors, gain);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < piece_elements; ++i) u[i] = nn::rms_normed(u[i], rstd[r], gain[i]);
    x.narrow(u);
    x.store(a.y[row0 + r] + col, count, a.e.vectors);
  });
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

/// A block takes 64 rows in groups, and has the next group's rows on their way while it works on one. Pieces: those of
/// a thread, whose sums over the rows stay in registers; 0: rows are not staged, and the sums lie in `partial`.
template <class T, unsigned Pieces>
__global__ void __launch_bounds__(row_threads)
    norm_gradient_kernel(const ROTOSCALE_GRID_CONSTANT norm_gradient_args<T> a) {
  constexpr bool staged = Pieces != 0;
  constexpr unsigned kept = staged ? Pieces : 1;
  const unsigned t = thread_index().x, threads = block_size().x, pitch = row_pitch<T>(a.e.cols);
  const index_t row0 = block_index().x * nn::gain_chunk;
  const auto rows = static_cast<unsigned>(a.e.rows - row0 < nn::gain_chunk ? a.e.rows - row0 : nn::gain_chunk);
  auto* const memory = dynamic_shared<unsigned char>();
  auto& pulls = block_shared<float[max_norm_rows]>();
  // Row r of a group: dy, and x behind it.
  const auto place = [&](unsigned first, unsigned r, bool x) {
    return memory + ((first / a.group_rows % 2 * a.group_rows + r) * 2 + (x ? 1 : 0)) * pitch;
  };
  const auto source = [&](unsigned first, unsigned r, bool x) {
    if constexpr (staged) return reinterpret_cast<const T*>(place(first, r, x));
    return x ? a.x[row0 + first + r] : a.dy[row0 + first + r];
  };
  const auto fetch = [&](unsigned first) {
    for (unsigned r = 0; r < a.group_rows && first + r < rows; ++r) {
      for (unsigned p = t; p < 2 * a.e.pieces; p += threads) {
        const bool x = p >= a.e.pieces;
        const unsigned piece = x ? p - a.e.pieces : p, col = piece * piece_elements;
        const T* const from = (x ? a.x : a.dy)[row0 + first + r] + col;
        T* const to = reinterpret_cast<T*>(place(first, r, x)) + col;
        if (a.e.vectors) {
          ROTOSCALE_UNROLL
          for (unsigned i = 0; i < stored_piece<T>::vecs; ++i) {
            copy_async(reinterpret_cast<vec16*>(to) + i, reinterpret_cast<const vec16*>(from) + i);
          }
        } else {
          stored_piece<T> some;
          some.load(from, a.e.count(piece), false);
          some.store(to, piece_elements, true);
        }
      }
    }
  };
  float sums[kept][piece_elements] = {};
  if constexpr (staged) fetch(0);
  for (unsigned first = 0; first < rows; first += a.group_rows) {
    const unsigned group = rows - first < a.group_rows ? rows - first : a.group_rows;
    wait_for_copies();
    block_barrier();
    if (staged && first + a.group_rows < rows) fetch(first + a.group_rows);
    for (unsigned r = t / 16; r - t / 16 % 2 < group; r += threads / 16) {
      const T *const dy = source(first, r < group ? r : 0, false), *const x = source(first, r < group ? r : 0, true);
      const float dot = lane_sum(r < group ? a.e.cols : 0, t % 16, [&](unsigned i, float sum) {
        return nn::fma(a.gain[i] * widened(dy[i]), widened(x[i]), sum);
      });
      if (t % 16 == 0 && r < group) pulls[r] = nn::rms_pull(dot, a.e.cols, a.rstd[row0 + first + r]);
    }
    block_barrier();
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < kept; ++k) {
      for (unsigned p = t + k * threads; p < a.e.pieces; p += staged ? a.e.pieces : threads) {
        const unsigned col = p * piece_elements, count = a.e.count(p);
        float gain[piece_elements];
        load_floats(a.gain + col, count, a.e.vectors, gain);
        if constexpr (!staged) {
          ROTOSCALE_UNROLL
          for (unsigned i = 0; i < piece_elements; ++i) sums[0][i] = 0.0f;
          if (a.partial != nullptr && first != 0) {
            load_floats(a.partial + block_index().x * index_t{a.e.cols} + col, count, false, sums[0]);
          }
        }
        for (unsigned r = 0; r < group; ++r) {
          const float rstd = a.rstd[row0 + first + r], pull = pulls[r];
          stored_piece<T> dy, x, dx;
          dx.load(a.dx[row0 + first + r] + col, count, a.e.vectors);
          dy.load(source(first, r, false) + col, staged ? piece_elements : count, staged || a.e.vectors);
          x.load(source(first, r, true) + col, staged ? piece_elements : count, staged || a.e.vectors);
          float d[piece_elements], u[piece_elements], to[piece_elements];
          dy.widen(d);
          x.widen(u);
          dx.widen(to);
          ROTOSCALE_UNROLL
          for (unsigned i = 0; i < piece_elements; ++i) {
            to[i] = nn::rms_gradient(u[i], pull, gain[i], d[i], rstd, to[i]);
            sums[k][i] = nn::fma(d[i] * u[i], rstd, sums[k][i]);
          }
          dx.narrow(to);
          dx.store(a.dx[row0 + first + r] + col, count, a.e.vectors);
        }
        if (a.partial != nullptr && (!staged || first + a.group_rows >= rows)) {
          stored_piece<float> sum;
          sum.narrow(sums[k]);
          sum.store(a.partial + block_index().x * index_t{a.e.cols} + col, count, false);
        }
      }
    }
  }
}

/// dgain += the sum of the partial rows in order.
inline constexpr unsigned gain_threads = 32;
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
  for (index_t c = 0; c < a.chunks; ++c) sum += a.partial[c * a.cols + col];
  a.dgain[col] += sum;
}

}  // namespace rotoscale::gpu
