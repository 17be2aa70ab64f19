// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of the definitions' contracts for AMD, for clang without an SDK: what tests/gpu/amd_listings.py reads the
// disassembly of.
#include "gpu/gemm/blockwise.hpp"

namespace rotoscale::gpu {

template __global__ void chain_kernel<1>(const definition_arguments);
template __global__ void chain_kernel<2>(const definition_arguments);
template __global__ void chain_kernel<4>(const definition_arguments);
template __global__ void blockwise_kernel<2>(const definition_arguments);
template __global__ void blockwise_kernel<4>(const definition_arguments);

}  // namespace rotoscale::gpu
