// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cross-entropy's kernels: a block takes 4096 logits of a row; the last of a row's blocks combines them.
#pragma once

#include "gpu/nn/rows.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::gpu {

/// Record of a chunk of logits: first its largest logit and the sum of its exponentials, then their shift and factor.
struct softmax_part {
  float shift, value;
};

struct loss_args {
  float* logits = nullptr;
  index_t stride = 0, rows = 0;
  unsigned vocabulary = 0, chunks = 0;
  nn::token_source targets;
  index_t first = 0;
  float* loss = nullptr;
  const nn::step_state* state = nullptr;
  std::uint32_t* fault = nullptr;
  /// Counters, 0 at first: a ticket, then for each row its chunks that are summed, plus 1 once their factors are there.
  std::uint32_t* control = nullptr;
  softmax_part* parts = nullptr;
  bool gradients = false, vectors = false;
  std::uint16_t* narrow = nullptr;  ///< BF16 gradients, [rows, vocabulary]; null: FP32 in place of the logits
  bool narrow_vectors = false;

  /// The target of a row; nn::ignored_target for one outside of the vocabulary.
  __device__ std::int32_t target(index_t row) const {
    const std::int32_t n = targets.now(*state)[first + row];
    return n >= 0 && static_cast<unsigned>(n) < vocabulary ? n : nn::ignored_target;
  }
};

inline constexpr unsigned softmax_elements = nn::softmax_chunk / row_threads;  // of a thread, by fours

/// Blocks of a processor: each waits for its loads, then for one warp's sum.
inline constexpr unsigned softmax_blocks = bounds_count_waves ? 1 : 8;

/// A block's chunk.
struct logits_chunk {
  index_t row;
  unsigned chunk, count;
  float* logits;
  std::uint16_t* narrow;

  __device__ logits_chunk(const loss_args& a, index_t r, unsigned c) : row(r), chunk(c) {
    const unsigned at = chunk * nn::softmax_chunk, left = a.vocabulary - at;
    count = left < nn::softmax_chunk ? left : static_cast<unsigned>(nn::softmax_chunk);
    logits = a.logits + row * a.stride + at;
    narrow = a.narrow != nullptr ? a.narrow + row * static_cast<index_t>(a.vocabulary) + at : nullptr;
  }
  /// Of the thread's i-th four elements.
  __device__ static unsigned column(unsigned i) { return 4 * (i * row_threads + thread_index().x); }
  /// Four logits; those beyond the chunk are `fill`.
  __device__ void load(unsigned col, bool vectors, float fill, float* x) const {
    if (vectors && col + 4 <= count) {
      const vec16 v = *reinterpret_cast<const vec16*>(logits + col);
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < 4; ++j) x[j] = fp32_from_bits(v.word[j]);
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) x[j] = col + j < count ? logits[col + j] : fill;
  }
  /// Four gradients.
  __device__ void store(unsigned col, const loss_args& a, const float* x) const {
    if (narrow != nullptr) return store_narrow(col, a.narrow_vectors, x);
    if (a.vectors && col + 4 <= count) {
      *reinterpret_cast<vec16*>(logits + col) = {{fp32_bits(x[0]), fp32_bits(x[1]), fp32_bits(x[2]), fp32_bits(x[3])}};
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      if (col + j < count) logits[col + j] = x[j];
    }
  }
  __device__ void store_narrow(unsigned col, bool vectors, const float* x) const {
    std::uint32_t y[4];
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) y[j] = canonical_bf16(x[j]);
    if (vectors && col + 4 <= count) {
      store_streaming8(narrow + col, y[0] | y[1] << 16, y[2] | y[3] << 16);
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      if (col + j < count) narrow[col + j] = static_cast<std::uint16_t>(y[j]);
    }
  }
};

/// The largest of the block's numbers, NaN left out.
__device__ inline float block_max(float x) {
  auto& largest = block_shared<float[row_threads / segment_lanes]>();
  ROTOSCALE_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) {
    const float other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  if (thread_index().x % segment_lanes == 0) largest[thread_index().x / segment_lanes] = x;
  block_barrier();
  x = largest[0];
  ROTOSCALE_UNROLL
  for (unsigned i = 1; i < row_threads / segment_lanes; ++i) x = largest[i] > x ? largest[i] : x;
  return x;
}

