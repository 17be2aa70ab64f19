// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Sums over whole arenas and the optimizer on the CPU. A sum of squares is FP32 within chunks of 4096 and a fixed tree
// in FP64 over the chunks, so that one flat launch of any shape can give its bits.
#pragma once

#include <algorithm>

#include "rotoscale/nn/cpu/storage.hpp"
#include "rotoscale/nn/math.hpp"
#include "rotoscale/nn/operations.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::nn::cpu {

/// The tree of every sum in FP64: over n terms padded with +0 to a power of two, halves are added element by element
/// (term i and term i + width / 2) until one is left. `terms` is used up.
inline double tree_sum(double* terms, index_t n) {
  index_t width = 1;
  while (width < n) width *= 2;
  for (; width > 1; width /= 2) {
    for (index_t i = 0; i + width / 2 < std::min(n, width); ++i) terms[i] += terms[i + width / 2];
  }
  return n == 0 ? 0.0 : terms[0];
}

inline constexpr index_t squares_chunk = parameter_alignment;

constexpr index_t chunk_count(index_t n) { return (n + squares_chunk - 1) / squares_chunk; }

/// The sum of squares of each chunk of 4096, in FP32.
inline void squares_of_chunks(const float* x, index_t n, double* partial, thread_pool& pool) {
  for_each_chunk(pool, n, squares_chunk, [&](index_t first, index_t last) {
    partial[first / squares_chunk] = static_cast<double>(
        ordered_sum(last - first, [&](index_t j, float s) { return fma(x[first + j], x[first + j], s); }));
  });
}

/// Σ x²; `partial` has a number for each chunk.
inline double sum_squares(const float* x, index_t n, double* partial, thread_pool& pool) {
  squares_of_chunks(x, n, partial, pool);
  return tree_sum(partial, chunk_count(n));
}

inline std::uint32_t count_nonfinite(const float* x, index_t n) {
  std::uint32_t count = 0;
  for (index_t i = 0; i < n; ++i) count += !is_finite(x[i]);
  return count;
}

inline void compute(const op::sum_losses::in& i, const op::sum_losses::out& o, thread_pool&) {
  const auto terms = work<double>(i.n);
  for (index_t t = 0; t < i.n; ++t) terms[t] = static_cast<double>(i.loss[t]);
  o.state->add_loss(tree_sum(terms.data(), i.n));
}
inline room workspace(const op::sum_losses::in& i, const op::sum_losses::out&) { return room_for<double>(i.n); }

inline void compute(const op::sum_squares::in& i, const op::sum_squares::out& o, thread_pool& pool) {
  for (std::size_t s = 0; s < i.arena.segments.size(); ++s) {
    const parameter_arena::segment& own = i.arena.segments[s];
    o.squares[s] = sum_squares(i.x + own.first, own.count, work<double>(chunk_count(own.count)).data(), pool);
  }
}
inline room workspace(const op::sum_squares::in& i, const op::sum_squares::out&) {
  return room_for<double>(chunk_count(i.arena.size));
}

inline void compute(const op::square_chunks::in& i, const op::square_chunks::out& o, thread_pool& pool) {
  squares_of_chunks(i.x, i.n, o.squares, pool);
}
/// Norm of all gradients, and clip factor.
inline void compute(const op::gradient_norm::in& i, const op::gradient_norm::out& o, thread_pool&) {
  step_state& state = *o.state;
  state.squares = tree_sum(o.squares, i.chunks);
  set_norm(i.config, state);
  // Squares may overflow where no gradient does; without an overflow nothing is NaN or Inf.
  state.nonfinite = is_finite(state.squares) ? 0 : count_nonfinite(i.gradient, i.n);
}

inline void compute(const op::adamw::in& i, const op::adamw::out& o, thread_pool& pool) {
  if (!may_update(*i.state)) return;
  const parameter_arena& arena = o.arena;
  const adamw_step with_decay(i.config, *i.state, true), without(i.config, *i.state, false);
  constexpr index_t chunk = 16384;
  for (const parameter_arena::segment& s : arena.segments) {
    const adamw_step& step = s.decays ? with_decay : without;
    for_each_chunk(pool, s.count, chunk, [&](index_t first, index_t last) {
      const index_t at = s.first + first;
      float *const weight = arena.weight + at, *const m = arena.m + at, *const v = arena.v + at;
      const float* const gradient = arena.gradient + at;
      for (index_t j = 0; j < last - first; ++j) step.apply(weight[j], gradient[j], m[j], v[j]);
      if (arena.average == nullptr) return;
      float* const average = arena.average + at;
      for (index_t j = 0; j < last - first; ++j) average[j] = step.averaged(weight[j], average[j]);
    });
  }
}

inline void compute(const op::deoscillate::in& i, const op::deoscillate::out& o, thread_pool& pool) {
  const bf16* const quantized = static_cast<const bf16*>(i.quantized.data);
  for_each_chunk(pool, i.quantized.size(), 16384, [&](index_t first, index_t last) {
    for (index_t j = first; j < last; ++j) i.step.apply(o.weight[j], load_element(quantized[j]), o.state, j);
  });
}

inline void compute(const op::draw_normal::in& i, const op::draw_normal::out& o, thread_pool& pool) {
  float* const x = static_cast<float*>(o.x.data);
  for_each_chunk(pool, o.x.size(), 16384, [&](index_t first, index_t last) {
    philox_block block{};
    for (index_t j = first; j < last; ++j) {
      if (j % 4 == 0) block = i.how.words.block(static_cast<std::uint64_t>(j / 4));
      x[j] = i.how.value(block.word[j % 4]);
    }
  });
}

}  // namespace rotoscale::nn::cpu
