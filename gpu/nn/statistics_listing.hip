// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD kernels of statistics for clang without an SDK. tests/gpu/amd_listings.py reads their disassembly.
#include "gpu/nn/statistics.hpp"

namespace rotoscale::gpu {

template __global__ void observe_kernel<bf16, 2>(const observe_args);
template __global__ void observe_kernel<float, 8>(const observe_args);

}  // namespace rotoscale::gpu
