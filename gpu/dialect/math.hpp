// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Functions of numbers, by an instruction where a device has one that leaves the same bits.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/ex2_approx.hpp"

namespace rotoscale::gpu {

/// The larger of two numbers; NaN if one is.
__device__ inline float larger_or_nan(float x, float y) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
#else
  return x > y || x != x ? x : y;
#endif
}

/// The larger of two numbers; of a number and a NaN the number.
__device__ inline float larger_number(float x, float y) {
#if defined(ROTOSCALE_GPU_HOST)
  return x < y || x != x ? y : x;  // fmaxf is a call there
#else
  return __builtin_fmaxf(x, y);
#endif
}

/// 1 / x, correctly rounded, of 1 <= x <= 2^126.
__device__ inline float reciprocal(float x) {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);  // what the quotient is made of where nothing is subnormal
#else
  return 1.0f / x;
#endif
}

/// The library's function, by the instruction where there is one.
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
