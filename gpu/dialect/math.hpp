// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// FP32 functions. Each uses the device's instruction if that gives the same bits as the portable code.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/ex2_approx.hpp"

namespace rotoscale::gpu {

/// max(x, y); NaN if either is NaN.
__device__ inline float larger_or_nan(float x, float y) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
#else
  return x > y || x != x ? x : y;
#endif
}

/// max(x, y); a NaN is ignored if the other is a number.
__device__ inline float larger_number(float x, float y) {
#if defined(ROTOSCALE_GPU_HOST)
  return x < y || x != x ? y : x;  // fmaxf would be a library call
#else
  return __builtin_fmaxf(x, y);
#endif
}

/// 1 / x, correctly rounded, for 1 <= x <= 2^126.
__device__ inline float reciprocal(float x) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);  // one Newton step, as in the compiler's division of normal numbers
#else
  return 1.0f / x;
#endif
}

/// 2^x with the bits of NVIDIA's ex2.approx.ftz.f32 (rotoscale/ex2_approx.hpp).
__device__ inline float ex2_approx(float x) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return rotoscale::ex2_approx(x);
#endif
}

}  // namespace rotoscale::gpu
