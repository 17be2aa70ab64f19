// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The SIMT GEMM kernels for AMD, compiled by clang without an SDK. tests/gpu/amd_listings.py reads their disassembly.
#include "gpu/gemm/blockwise.hpp"

namespace rotoscale::gpu {

template __global__ void chain_kernel<1>(const simt_arguments);
template __global__ void chain_kernel<2>(const simt_arguments);
template __global__ void chain_kernel<4>(const simt_arguments);
template __global__ void blockwise_kernel<2>(const simt_arguments);
template __global__ void blockwise_kernel<4>(const simt_arguments);

}  // namespace rotoscale::gpu
