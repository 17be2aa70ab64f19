// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Declarations of the parts of the HIP runtime that gpu/ uses, so that clang can check the host code without the SDK.
// Nothing links with them.
#pragma once

#include <cstddef>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern const dim3 threadIdx, blockIdx;

enum hipError_t { hipSuccess, hipErrorUnknown };
enum hipMemcpyKind { hipMemcpyHostToDevice, hipMemcpyDeviceToHost };
struct hipDeviceProp_t {
  char name[256], gcnArchName[256];
  int major, minor;
};
using hipStream_t = struct hip_stream*;

hipError_t hipMalloc(void**, std::size_t);
hipError_t hipFree(void*);
hipError_t hipMemcpy(void*, const void*, std::size_t, hipMemcpyKind);
hipError_t hipMemset(void*, int, std::size_t);
hipError_t hipGetLastError();
hipError_t hipDeviceSynchronize();
const char* hipGetErrorString(hipError_t);
hipError_t hipGetDeviceCount(int*);
hipError_t hipGetDeviceProperties(hipDeviceProp_t*, int);
hipError_t hipDriverGetVersion(int*);
hipError_t hipRuntimeGetVersion(int*);

// The function that clang calls for kernel<<<grid, block>>>(...).
extern "C" hipError_t __hipPushCallConfiguration(dim3, dim3, std::size_t = 0, hipStream_t = nullptr);
extern "C" hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, std::size_t, hipStream_t);
