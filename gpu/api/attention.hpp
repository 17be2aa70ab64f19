// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a device under a contract of docs/reference/layers.md: causal, grouped heads, within documents; the bytes that
// the CPU backend leaves. Tensors, starts and state are device memory; nothing is allocated.
#pragma once

#include <cstddef>

#include "device.hpp"
#include "rotoscale/nn/attention_contract.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "status.hpp"
#include "stream.hpp"

namespace rotoscale::gpu {

/// Has the device a kernel that keeps the contract for heads of this size? In a build for the host: those of every
/// device.
bool runs_attention(const nn::attention_contract& contract, index_t head_dim, const device_info& device);

/// Workspace of attention_backward in bytes.
std::size_t attention_backward_workspace_bytes(index_t batch, index_t seq, index_t heads);

/// o and lse from q, k and v: all FP32 or all BF16, elements of a head contiguous, heads of at most 128; queries of the
/// last tokens of a sequence or of all. `state` says which micro-batch's starts are meant; null where there are none.
/// One launch.
status attention_forward(const nn::attention_contract& contract, const nn::attention_tensors& t,
                         const nn::step_state* state, stream s);

/// Overwrites dq, dk and dv, from d_o and what the forward pass read and left, of queries of all tokens. `workspace` is
/// device memory aligned to 16 bytes. Three launches.
status attention_backward(const nn::attention_contract& contract, const nn::attention_tensors& t,
                          const nn::attention_gradients& d, const nn::step_state* state, void* workspace,
                          std::size_t workspace_bytes, stream s);

}  // namespace rotoscale::gpu
