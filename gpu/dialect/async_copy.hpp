// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies from global to shared memory: NVIDIA's instructions; ordinary loads and stores on AMD.
#pragma once

#include "gpu/dialect/hip.hpp"

namespace rotoscale::gpu {

/// 16 bytes from global to shared memory, both aligned to 16; they are there after wait_for_copies (the thread's own)
/// and a barrier (the block's).
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
/// Brings the 128 bytes around `from` to the device's last cache; changes nothing else. AMD's kernels leave that out.
__device__ inline void prefetch([[maybe_unused]] const void* from) {
#if defined(ROTOSCALE_CUDA)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}

/// Copies in groups: this one ends here; wait_for_all_but leaves the `Youngest` youngest groups on their way.
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
