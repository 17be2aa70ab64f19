// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Output head and loss by chunks of tokens, so that the logits of all tokens are never in memory at once.
#pragma once

#include "rotoscale/nn/backend.hpp"

namespace rotoscale::nn {

/// One chunk of tokens.
struct head_chunk {
  operand_set* x = nullptr;  ///< operands of the chunk's rows of x
  index_t first = 0;         ///< first token
  index_t count = 0;         ///< tokens
};

/// Arguments of the output head.
struct head_args {
  const_tensor_view x;                                    ///< (tokens, hidden)
  std::span<const head_chunk> chunks;                     ///< in order
  operand_set* w = nullptr;                               ///< the head's weights
  const gemm_contract* contracts[3] = {};                 ///< fprop, dgrad, wgrad
  tensor_view logits;                                     ///< (tokens of the largest chunk, vocabulary), FP32
  std::span<const std::unique_ptr<operand_set>> dlogits;  ///< one per chunk
  token_source targets;                                   ///< ignored_target where masked
  float* loss = nullptr;                                  ///< (tokens)
  bool gradients = false;                                 ///< compute dx and dw
  tensor_view dx;                                         ///< (tokens, hidden)
  tensor_view dw;                                         ///< added to; empty if the head is frozen
  operand_format dx_output = operand_format::bf16;        ///< format of dx
  scaling_ref x_scaling;                                  ///< of x in FP8
  scaling_ref dlogits_scaling;                            ///< of the gradients of the logits in FP8
  bool keeps_dlogits = false;                             ///< the last chunk's are read from `logits` afterwards
};

/// Logits of a chunk. With `wgrad`, x also has its column form.
inline tensor_view head_chunk_logits(backend& ops, queue q, const head_args& a, const head_chunk& chunk, bool wgrad,
                                     const step_state* state) {
  const tensor_view logits = a.logits.part(0, 0, chunk.count);
  ops.quantize(q, {a.x.part(0, chunk.first, chunk.count), state}, {{chunk.x, true, wgrad, a.x_scaling}});
  ops.gemm(q, {{chunk.x, operand_form::row}, {a.w, operand_form::row}, *a.contracts[0], operand_format::fp32, false},
           {logits});
  return logits;
}

/// Logits, losses and, with gradients, dx and dw of chunk i.
inline void head_chunk_loss(backend& ops, queue q, const head_args& a, std::size_t i, const step_state* state) {
  const head_chunk& chunk = a.chunks[i];
  const bool wgrad = a.gradients && !a.dw.empty();
  const tensor_view logits = head_chunk_logits(ops, q, a, chunk, wgrad, state);
  float* const loss = a.loss + chunk.first;
  if (!a.gradients) return ops.cross_entropy(q, {a.targets, chunk.first, false, state}, {logits, loss});
  operand_set* const d = a.dlogits[i].get();
  const bool keeps = a.keeps_dlogits || ops.layout_operands(d->request()).reads_source;
  ops.cross_entropy_quantize(q, {a.targets, chunk.first, state},
                             {logits, loss, {d, true, wgrad, a.dlogits_scaling, keeps}});
  ops.gemm(q, {{d, operand_form::row}, {a.w, operand_form::column}, *a.contracts[1], a.dx_output, false},
           {a.dx.part(0, chunk.first, chunk.count)});
  if (!wgrad) return;
  ops.gemm(q, {{d, operand_form::column}, {chunk.x, operand_form::column}, *a.contracts[2], operand_format::fp32, true},
           {a.dw});
}

/// All chunks, then the sum of the losses.
inline void head_loss(backend& ops, queue q, const head_args& a, step_state* state) {
  index_t tokens = 0;
  for (std::size_t i = 0; i < a.chunks.size(); ++i) {
    head_chunk_loss(ops, q, a, i, state);
    tokens += a.chunks[i].count;
  }
  ops.sum_losses(q, {a.loss, tokens}, {state});
}

}  // namespace rotoscale::nn
