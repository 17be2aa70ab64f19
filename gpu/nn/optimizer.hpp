// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Kernels over parameter arenas: gradient norm, AdamW, sums of squares. Also the step state and the sum of losses.
#pragma once

#include "gpu/nn/rows.hpp"
#include "gpu/nn/tree_sum.hpp"
#include "rotoscale/nn/deoscillation.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned arena_chunk = static_cast<unsigned>(nn::parameter_alignment);

/// Returns the index of the last segment that starts at or before `element` (binary search), or -1.
__device__ inline index_t find_segment(const nn::parameter_arena::segment* segments, index_t count, index_t element) {
  index_t low = -1;
  for (index_t high = count; high - low > 1;) {
    const index_t middle = (low + high) / 2;
    (segments[middle].first <= element ? low : high) = middle;
  }
  return low;
}

struct squares_args {
  const float* x = nullptr;
  index_t size = 0;
  double* partial = nullptr;
  const nn::parameter_arena::segment* segments = nullptr;  ///< null: all of x
  index_t segment_count = 0;

  /// Elements of a chunk.
  __device__ unsigned count(index_t chunk) const {
    index_t end = size;
    if (segments != nullptr) {
      const index_t i = find_segment(segments, segment_count, chunk * arena_chunk);
      end = i < 0 ? 0 : segments[i].first + segments[i].count;
    }
    const index_t left = end - chunk * arena_chunk;
    return left <= 0 ? 0 : left < arena_chunk ? static_cast<unsigned>(left) : arena_chunk;
  }
};

/// Sums squares of a chunk in FP32, by sixteen lanes.
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    squares_kernel(const ROTOSCALE_GRID_CONSTANT squares_args a) {
  const unsigned t = thread_index().x;
  const index_t chunk = block_index().x * index_t{row_threads / 16} + t / 16;
  const float* const x = a.x + chunk * arena_chunk;
  const float sum = lane_sum(a.count(chunk), t % 16, [&](unsigned i, float s) { return nn::fma(x[i], x[i], s); });
  if (t % 16 == 0 && chunk * arena_chunk < a.size) a.partial[chunk] = static_cast<double>(sum);
}

struct squares_sum_args {
  double* partial = nullptr;
  double* out = nullptr;
  const nn::parameter_arena::segment* segments = nullptr;
};
/// Sums the chunks of a segment as a tree, one block per segment.
[[maybe_unused]] static __global__ void __launch_bounds__(tree_threads)
    squares_sum_kernel(const ROTOSCALE_GRID_CONSTANT squares_sum_args a) {
  const nn::parameter_arena::segment s = a.segments[block_index().x];
  double* const terms = a.partial + s.first / arena_chunk;
  const double sum = tree_sum(terms, terms, (s.count + arena_chunk - 1) / arena_chunk);
  if (thread_index().x == 0) a.out[block_index().x] = sum;
}

struct norm_state_args {
  double* partial = nullptr;
  index_t count = 0;
  nn::optimizer_config config;
  nn::step_state* state = nullptr;
  const float* gradient = nullptr;
  index_t size = 0;
};
/// Sums the chunks' squares as a tree and sets the gradient norm of the state, in one block.
[[maybe_unused]] static __global__ void __launch_bounds__(tree_threads)
    gradient_norm_kernel(const ROTOSCALE_GRID_CONSTANT norm_state_args a) {
  const double sum = tree_sum(a.partial, a.partial, a.count);
  if (thread_index().x != 0) return;
  a.state->squares = sum;
  a.state->nonfinite = 0;
  nn::set_norm(a.config, *a.state);
}
/// Counts NaN and Inf gradients, only if the sum of squares is not finite. Squares may overflow although gradients are
/// finite.
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    nonfinite_kernel(const ROTOSCALE_GRID_CONSTANT norm_state_args a) {
  if (nn::is_finite(a.state->squares)) return;
  std::uint32_t count = 0;
  for (index_t i = block_index().x * index_t{row_threads} + thread_index().x; i < a.size;
       i += grid_size().x * index_t{row_threads}) {
    count += !nn::is_finite(a.gradient[i]);
  }
  if (count != 0) atomic_add(&a.state->nonfinite, count);
}

struct adamw_args {
  nn::optimizer_config config;
  const nn::step_state* state = nullptr;
  float *weight = nullptr, *m = nullptr, *v = nullptr;
  const float* gradient = nullptr;
  const nn::parameter_arena::segment* segments = nullptr;
  index_t segment_count = 0;
  float* average = nullptr;  ///< null: none
};

/// Averages up to four updated elements at `at`.
__device__ inline void average_four(const adamw_args& a, const nn::adamw_step& step, index_t at, unsigned count) {
  for (index_t i = at; i < at + (count < 4 ? count : 4); ++i) a.average[i] = step.averaged(a.weight[i], a.average[i]);
}

