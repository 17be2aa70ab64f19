// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Argument types that operations and launchers share. All pointers and views are backend memory.
#pragma once

#include <algorithm>
#include <memory>
#include <span>

#include "rotoscale/nn/layer_math.hpp"
#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/operand.hpp"
#include "rotoscale/nn/optimizer_math.hpp"
#include "rotoscale/nn/random_streams.hpp"
#include "rotoscale/nn/step_state.hpp"

namespace rotoscale::nn {

/// Target of masked positions, which have no loss and no gradient.
inline constexpr std::int32_t ignored_target = -100;

/// Token or target ids of a step. Those of the current microbatch begin at data + micro_batch * stride.
struct token_source {
  const std::int32_t* data = nullptr;  ///< ids of microbatch 0
  index_t stride = 0;                  ///< distance from one microbatch to the next, in ids

  /// Ids of the current microbatch.
  ROTOSCALE_HD const std::int32_t* now(const step_state& state) const {
    return data + static_cast<index_t>(state.micro_batch) * stride;
  }
};

/// State of delayed scaling for `count` tensors; history is count × history_length.
struct scaling_state {
  index_t count = 0;               ///< tensors
  int history_length = 0;          ///< entries of each tensor
  float* scale = nullptr;          ///< multiplies elements
  float* scale_inverse = nullptr;  ///< 1 / scale
  float* amax = nullptr;           ///< largest magnitudes since the last update
  float* history = nullptr;        ///< [count, history_length], the newest first
  const float* largest = nullptr;  ///< largest number of each tensor's format
};

/// The trainable parameters in arenas of `size` elements. A parameter begins at a multiple of parameter_alignment. Gaps
/// between parameters are zero.
struct parameter_arena {
  /// One parameter in the arenas.
  struct segment {
    index_t first = 0;   ///< element of the arena
    index_t count = 0;   ///< elements
    bool decays = true;  ///< weight decay applies
  };
  float* weight = nullptr;                       ///< FP32 masters
  float* gradient = nullptr;                     ///< main gradients
  float* m = nullptr;                            ///< AdamW's first moments
  float* v = nullptr;                            ///< AdamW's second moments
  index_t size = 0;                              ///< elements of each arena
  std::span<const segment> segments;             ///< the parameters, ascending, in host memory
  const segment* segments_in_backend = nullptr;  ///< the same in backend memory
  float* average = nullptr;                      ///< moving average of `weight`; null: none
  float* last = nullptr;                         ///< of de-oscillation, as oscillation_state; null: none
  float* last_quantized = nullptr;               ///< the same
  float* moved = nullptr;                        ///< the same
  float* moved_quantized = nullptr;              ///< the same
};
/// Elements [first, first + count) of the arenas.
struct arena_range {
  index_t first = 0;  ///< a multiple of parameter_alignment
  index_t count = 0;  ///< elements
};
/// Intersection of two ranges.
constexpr arena_range intersection(arena_range a, arena_range b) {
  const index_t first = std::max(a.first, b.first), last = std::min(a.first + a.count, b.first + b.count);
  return {first, std::max<index_t>(0, last - first)};
}
/// Forms of an operand set that quantizing writes.
struct quantize_target {
  operand_set* set = nullptr;  ///< null: none
  bool row = false;            ///< write the row form
  bool column = false;         ///< write the column form
  scaling_ref scaling;         ///< delayed scaling of an FP8 form
  /// The source is read later. Otherwise a fused operation may leave it unwritten.
  bool keeps_source = true;
};

/// Dropout before the adapter of part `part` of linear layer `layer`. Kept elements are multiplied by `factor`, others
/// are 0. Random words depend on step, microbatch, layer and part only, so a second call has the same mask.
struct dropout_args {
  index_t layer = 0;            ///< of the random stream, below 2^14
  int part = 0;                 ///< of the random stream, 0 to 3
  std::uint32_t threshold = 0;  ///< probability · 2^32; elements with smaller words are dropped
  float factor = 1.0f;          ///< of kept elements

  /// Element (r, c) of n columns takes word r · n + c.
  ROTOSCALE_HD random_stream words(const step_state& state) const {
    const std::uint64_t pass = state.inputs.step << 12 | (state.global_micro_batch() & 0xFFF);
    return stream_for(
        state.inputs.seed, random_purpose::dropout,
        static_cast<std::uint64_t>(part) << 54 | static_cast<std::uint64_t>(layer) << 40 | (pass & 0xFFFFFFFFFF));
  }
};

/// Approximately normal numbers, with the same bits on all machines. Element i is the sum of the bytes of word i less
/// its mean, times `factor`.
struct normal_draw {
  random_stream words;  ///< an element's word depends on its place alone
  float factor = 1.0f;  ///< standard deviation / 147.8

  /// Makes it for a standard deviation. The deviation of a sum is the root of (2^16 - 1) / 3.
  static normal_draw of(const random_stream& words, double deviation) {
    return {words, static_cast<float>(deviation / 147.80053)};
  }
  /// The element of a word.
  ROTOSCALE_HD float value(std::uint32_t word) const {
    const std::uint32_t pairs = (word & 0xFF00FF) + (word >> 8 & 0xFF00FF);
    return static_cast<float>(static_cast<int>((pairs & 0xFFFF) + (pairs >> 16)) - 510) * factor;
  }
};

/// Length of the partial sums of bias_backward, for a table of `period` rows, 64 terms each. A gain has a period of 1.
constexpr index_t bias_partials(index_t rows, index_t cols, index_t period) {
  const index_t terms = (rows + period - 1) / period;
  return (terms + gain_chunk - 1) / gain_chunk * period * cols;
}

}  // namespace rotoscale::nn
