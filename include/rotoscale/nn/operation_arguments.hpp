// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the operations of a backend are told. All memory in these is the backend's.
#pragma once

#include <memory>
#include <span>

#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/operand.hpp"
#include "rotoscale/nn/optimizer_math.hpp"
#include "rotoscale/nn/random_streams.hpp"
#include "rotoscale/nn/step_state.hpp"

namespace rotoscale::nn {

/// Target of masked positions: they count nowhere.
inline constexpr std::int32_t ignored_target = -100;

/// Token or target numbers of a step: those of the current micro-batch begin at data + micro_batch * stride.
struct token_source {
  const std::int32_t* data = nullptr;  ///< those of micro-batch 0
  index_t stride = 0;                  ///< numbers from a micro-batch to the next

  /// Those of the current micro-batch.
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

/// Attention's tensors: q and o [batch, queries, heads, head_dim], k and v [batch, seq, kv_heads, head_dim]; lse
/// [batch, heads, queries] keeps log Σ exp of the scaled scores for the backward pass. The queries are those of the
/// last tokens of a sequence, with a backward pass of all. A query sees the keys of its document up to its own place.
struct attention_tensors {
  const_tensor_view q;   ///< queries
  const_tensor_view k;   ///< keys
  const_tensor_view v;   ///< values
  tensor_view o;         ///< the result
  float* lse = nullptr;  ///< kept for the backward pass
  /// [batch, seq] of a micro-batch: the place within its sequence where each token's document begins, at most the
  /// token's own; no data: a sequence is one document.
  token_source starts;

  /// Tokens of a sequence in front of the first query.
  index_t past() const { return k.extent(1) - q.extent(1); }
};
/// Gradients of attention's tensors, in their shapes.
struct attention_gradients {
  const_tensor_view d_o;  ///< of the result
  tensor_view dq;         ///< of the queries
  tensor_view dk;         ///< of the keys
  tensor_view dv;         ///< of the values
};

/// The trainable parameters in arenas of `size` elements. A parameter begins at a multiple of parameter_alignment; what
/// lies between is zero everywhere and stays so.
struct parameter_arena {
  /// One parameter in the arenas.
  struct segment {
    index_t first = 0;   ///< element of the arena
    index_t count = 0;   ///< elements
    bool decays = true;  ///< does weight decay apply?
  };
  float* weight = nullptr;                       ///< FP32 masters
  float* gradient = nullptr;                     ///< main gradients
  float* m = nullptr;                            ///< AdamW's first moments
  float* v = nullptr;                            ///< AdamW's second moments
  index_t size = 0;                              ///< elements of each arena
  std::span<const segment> segments;             ///< the parameters, ascending; the host's memory
  const segment* segments_in_backend = nullptr;  ///< the same in the backend's memory
};
/// Quantizes `source` into the forms of `set` that are wanted; no set: nothing.
struct quantize_target {
  operand_set* set = nullptr;  ///< null: nothing is quantized
  bool row = false;            ///< is the row form wanted?
  bool column = false;         ///< is the column form?
  scaling_ref scaling;         ///< of an FP8 form
  /// Is the source read later, by the operands or by anybody else? If not, an operation that makes it and quantizes it
  /// may leave it unwritten.
  bool keeps_source = true;
};

/// Dropout in front of the adapter of part `part` of linear layer `layer`: what is kept is multiplied by `factor`, the
/// rest is 0. Words are those of the step, the micro-batch, the layer and the part, so that whoever asks again gets the
/// same mask.
struct dropout_args {
  index_t layer = 0;            ///< names the random stream, below 2^14
  int part = 0;                 ///< names it as well, 0 to 3
  std::uint32_t threshold = 0;  ///< an element whose word is below it is dropped: probability · 2^32
  float factor = 1.0f;          ///< of what is kept

  /// Element (r, c) of n columns takes word r · n + c.
  ROTOSCALE_HD random_stream words(const step_state& state) const {
    const std::uint64_t pass = state.inputs.step << 12 | (state.global_micro_batch() & 0xFFF);
    return stream_for(
        state.inputs.seed, random_purpose::dropout,
        static_cast<std::uint64_t>(part) << 54 | static_cast<std::uint64_t>(layer) << 40 | (pass & 0xFFFFFFFFFF));
  }
};

/// y = norm(sum), sum = x + branch (no branch: sum is x itself), then quantized.
struct residual_norm_args {
  const_tensor_view x;          ///< [tokens, features]
  const_tensor_view branch;     ///< the same, or empty
  const float* gain = nullptr;  ///< [features]
  float epsilon = 1e-5f;        ///< added to the mean square
  tensor_view sum;              ///< x + branch
  tensor_view y;                ///< its norm
  float* rstd = nullptr;        ///< [tokens], kept for the backward pass
  quantize_target to;           ///< what y becomes
};

/// One chunk of tokens of the output head.
struct head_chunk {
  operand_set* x = nullptr;  ///< of these rows of the normed stream
  index_t first = 0;         ///< token
  index_t count = 0;         ///< tokens
};

/// Logits, loss and, with gradients, dx and dw of the output head, a chunk of tokens after the other.
struct head_args {
  const_tensor_view x;                                    ///< [tokens, hidden]
  std::span<const head_chunk> chunks;                     ///< in order
  operand_set* w = nullptr;                               ///< the head's weights
  const gemm_contract* contracts[3] = {};                 ///< fprop, dgrad, wgrad
  tensor_view logits;                                     ///< [most tokens of a chunk, vocabulary], FP32
  std::span<const std::unique_ptr<operand_set>> dlogits;  ///< a chunk each
  token_source targets;                                   ///< ignored_target where masked
  float* loss = nullptr;                                  ///< of each token
  bool gradients = false;                                 ///< are dx and dw wanted?
  tensor_view dx;                                         ///< [tokens, hidden]
  tensor_view dw;                                         ///< added to; empty where the head is frozen
  operand_format dx_output = operand_format::bf16;        ///< what dx is rounded to
  scaling_ref x_scaling;                                  ///< of x in FP8
  scaling_ref dlogits_scaling;                            ///< of the logits' gradients in FP8
  bool keeps_dlogits = false;                             ///< are the last chunk's read from `logits` afterwards?
};

/// The largest extents that a backend's operations will meet, for its workspace.
struct workspace_request {
  index_t tokens = 0;                 ///< of a pass
  std::size_t gemm_bytes = 0;         ///< the most that gemm_workspace_bytes says of any GEMM
  index_t widest = 0;                 ///< columns of the widest GEMM output stored as BF16; 0: none is
  index_t hidden = 0;                 ///< of norms
  index_t heads = 0;                  ///< of attention's queries
  index_t vocabulary = 0;             ///< of embeddings
  index_t parameters = 0;             ///< of the arena
  index_t observed_rows = 0;          ///< of the operands that statistics look at; 0: none are
  index_t observed_elements = 0;      ///< of the tensors that they compare
  index_t features = 0;               ///< columns of the widest tensor that is no GEMM's output
  index_t sequence = 0;               ///< keys of attention
  attention_contract attention = {};  ///< what attention runs under
  index_t head_dim = 0;               ///< of attention
};

}  // namespace rotoscale::nn