/// What a block that sums a chunk shares.
struct softmax_shared {
  alignas(16) float e[nn::softmax_chunk];
  std::uint32_t ticket;
};
/// The exponentials of a block's chunk stay in x; lane 0 returns their sum; `largest` is the chunk's largest logit.
__device__ inline float sum_chunk(const logits_chunk& at, bool vectors, softmax_shared& shared,
                                  float (&x)[softmax_elements], float& largest) {
  const float minus_infinity = fp32_from_bits(fp32_infinity_bits | fp32_sign_mask);
  largest = minus_infinity;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i) {
    at.load(logits_chunk::column(i), vectors, minus_infinity, x + 4 * i);
  }
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements; ++i) largest = __builtin_fmaxf(largest, x[i]);  // without NaN
  largest = block_max(largest);
  const float shift = nn::softmax_shift(largest);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i) {
    vec16 some;
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      x[4 * i + j] = nn::exp_of_difference(x[4 * i + j] - shift);
      some.word[j] = fp32_bits(x[4 * i + j]);
    }
    *reinterpret_cast<vec16*>(shared.e + logits_chunk::column(i)) = some;
  }
  block_barrier();
  const unsigned t = thread_index().x;
  if (t >= segment_lanes) return 0.0f;
  return lane_sum(t < 16 ? at.count : 0, t % 16, [&](unsigned i, float s) { return s + shared.e[i]; });
}

/// Turns a thread's exponentials into gradients and stores them.
__device__ inline void store_gradient(const loss_args& a, const logits_chunk& at, std::int32_t target, float factor,
                                      float (&x)[softmax_elements]) {
  const unsigned place = static_cast<unsigned>(target) - at.chunk * nn::softmax_chunk;
  const float scale = a.state->gradient_scale;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i) {
    const unsigned col = logits_chunk::column(i);
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      float& e = x[4 * i + j];
      e = col + j == place ? nn::fma(e, factor, -scale) : e * factor;
    }
    at.store(col, a, x + 4 * i);
  }
}

/// A masked row: no loss, no gradient.
__device__ inline void mask_row(const loss_args& a, const logits_chunk& at, bool loss, bool gradient) {
  if (loss && at.chunk == 0 && thread_index().x == 0) {
    a.loss[at.row] = 0.0f;
    const bool asked = a.targets.now(*a.state)[a.first + at.row] == nn::ignored_target;
    if (!asked && a.fault != nullptr) atomic_max(a.fault, static_cast<std::uint32_t>(a.first + at.row + 1));
  }
  if (!gradient) return;
  const float zeros[4] = {};
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i) at.store(logits_chunk::column(i), a, zeros);
}

/// Rows of one chunk: a block a row, whose logits are read once.
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads, softmax_blocks)
    softmax_row_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a) {
  const logits_chunk at(a, block_index().x, 0);
  const std::int32_t target = a.target(at.row);
  if (target == nn::ignored_target) return mask_row(a, at, true, a.gradients);
  auto& shared = block_shared<softmax_shared>();
  auto& factor = block_shared<float>();
  const float z_target = at.logits[target];
  float x[softmax_elements], largest;
  const float sum = sum_chunk(at, a.vectors, shared, x, largest);
  if (thread_index().x == 0) {
    // As one chunk of several: its weight is 1, or NaN where the largest logit is not finite.
    const float weight = nn::exp(largest - largest), weighted = nn::fma(sum, weight, 0.0f);
    a.loss[at.row] = nn::log(weighted) - (z_target - largest);
    factor = weight * (a.state->gradient_scale / weighted);
  }
  if (!a.gradients) return;
  block_barrier();
  store_gradient(a, at, target, factor, x);
}

/// Rows of several chunks. A chunk has two blocks, one that sums it and one that turns it into gradients, which waits
/// for the others of its row. Blocks take their work by a ticket, so that what one waits for has begun before it. Rows
/// go in groups: the gradients of a group come `lag` groups after its sums, when those are done as a rule and its
/// logits are still in the cache.
struct softmax_order {
  unsigned chunks, group_rows, groups, lag;

  /// False: nothing to do.
  __device__ bool find(std::uint32_t ticket, unsigned& row, unsigned& chunk, bool& gradient) const {
    const unsigned of_step = 2 * group_rows * chunks, step = ticket / of_step, within = ticket % of_step;
    gradient = within % 2 != 0;
    if (gradient ? step < lag : step >= groups) return false;
    row = (gradient ? step - lag : step) * group_rows + within / 2 / chunks;
    chunk = within / 2 % chunks;
    return true;
  }
};

