// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The table of operations. Each has a name, a class, typed arguments and the memory that a call uses:
//   in       arguments that are read
//   out      arguments that are written
//   uses     memory of a call, outputs in the order of digests
//   compose  definition of a fused operation by others
// Digests and profiles derive from it. Bodies are in nn/cpu/rows.hpp and gpu/train/rows.cpp, definitions in
// docs/reference/layers.md. All pointers and views are backend memory. Values that change between steps are read from
// step_state, so that graphs can be replayed.
#pragma once

#include "rotoscale/nn/operations/layers.hpp"
#include "rotoscale/nn/operations/operands.hpp"
#include "rotoscale/nn/operations/training.hpp"

namespace rotoscale::nn {

/// Calls X(name) for each operation.
#define ROTOSCALE_OPERATIONS(X)   \
  X(begin_step)                   \
  X(set_gradient_scale)           \
  X(next_micro_batch)             \
  X(quantize)                     \
  X(gemm)                         \
  X(dequantize)                   \
  X(update_scales)                \
  X(embedding_forward)            \
  X(embedding_backward)           \
  X(rmsnorm_forward)              \
  X(rmsnorm_backward)             \
  X(layernorm_forward)            \
  X(layernorm_backward)           \
  X(bias_forward)                 \
  X(bias_backward)                \
  X(rope)                         \
  X(attention_forward)            \
  X(attention_backward)           \
  X(activation_forward)           \
  X(activation_backward)          \
  X(add)                          \
  X(dropout)                      \
  X(cross_entropy)                \
  X(sum_losses)                   \
  X(sum_squares)                  \
  X(gradient_norm)                \
  X(adamw)                        \
  X(observe)                      \
  X(compare)                      \
  X(residual_norm)                \
  X(activation_quantize)          \
  X(activation_backward_quantize) \
  X(rope_both)                    \
  X(cross_entropy_quantize)

class backend;

/// Runs an operation on a backend.
template <class Op>
using op_row = void (*)(backend& on, queue q, const typename Op::in& i, const typename Op::out& o);

/// Workspace of a call in bytes. Depends on extents and types; addresses may be null.
template <class Op>
using op_workspace = std::size_t (*)(const backend& on, const typename Op::in& i, const typename Op::out& o);

/// What runs each operation on one kind of backend, and its workspace.
struct operation_table {
#define ROTOSCALE_ROW(name)  \
  op_row<op::name> name;     \
  op_workspace<op::name> name##_workspace;
  ROTOSCALE_OPERATIONS(ROTOSCALE_ROW)
#undef ROTOSCALE_ROW
};

}  // namespace rotoscale::nn
