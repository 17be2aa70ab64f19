// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The two macros of the numerics headers, which change no bit of any result. ROTOSCALE_HD says where a function may
// run; ROTOSCALE_ASSERT checks a precondition in debug builds.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "rotoscale/isa.hpp"

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0)
#error "Rotoscale needs IEEE arithmetic: no -ffast-math or -ffinite-math-only (nvcc: -use_fast_math), no x87 floats."
#endif

// HIP: the attributes themselves, since the headers that define __host__ and __device__ may not be included yet.
#if defined(__HIP__)
#define ROTOSCALE_HD __attribute__((host)) __attribute__((device))
#elif defined(__CUDACC__)
#define ROTOSCALE_HD __host__ __device__
#else
#define ROTOSCALE_HD ROTOSCALE_ISA_TAG
#endif

#if !defined(ROTOSCALE_ASSERT)
#define ROTOSCALE_ASSERT(condition) assert(condition)
#endif

namespace rotoscale {

/// Index type. Signed, so that differences and backward loops are ordinary arithmetic.
using index_t = std::ptrdiff_t;

}  // namespace rotoscale
