// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What the operations of a backend are told. All memory in these is the backend's.
#pragma once

#include <memory>
#include <span>

#include "rotoscale/nn/operand.hpp"
#include "rotoscale/nn/step_state.hpp"

namespace rotoscale::nn {

/// Target of masked positions: they count nowhere.
inline constexpr std::int32_t ignored_target = -100;

enum class memory_kind {
  device,  ///< for operations
  pinned   ///< of the host, for asynchronous copies
};

/// Token or target numbers of a step: those of the current micro-batch begin at data + micro_batch * stride.
struct token_source {
  const std::int32_t* data = nullptr;
  index_t stride = 0;

  const std::int32_t* now(const step_state& state) const {
    return data + static_cast<index_t>(state.micro_batch) * stride;
  }
};

/// State of delayed scaling for `count` tensors; history is count × history_length.
struct scaling_state {
  index_t count = 0;
  int history_length = 0;
  float* scale = nullptr;
  float* scale_inverse = nullptr;
  float* amax = nullptr;
  float* history = nullptr;
  const float* largest = nullptr;  ///< largest number of each tensor's format
};

/// Attention's tensors: q and o [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim]; lse [batch,
/// heads, seq] keeps log Σ exp of the scaled scores for the backward pass.
struct attention_tensors {
  const_tensor_view q, k, v;
  tensor_view o;
  float* lse = nullptr;
};
struct attention_gradients {
  const_tensor_view d_o;
  tensor_view dq, dk, dv;
};

/// The trainable parameters in arenas of `size` elements. A parameter begins at a multiple of parameter_alignment; what
/// lies between is zero everywhere and stays so.
struct parameter_arena {
  struct segment {
    index_t first = 0, count = 0;
    bool decays = true;
  };
  float* weight = nullptr;
  float* gradient = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  index_t size = 0;
  std::span<const segment> segments;
};
/// Elements: a chunk of the sum of squares, so that no chunk holds two parameters.
inline constexpr index_t parameter_alignment = 4096;

/// Quantizes `source` into the forms of `set` that are wanted; no set: nothing.
struct quantize_target {
  operand_set* set = nullptr;
  bool row = false, column = false;
  scaling_ref scaling;
};

/// y = norm(sum), sum = x + branch (no branch: sum is x itself), then quantized.
struct residual_norm_args {
  const_tensor_view x, branch;
  const float* gain = nullptr;
  float epsilon = 1e-5f;
  tensor_view sum, y;
  float* rstd = nullptr;
  quantize_target to;
};

/// One chunk of tokens of the output head.
struct head_chunk {
  operand_set* x = nullptr;  ///< of these rows of the normed stream
  index_t first = 0, count = 0;
};

/// Logits, loss and, with gradients, dx and dw of the output head, a chunk of tokens after the other.
struct head_args {
  const_tensor_view x;  ///< [tokens, hidden]
  std::span<const head_chunk> chunks;
  operand_set* w = nullptr;
  const gemm_contract* contracts[3] = {};  ///< fprop, dgrad, wgrad
  tensor_view logits;                      ///< [most tokens of a chunk, vocabulary], FP32
  std::span<const std::unique_ptr<operand_set>> dlogits;  ///< a chunk each
  token_source targets;
  float* loss = nullptr;  ///< of each token
  bool gradients = false;
  tensor_view dx;  ///< [tokens, hidden]
  tensor_view dw;  ///< added to; empty where the head is frozen
  operand_format dx_output = operand_format::bf16;
};

/// The largest extents that a backend's operations will meet, for its workspace.
struct workspace_request {
  index_t tokens = 0;       ///< of a pass
  index_t widest = 0;       ///< columns of the widest GEMM output stored as BF16; 0: none is
  index_t hidden = 0;       ///< of norms
  index_t vocabulary = 0;   ///< of embeddings
  index_t parameters = 0;   ///< of the arena
};

}  // namespace rotoscale::nn
