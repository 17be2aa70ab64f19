// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The AMD kernels of statistics, for clang without an SDK: what tests/gpu/amd_listings.py reads the disassembly of.
#include "gpu/nn/statistics.hpp"

namespace rotoscale::gpu {

template __global__ void observe_kernel<bf16>(const observe_args);
template __global__ void observe_kernel<float>(const observe_args);

}  // namespace rotoscale::gpu
