// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The table of operations. Each has a name, a class, a contract, typed arguments and the memory that a call uses:
//   in       Arguments that are read.
//   out      Arguments that are written.
//   uses     Memory of a call, outputs in the order of digests.
//   compose  Definition of a fused operation by others.
// Digests and profiles derive from it. Bodies are in nn/cpu/ and gpu/nn/, definitions in
// docs/reference/layers.md. All pointers and views are backend memory. Values that change between steps are read from
// step_state, so that graphs can be replayed.
#pragma once

#include <vector>

#include "rotoscale/nn/operations/layers.hpp"
#include "rotoscale/nn/operations/operands.hpp"
#include "rotoscale/nn/operations/training.hpp"

namespace rotoscale::nn {

/// Calls X(name) for each operation without a launcher: its rows choose parts to fuse.
#define ROTOSCALE_FUSED_OPERATIONS(X) \
  X(gemm_bias)                        \
  X(activation_quantize)              \
  X(activation_backward_quantize)     \
  X(cross_entropy_quantize)

/// Calls X(name) for each operation.
#define ROTOSCALE_OPERATIONS(X)    \
  ROTOSCALE_TRAINING_OPERATIONS(X) \
  ROTOSCALE_OPERAND_OPERATIONS(X)  \
  ROTOSCALE_LAYER_OPERATIONS(X)    \
  ROTOSCALE_FUSED_OPERATIONS(X)

/// Contracts of all operations but GEMMs and attention, which recipes name.
inline std::vector<operation_contract> reference_contracts() {
  std::vector<operation_contract> all;
  const auto add = [&](const operation_contract& c) {
    if (c.name != nullptr) all.push_back(c);
  };
#define ROTOSCALE_ADD(name) add(op::name::info.contract);
  ROTOSCALE_OPERATIONS(ROTOSCALE_ADD)
#undef ROTOSCALE_ADD
#define ROTOSCALE_ADD(name) add({#name, activation_math<activation::name>::contract});
  ROTOSCALE_ACTIVATIONS(ROTOSCALE_ADD)
#undef ROTOSCALE_ADD
  return all;
}

class backend;

/// Runs an operation on a backend.
template <class Op>
using op_row = void (*)(backend& on, queue q, const typename Op::in& i, const typename Op::out& o);

/// Workspace of a call in bytes. Depends on extents and types; addresses may be null.
template <class Op>
using op_workspace = std::size_t (*)(const backend& on, const typename Op::in& i, const typename Op::out& o);

/// Function of each operation on one kind of backend, and its workspace.
struct operation_table {
#define ROTOSCALE_ROW(name) \
  op_row<op::name> name;    \
  op_workspace<op::name> name##_workspace;
  ROTOSCALE_OPERATIONS(ROTOSCALE_ROW)
#undef ROTOSCALE_ROW
};

}  // namespace rotoscale::nn
