// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The kernel of unrotate.hpp for AMD, compiled by clang without an SDK. tests/gpu/amd_listings.py reads its
// disassembly.
#include "gpu/gemm/unrotate.hpp"

namespace rotoscale::gpu {
template __global__ void unrotate_kernel<1>(const unrotate_arguments);
template __global__ void unrotate_kernel<4>(const unrotate_arguments);
}  // namespace rotoscale::gpu
