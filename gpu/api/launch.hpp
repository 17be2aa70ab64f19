// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// How operations are launched: launch<op::add>(call, {x, y}, {sum}). rotoscale/nn/operations/ documents each operation
// and its arguments. Each follows its contract of docs/reference/layers.md, so its bytes are the CPU's (except which
// NaN a result is).
//
// Rules for all launchers:
// - All pointers, also in views, are device memory.
// - A launcher puts its kernels on the call's stream, allocates nothing, waits for nothing and can be captured.
// - On any status but ok, nothing was launched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rotoscale/nn/operations.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

namespace op = nn::op;

/// Where an operation runs, with its scratch memory.
struct device_call {
  stream s;                         ///< takes the kernels
  void* workspace = nullptr;        ///< device memory aligned to 16 bytes, used by this call only
  std::size_t bytes = 0;            ///< of workspace
  std::uint32_t* faults = nullptr;  ///< largest 1 + position of an id outside the vocabulary: of tokens, of targets
};

/// Launches operation Op. Without a launcher it does not compile.
template <class Op>
status launch(const device_call& call, const typename Op::in& i, const typename Op::out& o) = delete;

/// Workspace of a launch in bytes. Depends on extents and types; addresses may be null.
template <class Op>
std::size_t workspace_bytes(const typename Op::in&, const typename Op::out&) {
  return 0;
}

// Operations on operand sets and fused ones have no launcher.
#define ROTOSCALE_LAUNCHER(name) \
  template <>                    \
  status launch<op::name>(const device_call& call, const op::name::in& i, const op::name::out& o);
ROTOSCALE_TRAINING_OPERATIONS(ROTOSCALE_LAUNCHER)
ROTOSCALE_LAYER_OPERATIONS(ROTOSCALE_LAUNCHER)
ROTOSCALE_LAUNCHER(update_scales)
ROTOSCALE_LAUNCHER(compare)
#undef ROTOSCALE_LAUNCHER

#define ROTOSCALE_WORKSPACE(name) \
  template <>                     \
  std::size_t workspace_bytes<op::name>(const op::name::in& i, const op::name::out& o);
ROTOSCALE_WORKSPACE(embedding_backward)
ROTOSCALE_WORKSPACE(norm_backward)
ROTOSCALE_WORKSPACE(activation_backward)
ROTOSCALE_WORKSPACE(bias_backward)
ROTOSCALE_WORKSPACE(attention_backward)
ROTOSCALE_WORKSPACE(cross_entropy)
ROTOSCALE_WORKSPACE(sum_losses)
ROTOSCALE_WORKSPACE(sum_squares)
ROTOSCALE_WORKSPACE(compare)
#undef ROTOSCALE_WORKSPACE

}  // namespace rotoscale::gpu
