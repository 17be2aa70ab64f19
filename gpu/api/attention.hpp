// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Attention on a device. Its launches (launch.hpp) have the bytes of the CPU, under the contracts of
// docs/reference/layers.md. All tensors are FP32, or all are BF16. Elements of a head are contiguous, and a head has at
// most 128 elements. Without documents the state may be null.
#pragma once

#include "device.hpp"
#include "launch.hpp"

namespace rotoscale::gpu {

/// True if `device` has a kernel for `contract` at this head size. A build for the host supports every device's
/// contracts.
bool runs_attention(const nn::attention_contract& contract, index_t head_dim, const device_info& device);

}  // namespace rotoscale::gpu
