// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The dialect of gpu/: HIP's names. On AMD they come from the HIP SDK, with nvcc they are aliases of CUDA's, and clang
// without any SDK gets what device code needs to be compiled and disassembled (no host code then).
#pragma once

#if defined(__HIP__) && defined(ROTOSCALE_NO_HIP_SDK)

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __host__ __attribute__((host))

namespace rotoscale::gpu {
struct index3 {
  unsigned x;
};
__device__ inline index3 thread_index() { return {__builtin_amdgcn_workitem_id_x()}; }
__device__ inline index3 block_index() { return {__builtin_amdgcn_workgroup_id_x()}; }
}  // namespace rotoscale::gpu

#else

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#define hipDeviceProp_t cudaDeviceProp
#define hipDeviceSynchronize cudaDeviceSynchronize
#define hipDriverGetVersion cudaDriverGetVersion
#define hipError_t cudaError_t
#define hipFree cudaFree
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDeviceProperties cudaGetDeviceProperties
#define hipGetErrorString cudaGetErrorString
#define hipGetLastError cudaGetLastError
#define hipMalloc cudaMalloc
#define hipMemcpy cudaMemcpy
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemset cudaMemset
#define hipRuntimeGetVersion cudaRuntimeGetVersion
#define hipSuccess cudaSuccess
#else
#include <hip/hip_runtime.h>
#endif

namespace rotoscale::gpu {
__device__ inline dim3 thread_index() { return threadIdx; }
__device__ inline dim3 block_index() { return blockIdx; }
}  // namespace rotoscale::gpu

#endif