/// Updates up to four elements at `at`, of which `count` belong to the parameter.
__device__ inline void update_four(const adamw_args& a, const nn::adamw_step& step, index_t at, unsigned count) {
  if (count >= 4) {
    vec16 w = *reinterpret_cast<const vec16*>(a.weight + at), g = *reinterpret_cast<const vec16*>(a.gradient + at),
          m = *reinterpret_cast<const vec16*>(a.m + at), v = *reinterpret_cast<const vec16*>(a.v + at);
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      float weight = fp32_from_bits(w.word[i]), first = fp32_from_bits(m.word[i]), second = fp32_from_bits(v.word[i]);
      step.apply(weight, fp32_from_bits(g.word[i]), first, second);
      w.word[i] = fp32_bits(weight);
      m.word[i] = fp32_bits(first);
      v.word[i] = fp32_bits(second);
    }
    *reinterpret_cast<vec16*>(a.weight + at) = w;
    *reinterpret_cast<vec16*>(a.m + at) = m;
    *reinterpret_cast<vec16*>(a.v + at) = v;
    return;
  }
  for (index_t i = at; i < at + count; ++i) step.apply(a.weight[i], a.gradient[i], a.m[i], a.v[i]);
}

/// AdamW, one block per chunk of the arenas.
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    adamw_kernel(const ROTOSCALE_GRID_CONSTANT adamw_args a) {
  if (!nn::may_update(*a.state)) return;
  const index_t first = block_index().x * index_t{arena_chunk};
  const index_t i = find_segment(a.segments, a.segment_count, first);
  if (i < 0) return;
  const nn::parameter_arena::segment s = a.segments[i];
  const nn::adamw_step step(a.config, *a.state, s.decays);
  const index_t end = s.first + s.count;
  ROTOSCALE_UNROLL
  for (unsigned k = 0; k < arena_chunk / row_threads / 4; ++k) {
    const index_t at = first + 4 * (k * row_threads + thread_index().x);
    if (at >= end) continue;
    const unsigned count = end - at < 4 ? static_cast<unsigned>(end - at) : 4;
    update_four(a, step, at, count);
    if (a.average != nullptr) average_four(a, step, at, count);
  }
}

/// De-oscillation, one thread per weight and step.
struct deoscillate_args {
  nn::deoscillation_step step;
  nn::oscillation_state state;
  const std::uint16_t* quantized = nullptr;
  float* weight = nullptr;
  index_t size = 0;
};
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    deoscillate_kernel(const ROTOSCALE_GRID_CONSTANT deoscillate_args a) {
  for (index_t i = block_index().x * index_t{row_threads} + thread_index().x; i < a.size;
       i += grid_size().x * index_t{row_threads}) {
    a.step.apply(a.weight[i], fp32_from_bits(std::uint32_t{a.quantized[i]} << 16), a.state, i);
  }
}

/// Draws normal numbers. A thread draws four in each iteration.
struct draw_normal_args {
  nn::normal_draw how;
  float* x = nullptr;
  index_t size = 0;
};
[[maybe_unused]] static __global__ void __launch_bounds__(row_threads)
    draw_normal_kernel(const ROTOSCALE_GRID_CONSTANT draw_normal_args a) {
  for (index_t i = 4 * (block_index().x * index_t{row_threads} + thread_index().x); i < a.size;
       i += 4 * grid_size().x * index_t{row_threads}) {
    const philox_block block = a.how.words.block(static_cast<std::uint64_t>(i / 4));
    for (index_t j = 0; j < 4 && i + j < a.size; ++j) a.x[i + j] = a.how.value(block.word[j]);
  }
}

/// Adds the sum of `count` losses to the state, in one block.
struct loss_sum_args {
  const float* loss = nullptr;
  index_t count = 0;
  double* room = nullptr;
  nn::step_state* state = nullptr;
};
[[maybe_unused]] static __global__ void __launch_bounds__(tree_threads)
    loss_sum_kernel(const ROTOSCALE_GRID_CONSTANT loss_sum_args a) {
  const double sum = tree_sum(a.loss, a.room, a.count);
  if (thread_index().x == 0) a.state->add_loss(a.count == 0 ? 0.0 : sum);
}

/// Starts a step whose inputs have been uploaded, in one block: resets the state and counts valid targets.
struct begin_step_args {
  const std::int32_t* targets = nullptr;
  index_t count = 0;
  nn::step_state* state = nullptr;
};
[[maybe_unused]] static __global__ void __launch_bounds__(tree_threads)
    begin_step_kernel(const ROTOSCALE_GRID_CONSTANT begin_step_args a) {
  auto& valid = block_shared<std::int64_t[tree_threads]>();
  const unsigned t = thread_index().x;
  valid[t] = 0;
  for (index_t i = t; i < a.count; i += tree_threads) valid[t] += a.targets[i] != nn::ignored_target;
  for (unsigned half = tree_threads / 2; half > 0; half /= 2) {
    block_barrier();
    if (t < half) valid[t] += valid[t + half];
  }
  if (t != 0) return;
  nn::step_state fresh;
  fresh.inputs = a.state->inputs;
  fresh.valid_tokens = valid[0];
  *a.state = fresh;
}
[[maybe_unused]] static __global__ void gradient_scale_kernel(nn::step_state* state) {
  state->gradient_scale = nn::gradient_scale_of(state->valid_tokens);
}
[[maybe_unused]] static __global__ void next_micro_batch_kernel(nn::step_state* state) { state->end_micro_batch(); }

}  // namespace rotoscale::gpu
