// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations as calls of the launchers of gpu/api: launch(call, in, out). Fused operations that need a plan of the
// quantizer, and operations on operand sets, are in rows.cpp.
#pragma once

#include <algorithm>

#include "gpu/api/attention.hpp"
#include "gpu/api/nn.hpp"
#include "gpu/api/quantize_state.hpp"
#include "gpu/api/statistics.hpp"
#include "rotoscale/nn/operations.hpp"

namespace rotoscale::gpu {

namespace op = nn::op;

/// Where an operation runs, with the scratch memory of its queue.
struct device_call {
  stream s;
  void* workspace = nullptr;
  std::size_t bytes = 0;            ///< of workspace
  std::uint32_t* faults = nullptr;  ///< words for an id outside the vocabulary: of tokens, of targets; or null
};

/// Workspace of a launch in bytes.
template <class In, class Out>
std::size_t workspace(const In&, const Out&) {
  return 0;
}

inline status launch(const device_call& c, const op::begin_step::in& i, const op::begin_step::out& o) {
  return begin_step(i.targets, i.count, o.state, c.s);
}
inline status launch(const device_call& c, const op::set_gradient_scale::in&, const op::set_gradient_scale::out& o) {
  return set_gradient_scale(o.state, c.s);
}
inline status launch(const device_call& c, const op::next_micro_batch::in&, const op::next_micro_batch::out& o) {
  return next_micro_batch(o.state, c.s);
}
inline status launch(const device_call& c, const op::update_scales::in& i, const op::update_scales::out& o) {
  return update_scales(o.state, i.rule, c.s);
}
inline status launch(const device_call& c, const op::embedding_forward::in& i, const op::embedding_forward::out& o) {
  return embedding_forward(i.tokens, i.table, o.y, i.state, c.faults, c.s);
}
inline status launch(const device_call& c, const op::embedding_backward::in& i, const op::embedding_backward::out& o) {
  return embedding_backward(i.tokens, i.dy, o.dtable, i.state, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::embedding_backward::in& i, const op::embedding_backward::out& o) {
  return embedding_backward_workspace_bytes(i.dy.extent(0), o.dtable.extent(0));
}
inline status launch(const device_call& c, const op::rmsnorm_forward::in& i, const op::rmsnorm_forward::out& o) {
  return rmsnorm_forward(i.x, i.gain, i.epsilon, o.y, o.rstd, c.s);
}
inline status launch(const device_call& c, const op::rmsnorm_backward::in& i, const op::rmsnorm_backward::out& o) {
  return rmsnorm_backward(i.dy, i.x, i.gain, i.rstd, o.dx, o.dgain, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::rmsnorm_backward::in& i, const op::rmsnorm_backward::out&) {
  return rmsnorm_backward_workspace_bytes(i.x.extent(0), i.x.extent(1));
}
inline status launch(const device_call& c, const op::layernorm_forward::in& i, const op::layernorm_forward::out& o) {
  return layernorm_forward(i.x, i.gain, i.bias, i.epsilon, o.y, o.mean, o.rstd, c.s);
}
inline status launch(const device_call& c, const op::layernorm_backward::in& i, const op::layernorm_backward::out& o) {
  return layernorm_backward(i.dy, i.x, i.gain, i.mean, i.rstd, o.dx, o.dgain, o.dbias, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::layernorm_backward::in& i, const op::layernorm_backward::out&) {
  return layernorm_backward_workspace_bytes(i.x.extent(0), i.x.extent(1));
}
inline status launch(const device_call& c, const op::bias_forward::in& i, const op::bias_forward::out& o) {
  return bias_forward(i.table, o.x, c.s);
}
inline status launch(const device_call& c, const op::bias_backward::in& i, const op::bias_backward::out& o) {
  return bias_backward(i.dy, o.dtable, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::bias_backward::in& i, const op::bias_backward::out& o) {
  return bias_backward_workspace_bytes(i.dy.extent(0), i.dy.extent(1), o.dtable.extent(0));
}
inline nn::residual_norm_args arguments_of(const op::residual_norm::in& i, const op::residual_norm::out& o) {
  return {i.x, i.branch, i.gain, i.epsilon, o.sum, o.y, o.rstd, i.bias, o.mean};
}
/// Without the quantizer.
inline status launch(const device_call& c, const op::residual_norm::in& i, const op::residual_norm::out& o) {
  return residual_norm(arguments_of(i, o), c.s);
}
inline status launch(const device_call& c, const op::rope::in& i, const op::rope::out& o) {
  return rope(o.x, i.cosine, i.sine, i.inverse, c.s);
}
inline status launch(const device_call& c, const op::rope_both::in& i, const op::rope_both::out& o) {
  return rope_both(o.queries, o.keys, i.cosine, i.sine, i.inverse, c.s);
}
inline status launch(const device_call& c, const op::attention_forward::in& i, const op::attention_forward::out& o) {
  return attention_forward(i.contract, {i.q, i.k, i.v, o.o, o.lse, i.starts}, i.state, c.s);
}
inline status launch(const device_call& c, const op::attention_backward::in& i, const op::attention_backward::out& o) {
  const nn::tensor_view result{const_cast<void*>(i.o.data),
                               i.o.type,
                               i.o.rank,
                               {i.o.extents[0], i.o.extents[1], i.o.extents[2], i.o.extents[3]},
                               {i.o.strides[0], i.o.strides[1], i.o.strides[2], i.o.strides[3]}};
  return attention_backward(i.contract, {i.q, i.k, i.v, result, const_cast<float*>(i.lse), i.starts},
                            {i.d_o, o.dq, o.dk, o.dv}, i.state, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::attention_backward::in& i, const op::attention_backward::out&) {
  return attention_backward_workspace_bytes(i.q.extent(0), i.q.extent(1), i.q.extent(2));
}
inline status launch(const device_call& c, const op::activation_forward::in& i, const op::activation_forward::out& o) {
  return activation_forward(i.which, i.x, o.h, c.s);
}
inline status launch(const device_call& c, const op::activation_backward::in& i,
                     const op::activation_backward::out& o) {
  return activation_backward(i.which, i.dh, i.x, o.dx, c.s);
}
inline status launch(const device_call& c, const op::add::in& i, const op::add::out& o) {
  return add(i.x, i.y, o.sum, c.s);
}
inline status launch(const device_call& c, const op::dropout::in& i, const op::dropout::out& o) {
  return dropout(i.x, i.args, o.y, i.accumulate, i.state, c.s);
}
/// With `narrow`, the gradients are written there as BF16.
inline status launch(const device_call& c, const op::cross_entropy::in& i, const op::cross_entropy::out& o,
                     bf16* narrow = nullptr) {
  std::uint32_t* const fault = c.faults == nullptr ? nullptr : c.faults + 1;
  return cross_entropy(o.logits, i.targets, i.first, o.loss, i.gradients, i.state, fault, c.workspace, c.bytes, c.s,
                       narrow);
}
inline std::size_t workspace(const op::cross_entropy::in&, const op::cross_entropy::out& o) {
  return cross_entropy_workspace_bytes(o.logits.extent(0), o.logits.extent(1));
}
inline status launch(const device_call& c, const op::sum_losses::in& i, const op::sum_losses::out& o) {
  return sum_losses(i.loss, i.n, o.state, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::sum_losses::in& i, const op::sum_losses::out&) {
  return sum_losses_workspace_bytes(i.n);
}
inline status launch(const device_call& c, const op::sum_squares::in& i, const op::sum_squares::out& o) {
  return sum_squares(i.x, i.arena, o.squares, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::sum_squares::in& i, const op::sum_squares::out&) {
  return sum_squares_workspace_bytes(i.arena.size);
}
inline status launch(const device_call& c, const op::gradient_norm::in& i, const op::gradient_norm::out& o) {
  return gradient_norm(i.arena, i.config, o.state, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::gradient_norm::in& i, const op::gradient_norm::out&) {
  return sum_squares_workspace_bytes(i.arena.size);
}
inline status launch(const device_call& c, const op::adamw::in& i, const op::adamw::out& o) {
  return adamw(o.arena, i.config, i.state, c.s);
}
inline status launch(const device_call& c, const op::compare::in& i, const op::compare::out& o) {
  return compare(i.value, i.reference, i.n, o.to, c.workspace, c.bytes, c.s);
}
inline std::size_t workspace(const op::compare::in& i, const op::compare::out&) { return compare_workspace_bytes(i.n); }
inline std::size_t workspace(const op::observe::in& i, const op::observe::out&) {
  return observe_workspace_bytes(std::max(i.source.extent(0), i.source.extent(1)));
}

}  // namespace rotoscale::gpu
