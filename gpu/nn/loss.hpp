// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cross-entropy's kernels: a block takes 4096 logits of a row. The first kernel leaves each chunk's maximum and sum of
// exponentials, the second what they are to the row and the loss, the third the gradients.
#pragma once

#include "gpu/nn/rows.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::gpu {

/// What a chunk of logits is to the next kernel: its largest logit and its sum, then the shift of its exponentials and
/// their factor.
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
  softmax_part* parts = nullptr;
  bool gradients = false, vectors = false;

  /// The target of a row; nn::ignored_target for one outside of the vocabulary.
  __device__ std::int32_t target(index_t row) const {
    const std::int32_t n = targets.now(*state)[first + row];
    return n >= 0 && static_cast<unsigned>(n) < vocabulary ? n : nn::ignored_target;
  }
};

inline constexpr unsigned softmax_elements = nn::softmax_chunk / row_threads;  // of a thread, by fours

/// A block's chunk.
struct softmax_place {
  index_t row;
  unsigned chunk, count;
  float* logits;

  __device__ explicit softmax_place(const loss_args& a)
      : row(block_index().x / a.chunks), chunk(block_index().x % a.chunks) {
    const unsigned at = chunk * nn::softmax_chunk, left = a.vocabulary - at;
    count = left < nn::softmax_chunk ? left : static_cast<unsigned>(nn::softmax_chunk);
    logits = a.logits + row * a.stride + at;
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
  __device__ void store(unsigned col, bool vectors, const float* x) const {
    if (vectors && col + 4 <= count) {
      *reinterpret_cast<vec16*>(logits + col) = {{fp32_bits(x[0]), fp32_bits(x[1]), fp32_bits(x[2]), fp32_bits(x[3])}};
      return;
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      if (col + j < count) logits[col + j] = x[j];
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

[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    softmax_sum_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a) {
  const softmax_place at(a);
  if (a.target(at.row) == nn::ignored_target) return;
  const unsigned t = thread_index().x;
  float x[softmax_elements];
  const float minus_infinity = fp32_from_bits(fp32_infinity_bits | fp32_sign_mask);
  float largest = minus_infinity;
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i)
    at.load(softmax_place::column(i), a.vectors, minus_infinity, x + 4 * i);
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements; ++i) largest = x[i] > largest ? x[i] : largest;
  largest = block_max(largest);
  const float shift = nn::softmax_shift(largest);
  auto& e = block_shared<float[nn::softmax_chunk]>();
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements; ++i) {
    e[softmax_place::column(i / 4) + i % 4] = nn::exp(x[i] - shift);
  }
  block_barrier();
  if (t >= segment_lanes) return;
  const float sum = lane_sum(t < 16 ? at.count : 0, t % 16, [&](unsigned i, float s) { return s + e[i]; });
  if (t == 0) a.parts[at.row * a.chunks + at.chunk] = {largest, sum};
}

/// A thread a row: the loss, and each chunk's factor.
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    softmax_row_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a) {
  const index_t row = block_index().x * index_t{row_threads} + thread_index().x;
  if (row >= a.rows) return;
  const std::int32_t asked = a.targets.now(*a.state)[a.first + row], target = a.target(row);
  if (asked != target && a.fault != nullptr) atomic_max(a.fault, static_cast<std::uint32_t>(a.first + row + 1));
  if (target == nn::ignored_target) {
    a.loss[row] = 0.0f;
    return;
  }
  softmax_part* const parts = a.parts + row * a.chunks;
  float largest = parts[0].shift;
  for (unsigned c = 1; c < a.chunks; ++c) largest = parts[c].shift > largest ? parts[c].shift : largest;
  float sum = 0.0f;
  for (unsigned c = 0; c < a.chunks; ++c) sum = nn::fma(parts[c].value, nn::exp(parts[c].shift - largest), sum);
  a.loss[row] = nn::log(sum) - (a.logits[row * a.stride + target] - largest);
  const float scale = a.state->gradient_scale / sum;
  for (unsigned c = 0; c < a.chunks; ++c) {
    parts[c].value = nn::exp(parts[c].shift - largest) * scale;
    parts[c].shift = nn::softmax_shift(parts[c].shift);
  }
}

[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    softmax_gradient_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a) {
  const softmax_place at(a);
  const std::int32_t target = a.target(at.row);
  float x[softmax_elements] = {};
  if (target != nn::ignored_target) {
    const softmax_part part = a.parts[at.row * a.chunks + at.chunk];
    const unsigned place = static_cast<unsigned>(target) - at.chunk * nn::softmax_chunk;
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < softmax_elements / 4; ++i) at.load(softmax_place::column(i), a.vectors, 0.0f, x + 4 * i);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < softmax_elements; ++i) {
      const float e = nn::exp(x[i] - part.shift);
      const bool is_target = softmax_place::column(i / 4) + i % 4 == place;
      x[i] = is_target ? nn::fma(e, part.value, -a.state->gradient_scale) : e * part.value;
    }
  }
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < softmax_elements / 4; ++i) at.store(softmax_place::column(i), a.vectors, x + 4 * i);
}

}  // namespace rotoscale::gpu