__device__ inline float load_relaxed(const float* from) {
  return fp32_from_bits(load_relaxed(reinterpret_cast<const std::uint32_t*>(from)));
}

/// The loss of a row and its chunks' factors, by the first segment of the block that came last.
__device__ inline void finish_row(const loss_args& a, index_t row, std::int32_t target) {
  softmax_part* const parts = a.parts + row * a.chunks;
  const unsigned lane = thread_index().x;
  float largest = load_relaxed(&parts[0].shift);
  for (unsigned c = lane; c < a.chunks; c += segment_lanes) {
    const float other = load_relaxed(&parts[c].shift);
    largest = other > largest ? other : largest;
  }
  ROTOSCALE_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) {
    const float other = shuffle_xor(largest, mask);
    largest = other > largest ? other : largest;
  }
  float sum = 0.0f;
  for (unsigned first = 0; first < a.chunks; first += segment_lanes) {
    const unsigned c = first + lane;
    const float own = c < a.chunks ? load_relaxed(&parts[c].value) : 0.0f;
    const float weight = c < a.chunks ? nn::exp(load_relaxed(&parts[c].shift) - largest) : 0.0f;
    for (unsigned i = 0; i < segment_lanes && first + i < a.chunks; ++i) {
      sum = nn::fma(fp32_from_bits(shuffle(fp32_bits(own), i)), fp32_from_bits(shuffle(fp32_bits(weight), i)), sum);
    }
  }
  if (lane == 0) a.loss[row] = nn::log(sum) - (a.logits[row * a.stride + target] - largest);
  const float scale = a.state->gradient_scale / sum;
  for (unsigned c = lane; c < a.chunks; c += segment_lanes) {
    const float shift = load_relaxed(&parts[c].shift);
    parts[c] = {nn::softmax_shift(shift), nn::exp(shift - largest) * scale};
  }
}

/// Sums a chunk; the last block of a row then computes its loss and its chunks' factors.
__device__ inline void sum_row_chunk(const loss_args& a, const logits_chunk& at, std::int32_t target,
                                     softmax_shared& shared) {
  float x[softmax_elements], largest;
  const float sum = sum_chunk(at, a.vectors, shared, x, largest);
  const unsigned t = thread_index().x;
  if (t >= segment_lanes) return;
  std::uint32_t* const done = a.control + 1 + at.row;
  std::uint32_t before = 0;
  if (t == 0) {
    a.parts[at.row * a.chunks + at.chunk] = {largest, sum};
    device_fence();
    before = atomic_add(done, 1);
    device_fence();
  }
  if (shuffle(before, 0) + 1 != a.chunks) return;
  finish_row(a, at.row, target);
  device_fence();
  if (segment_any(true) && t == 0) atomic_add(done, 1);
}

[[maybe_unused]] static __global__ void __launch_bounds__(row_threads, softmax_blocks)
    softmax_chunks_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a, const softmax_order order) {
  auto& shared = block_shared<softmax_shared>();
  if (thread_index().x == 0) shared.ticket = atomic_add(a.control, 1);
  block_barrier();
  unsigned row = 0, chunk = 0;
  bool gradient = false;
  if (!order.find(shared.ticket, row, chunk, gradient) || row >= a.rows || (gradient && !a.gradients)) return;
  const logits_chunk at(a, row, chunk);
  const std::int32_t target = a.target(row);
  if (target == nn::ignored_target) return mask_row(a, at, !gradient, gradient);
  if (!gradient) return sum_row_chunk(a, at, target, shared);
  if (thread_index().x == 0) {
    while (load_relaxed(a.control + 1 + row) != a.chunks + 1) {
    }
    device_fence();
  }
  block_barrier();
  const softmax_part* const part = a.parts + at.row * a.chunks + at.chunk;
  const float shift = load_relaxed(&part->shift), factor = load_relaxed(&part->value);
  float x[softmax_elements];
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i) at.load(logits_chunk::column(i), a.vectors, 0.0f, x + 4 * i);
  ROTOSCALE_UNROLL
  for (float& e : x) e = nn::exp_of_difference(e - shift);
  store_gradient(a, at, target, factor, x);
}

}  // namespace rotoscale::gpu
