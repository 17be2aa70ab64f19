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

  /// The target of a row as it is given.
  __device__ std::int32_t given_target(index_t row) const { return targets.now(*state)[first + row]; }
  /// The same; nn::ignored_target for one outside of the vocabulary.
  __device__ std::int32_t checked(std::int32_t n) const {
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
  /// Sixteen bytes; `again`: they will be read once more, from the cache.
  __device__ static vec16 load_vector(const float* from, bool again) {
    return again ? *reinterpret_cast<const vec16*>(from) : load_streaming(from);
  }
  /// Four logits; those beyond the chunk are `fill`.
  __device__ void load(unsigned col, bool vectors, bool again, float fill, float* x) const {
    if (vectors && col + 4 <= count) {
      const vec16 v = load_vector(logits + col, again);
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < 4; ++j) x[j] = fp32_from_bits(v.word[j]);
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) x[j] = col + j < count ? logits[col + j] : fill;
  }
  /// The thread's logits.
  __device__ void load_all(bool vectors, bool again, float fill, float (&x)[softmax_elements]) const {
    if (vectors && count == nn::softmax_chunk) {
      const float* const from = logits + column(0);
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < softmax_elements; i += 4) {
        const vec16 v = load_vector(from + i * row_threads, again);
        ROTOSCALE_UNROLL
        for (unsigned j = 0; j < 4; ++j) x[i + j] = fp32_from_bits(v.word[j]);
      }
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < softmax_elements / 4; ++i) load(column(i), vectors, again, fill, x + 4 * i);
  }
  /// The thread's gradients; `numbers`: none of them is NaN.
  __device__ void store_all(const loss_args& a, const float (&x)[softmax_elements], bool numbers) const {
    const bool whole = count == nn::softmax_chunk;
    if (narrow != nullptr && whole && a.narrow_vectors && numbers) {
      std::uint16_t* const to = narrow + column(0);
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < softmax_elements; i += 4) {
        store_streaming8(to + i * row_threads, bf16_pair(x[i], x[i + 1]), bf16_pair(x[i + 2], x[i + 3]));
      }
    } else if (narrow == nullptr && whole && a.vectors) {
      float* const to = logits + column(0);
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < softmax_elements; i += 4) {
        store_streaming(to + i * row_threads,
                        {{fp32_bits(x[i]), fp32_bits(x[i + 1]), fp32_bits(x[i + 2]), fp32_bits(x[i + 3])}});
      }
    } else {
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < softmax_elements; ++i) {
        const unsigned col = column(i / 4) + i % 4;
        if (col < count) store_one(col, x[i]);
      }
    }
  }
  /// The gradient of one element.
  __device__ void store_one(unsigned col, float x) const {
    if (narrow != nullptr) {
      narrow[col] = static_cast<std::uint16_t>(canonical_bf16(x));
    } else {
      logits[col] = x;
    }
  }
};

inline constexpr float minus_infinity = fp32_from_bits(fp32_infinity_bits | fp32_sign_mask);

/// The largest of a segment's numbers, which are not NaN.
__device__ inline float segment_max(float x) {
  ROTOSCALE_UNROLL
  for (unsigned mask = 16; mask > 0; mask /= 2) {
    x = __builtin_fmaxf(x, shuffle_xor(x, mask));
  }
  return x;
}

/// The largest numbers of the segments of row_threads threads.
struct alignas(16) segment_maxima {
  float of[row_threads / segment_lanes];

  __device__ float largest() const {
    float x = of[0];
    ROTOSCALE_UNROLL
    for (unsigned i = 1; i < row_threads / segment_lanes; ++i) x = __builtin_fmaxf(x, of[i]);
    return x;
  }
};
/// The largest of the block's numbers, which are not NaN.
__device__ inline float block_max(float x) {
  auto& maxima = block_shared<segment_maxima>();
  x = segment_max(x);
  if (thread_index().x % segment_lanes == 0) maxima.of[thread_index().x / segment_lanes] = x;
  block_barrier();
  return maxima.largest();
}

