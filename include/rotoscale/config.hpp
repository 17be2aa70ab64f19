// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The macros of the numerics headers, which change no bit of any result. ROTOSCALE_HD says where a function may run.
// ROTOSCALE_ASSERT checks a precondition in debug builds, ROTOSCALE_REQUIRE in every build.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

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

/// Checks the arguments of a function of whole tensors, with NDEBUG too: wrong extents would leave a part of the result
/// unwritten. Host code ends with one line on standard error; device code asserts.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define ROTOSCALE_REQUIRE(condition) ROTOSCALE_ASSERT(condition)
#else
#define ROTOSCALE_REQUIRE(condition) \
  ((condition) ? void() : ::rotoscale::detail::end_on_broken_requirement(__func__, #condition))
#endif

namespace rotoscale {

/// Index type. Signed, so that differences and backward loops are ordinary arithmetic.
using index_t = std::ptrdiff_t;

#if !defined(__CUDA_ARCH__) && !defined(__HIP_DEVICE_COMPILE__)
namespace detail {
[[noreturn]] ROTOSCALE_ISA_TAG inline void end_on_broken_requirement(const char* function, const char* condition) {
  std::fprintf(stderr, "rotoscale: %s needs %s; rotoscale/checked.hpp names the wrong argument\n", function, condition);
  std::abort();
}
}  // namespace detail
#endif

}  // namespace rotoscale
