// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Causal grouped-query attention on a device, under the contracts of docs/reference/layers.md.
// Results equal the CPU backend's by bytes. Documents are attended to separately.
// Tensors, document starts and state are device memory. Nothing is allocated.
#pragma once

#include "device.hpp"
#include "launch.hpp"

namespace rotoscale::gpu {

/// True if `device` has a kernel for `contract` at this head size. A build for the host supports every device's
/// contracts.
bool runs_attention(const nn::attention_contract& contract, index_t head_dim, const device_info& device);

/// All tensors are FP32, or all are BF16. Elements of a head are contiguous, and a head has at most 128 elements.
/// Without documents the state may be null. One launch.
ROTOSCALE_LAUNCHER(attention_forward);
/// The same. Three launches.
ROTOSCALE_LAUNCHER_WITH_WORKSPACE(attention_backward);

}  // namespace rotoscale::gpu