/// What a block that sums a chunk shares.
struct softmax_shared {
  alignas(16) float e[nn::softmax_chunk];
};
/// The exponentials of a block's chunk stay in x; lane 0 returns their sum; `largest` is the chunk's largest logit.
__device__ inline float sum_chunk(const logits_chunk& at, bool vectors, bool again, softmax_shared& shared,
                                  float (&x)[softmax_elements], float& largest) {
  largest = minus_infinity;
  at.load_all(vectors, again, minus_infinity, x);
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

/// Turns a thread's exponentials into gradients and stores them; `z_target` is the logit at `place` of the chunk, asked
/// of the thread that stores there (owns). Only that element is computed and stored once more, so that the others need
/// no comparison.
__device__ inline bool owns(unsigned place) {
  return place < nn::softmax_chunk && place / 4 % row_threads == thread_index().x;
}
__device__ inline void store_gradient(const loss_args& a, const logits_chunk& at, unsigned place, float z_target,
                                      float shift, float factor, float (&x)[softmax_elements]) {
  // No NaN among the exponentials and an infinite one neither, or the factor would be NaN.
  const bool numbers = (fp32_bits(factor) & fp32_magnitude_mask) < fp32_infinity_bits;
  ROTOSCALE_UNROLL
  for (float& e : x) e *= factor;
  at.store_all(a, x, numbers);
  if (owns(place)) {
    at.store_one(place, nn::fma(nn::exp_of_difference(z_target - shift), factor, -a.state->gradient_scale));
  }
}

/// A masked row's loss, by one thread; `given` is its target.
__device__ inline void mask_loss(const loss_args& a, index_t row, std::int32_t given) {
  a.loss[row] = 0.0f;
  const bool asked = given == nn::ignored_target;
  if (!asked && a.fault != nullptr) atomic_max(a.fault, static_cast<std::uint32_t>(a.first + row + 1));
}
/// No gradient for a masked row.
__device__ inline void mask_gradient(const loss_args& a, const logits_chunk& at) {
  const float zeros[softmax_elements] = {};
  at.store_all(a, zeros, true);
}

/// Rows of one chunk: a block a row, whose logits are read once.
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads, softmax_blocks)
    softmax_row_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a) {
  const logits_chunk at(a, block_index().x, 0);
  const std::int32_t given = a.given_target(at.row), target = a.checked(given);
  if (target == nn::ignored_target) {
    if (thread_index().x == 0) mask_loss(a, at.row, given);
    if (a.gradients) mask_gradient(a, at);
    return;
  }
  auto& shared = block_shared<softmax_shared>();
  auto& factor = block_shared<float>();
  const float z_target = at.logits[target];
  float x[softmax_elements], largest;
  const float sum = sum_chunk(at, a.vectors, false, shared, x, largest);
  if (thread_index().x == 0) {
    // As one chunk of several: its weight is 1, or NaN where the largest logit is not finite.
    const float weight = nn::exp(largest - largest), weighted = nn::fma(sum, weight, 0.0f);
    a.loss[at.row] = nn::log(weighted) - (z_target - largest);
    factor = weight * (a.state->gradient_scale / weighted);
  }
  if (!a.gradients) return;
  block_barrier();
  store_gradient(a, at, static_cast<unsigned>(target), z_target, nn::softmax_shift(largest), factor, x);
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
  const float sum = sum_chunk(at, a.vectors, true, shared, x, largest);
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

/// What a ticket is for.
struct softmax_item {
  unsigned row, chunk;
  std::int32_t given;  ///< the row's target
  bool gradient, is_there;
};
/// The next one; one thread of a block asks, since the divisions are a fourth of the block's instructions if all do.
__device__ inline softmax_item next_item(const loss_args& a, const softmax_order& order) {
  softmax_item next = {};
  next.is_there = order.find(atomic_add(a.control, 1), next.row, next.chunk, next.gradient) && next.row < a.rows &&
                  (a.gradients || !next.gradient);
  if (next.is_there) next.given = a.given_target(next.row);
  return next;
}

[[maybe_unused]] static __global__ void __launch_bounds__(row_threads, softmax_blocks)
    softmax_chunks_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a, const softmax_order order) {
  auto& shared = block_shared<softmax_shared>();
  auto& item = block_shared<softmax_item>();
  if (thread_index().x == 0) item = next_item(a, order);
  block_barrier();
  if (!item.is_there) return;
  const unsigned row = item.row, chunk = item.chunk;
  const bool gradient = item.gradient;
  const logits_chunk at(a, row, chunk);
  const std::int32_t given = item.given, target = a.checked(given);
  if (target == nn::ignored_target) {
    if (!gradient && chunk == 0 && thread_index().x == 0) mask_loss(a, row, given);
    if (gradient) mask_gradient(a, at);
    return;
  }
  if (!gradient) return sum_row_chunk(a, at, target, shared);
  if (thread_index().x == 0) {
    while (load_relaxed(a.control + 1 + row) != a.chunks + 1) {
    }
    device_fence();
  }
  block_barrier();
  const softmax_part* const part = a.parts + at.row * a.chunks + at.chunk;
  const float shift = load_relaxed(&part->shift), factor = load_relaxed(&part->value);
  const unsigned place = static_cast<unsigned>(target) - chunk * static_cast<unsigned>(nn::softmax_chunk);
  const float z_target = owns(place) ? at.logits[place] : 0.0f;
  float x[softmax_elements];
  at.load_all(a.vectors, false, 0.0f, x);
  ROTOSCALE_UNROLL
  for (float& e : x) e = nn::exp_of_difference(e - shift);
  store_gradient(a, at, place, z_target, shift, factor, x);
}

}  // namespace rotoscale::gpu
