// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory, in groups: cp.async on NVIDIA, a load and a store on AMD. The bulk
// tensor copies of sm_90 are in sm90_ptx.hpp.
#pragma once

#include "gpu/dialect/hip.hpp"

namespace rotoscale::gpu {

/// Copies 16 bytes from global to shared memory, both aligned to 16. This thread sees them after wait_for_copies, the
/// block after a barrier as well.
__device__ inline void copy_async(vec16* shared, const void* from) {
#if defined(ROTOSCALE_CUDA)
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#elif defined(ROTOSCALE_AMD)
  *shared = load_streaming(from);
#else
  host::copy_later(shared, from, sizeof(vec16));
#endif
}
__device__ inline void wait_for_copies() {
#if defined(ROTOSCALE_CUDA)
  asm volatile("cp.async.wait_all;" ::: "memory");
#elif !defined(ROTOSCALE_AMD)
  host::finish_copies();
#endif
}
/// Prefetches the 128 bytes around `from` into L2. Does nothing on AMD.
__device__ inline void prefetch([[maybe_unused]] const void* from) {
#if defined(ROTOSCALE_CUDA)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}

/// Ends this thread's current group of copies. wait_for_all_but leaves the latest `Youngest` groups in flight.
__device__ inline void end_copy_group() {
#if defined(ROTOSCALE_CUDA)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(ROTOSCALE_AMD)
  host::end_copy_group();
#endif
}
template <int Youngest>
__device__ inline void wait_for_all_but() {
#if defined(ROTOSCALE_CUDA)
  asm volatile("cp.async.wait_group %0;" ::"n"(Youngest) : "memory");
#elif !defined(ROTOSCALE_AMD)
  host::finish_copies_but(static_cast<unsigned>(Youngest));
#endif
}

}  // namespace rotoscale::gpu
