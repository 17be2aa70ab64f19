// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention on a device, under the contracts of docs/reference/layers.md.
// Results equal the CPU backend's by bytes. Documents are attended to separately.
// Tensors, document starts and state are device memory. Nothing is allocated.
#pragma once

#include <cstddef>

#include "device.hpp"
#include "rotoscale/nn/attention_contract.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// True if `device` has a kernel for `contract` at this head size. A build for the host supports every device's
/// contracts.
bool runs_attention(const nn::attention_contract& contract, index_t head_dim, const device_info& device);

/// Workspace of attention_backward in bytes.
std::size_t attention_backward_workspace_bytes(index_t batch, index_t seq, index_t heads);

/// Computes o and lse from q, k and v. All tensors are FP32, or all are BF16. Elements of a head are contiguous, and a
/// head has at most 128 elements. Queries cover all tokens of a sequence or its last ones. `state` selects the document
/// starts of the current microbatch; null without documents. One launch.
status attention_forward(const nn::attention_contract& contract, const nn::attention_tensors& t,
                         const nn::step_state* state, stream s);

/// Overwrites dq, dk and dv, from d_o and the forward pass's inputs and results. Queries cover all tokens. `workspace`
/// is device memory aligned to 16 bytes. Three launches.
status attention_backward(const nn::attention_contract& contract, const nn::attention_tensors& t,
                          const nn::attention_gradients& d, const nn::step_state* state, void* workspace,
                          std::size_t workspace_bytes, stream s);

}  // namespace rotoscale::gpu
