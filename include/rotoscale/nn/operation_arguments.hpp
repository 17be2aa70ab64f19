// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Argument types that operations and launchers share. All pointers and views are backend memory.
#pragma once

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
  index_t stride = 0;                  ///< ids from a microbatch to the next

  /// Ids of the current microbatch.
  ROTOSCALE_HD const std::int32_t* now(const step_state& state) const {
    return data + static_cast<index_t>(state.micro_batch) * stride;
  }
};

/// State of delayed scaling for `count` tensors; history is count × history_length.
struct scaling_state {
  index_t count = 0;               ///< tensors
  int history_length = 0;          ///< entries of each tensor
  float* scale = nullptr;          ///< what elements are multiplied by
  float* scale_inverse = nullptr;  ///< 1 / scale
  float* amax = nullptr;           ///< largest magnitudes since the last update
  float* history = nullptr;        ///< [count, history_length], the newest first
  const float* largest = nullptr;  ///< largest number of each tensor's format
};

/// Attention's tensors: q and o (batch, queries, heads, head_dim), k and v (batch, seq, kv_heads, head_dim), lse
/// (batch, heads, queries) with log Σ exp of the scaled scores. The queries are the last tokens of a sequence, or all
/// tokens if a backward pass follows. A query sees the keys of its document up to its own position.
struct attention_tensors {
  const_tensor_view q;   ///< queries
  const_tensor_view k;   ///< keys
  const_tensor_view v;   ///< values
  tensor_view o;         ///< the result
  float* lse = nullptr;  ///< kept for the backward pass
  /// (batch, seq) of a microbatch: position in the sequence where each token's document begins. Null data: a sequence
  /// is one document.
  token_source starts;

  /// Tokens of a sequence before the first query.
  index_t past() const { return k.extent(1) - q.extent(1); }
};
/// Gradients of attention's tensors, in their shapes.
struct attention_gradients {
  const_tensor_view d_o;  ///< of the result
  tensor_view dq;         ///< of the queries
  tensor_view dk;         ///< of the keys
  tensor_view dv;         ///< of the values
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
};
/// Forms of an operand set that quantizing writes.
struct quantize_target {
  operand_set* set = nullptr;  ///< null: none
  bool row = false;            ///< write the row form
  bool column = false;         ///< write the column form
  scaling_ref scaling;         ///< of an FP8 form
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

/// Arguments of the launchers of residual_norm: y = norm(sum), sum = x + branch, or x without a branch. With a bias the
/// norm is LayerNorm, otherwise RMSNorm.
struct residual_norm_args {
  const_tensor_view x;          ///< [tokens, features]
  const_tensor_view branch;     ///< the same, or empty
  const float* gain = nullptr;  ///< [features]
  float epsilon = 1e-5f;        ///< added to the mean square
  tensor_view sum;              ///< x + branch
  tensor_view y;                ///< its norm
  float* rstd = nullptr;        ///< [tokens], kept for the backward pass
  const float* bias = nullptr;  ///< [features], of LayerNorm
  float* mean = nullptr;        ///< [tokens], of LayerNorm, kept for the backward pass
};

/// Partial sums of layernorm_backward: rows × cols elements, 64 rows each, for gain and bias.
constexpr index_t layernorm_partials(index_t rows, index_t cols) {
  return 2 * ((rows + gain_chunk - 1) / gain_chunk) * cols;
}
/// Partial sums of bias_backward for a table of `period` rows, 64 terms each.
constexpr index_t bias_partials(index_t rows, index_t cols, index_t period) {
  const index_t terms = (rows + period - 1) / period;
  return (terms + gain_chunk - 1) / gain_chunk * period * cols;
}

}  // namespace rotoscale::nn
