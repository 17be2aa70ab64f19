// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The dialect of gpu/: HIP's names in four modes. Only gpu/dialect and the kernel lists (tests/include_rule.py,
// MODE_FILES) may test the mode.
//
// - HIP SDK: the SDK's names.
// - nvcc: aliases of CUDA's names (cuda_names.hpp).
// - clang without an SDK: device code alone, to be disassembled.
// - other C++ compilers: host.hpp runs the threads of a block on the CPU.
// Lanes exchange values within subgroups of 32, so that waves of 64 and warps of 32 run the same code.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define ROTOSCALE_CUDA 1
#define ROTOSCALE_GPU_MODE cuda_mode
#include "gpu/dialect/cuda_names.hpp"
#elif defined(__HIP__) && defined(ROTOSCALE_NO_HIP_SDK)
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __host__ __attribute__((host))
// As in the SDK: maximum threads of a block, minimum waves of a SIMD.
#define ROTOSCALE_BOUNDS(threads, waves, ...) \
  __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define __launch_bounds__(...) ROTOSCALE_BOUNDS(__VA_ARGS__, 1, 1)
#elif defined(__HIP__)
#define ROTOSCALE_GPU_MODE hip_mode
#include <hip/hip_runtime.h>
#else
#define ROTOSCALE_GPU_HOST 1
#define ROTOSCALE_GPU_MODE host_mode
#define __device__
#define __global__
#define __host__
#define __launch_bounds__(...)
#include "gpu/dialect/host.hpp"
#include "gpu/dialect/host_copies.hpp"
#endif

// Loop pragmas: unroll fully so that arrays become registers, unroll 16 times, or keep the loop. Host compilers decide
// themselves.
#if defined(ROTOSCALE_GPU_HOST)
#define ROTOSCALE_UNROLL
#define ROTOSCALE_UNROLL_16
#define ROTOSCALE_KEEP_LOOP
#else
#define ROTOSCALE_UNROLL _Pragma("unroll")
#define ROTOSCALE_UNROLL_16 _Pragma("unroll 16")
#define ROTOSCALE_KEEP_LOOP _Pragma("unroll 1")
#endif

// Not inlined on NVIDIA; inlined on AMD, where a call would need a stack in scratch memory.
#if defined(ROTOSCALE_CUDA)
#define ROTOSCALE_NOINLINE __device__ __noinline__
#else
#define ROTOSCALE_NOINLINE __device__ inline
#endif

// A kernel parameter that functions may take by reference without a local copy.
#if defined(ROTOSCALE_CUDA)
#define ROTOSCALE_GRID_CONSTANT __grid_constant__
#else
#define ROTOSCALE_GRID_CONSTANT
#endif

#if defined(__HIP__) && !defined(ROTOSCALE_CUDA)
#define ROTOSCALE_AMD 1
#endif

namespace rotoscale::gpu {

#if defined(ROTOSCALE_AMD)
/// True if a block has at most 64 KiB of shared memory (LDS).
inline constexpr bool has_small_shared_memory = true;
/// Unit of the second argument of __launch_bounds__: waves of a SIMD (true) or blocks of an SM (false).
inline constexpr bool bounds_count_waves = true;
/// True if a wait for one load leaves later loads in flight (s_waitcnt). NVIDIA's scoreboards wait for all loads on
/// them.
inline constexpr bool waits_count_loads = true;
#else
inline constexpr bool has_small_shared_memory = false;
inline constexpr bool bounds_count_waves = false;
inline constexpr bool waits_count_loads = false;
#endif

/// True if a block may wait for one that has not started, provided that all fit on the device. Host mode runs blocks
/// one after the other. On AMD this is untested.
#if defined(ROTOSCALE_CUDA)
inline constexpr bool blocks_run_at_once = true;
#else
inline constexpr bool blocks_run_at_once = false;
#endif

/// Lanes of a subgroup, which may exchange values: half a wave on AMD, a warp on NVIDIA.
inline constexpr int subgroup_lanes = 32;

#if defined(ROTOSCALE_GPU_HOST)
using host::block_barrier;
using host::block_shared;
using host::dynamic_shared;
using host::shuffle;
using host::shuffle_xor;
using host::subgroup_ballot;

inline dim3 thread_index() { return host::current_thread(); }
inline dim3 block_index() { return host::current_block(); }
inline dim3 block_size() { return host::current_block_size(); }
inline dim3 grid_size() { return host::current_grid_size(); }

#else

struct index3 {
  unsigned x = 0, y = 0, z = 0;
};

#if defined(ROTOSCALE_CUDA)
__device__ inline index3 thread_index() { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
__device__ inline index3 block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
__device__ inline index3 block_size() { return {blockDim.x, blockDim.y, blockDim.z}; }
__device__ inline index3 grid_size() { return {gridDim.x, gridDim.y, gridDim.z}; }
#else
__device__ inline index3 thread_index() {
  return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
__device__ inline index3 block_index() {
  return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
__device__ inline index3 block_size() {
  return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(),
          __builtin_amdgcn_workgroup_size_z()};
}
__device__ inline index3 grid_size() {
  const index3 threads = block_size();
  return {__builtin_amdgcn_grid_size_x() / threads.x, __builtin_amdgcn_grid_size_y() / threads.y,
          __builtin_amdgcn_grid_size_z() / threads.z};
}
#endif

/// Barrier of the block. Writes to shared and global memory before it are visible to the block after it.
__device__ inline void block_barrier() {
#if defined(ROTOSCALE_CUDA)
  __syncthreads();
#else
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#endif
}

/// Returns the block's uninitialised shared memory of type T (one object per kernel and type).
template <class T>
__device__ inline T& block_shared() {
  __shared__ T memory;
  return memory;
}

/// Returns the block's dynamic shared memory, uninitialised, aligned to 128 bytes.
template <class T>
__device__ inline T* dynamic_shared() {
#if defined(ROTOSCALE_CUDA)
  extern __shared__ __align__(128) unsigned char rotoscale_dynamic_shared[];
#else
  extern __shared__ __attribute__((aligned(128))) unsigned char rotoscale_dynamic_shared[];
#endif
  return reinterpret_cast<T*>(rotoscale_dynamic_shared);
}

#if !defined(ROTOSCALE_CUDA)
/// Lane of the wave (0 to 63).
__device__ inline unsigned wave_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
__device__ inline std::uint32_t wave_permute(unsigned lane, std::uint32_t value) {
  return static_cast<std::uint32_t>(__builtin_amdgcn_ds_bpermute(static_cast<int>(4 * lane), static_cast<int>(value)));
}
#endif

/// Returns `value` of lane `lane` (0 to 31) of the subgroup. All lanes of the subgroup must call it together.
__device__ inline std::uint32_t shuffle(std::uint32_t value, unsigned lane) {
#if defined(ROTOSCALE_CUDA)
  return __shfl_sync(0xFFFFFFFFu, value, static_cast<int>(lane));
#else
  return wave_permute((wave_lane() & 32u) | (lane & 31u), value);
#endif
}

/// Returns `value` of lane (own lane ^ mask). `mask` is 1 to 31.
__device__ inline std::uint32_t shuffle_xor(std::uint32_t value, unsigned mask) {
#if defined(ROTOSCALE_CUDA)
  return __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(mask));
#else
  return wave_permute(wave_lane() ^ mask, value);
#endif
}

/// Returns a bit for each lane of the subgroup, the first lane's lowest: set if `condition` holds there.
__device__ inline std::uint32_t subgroup_ballot(bool condition) {
#if defined(ROTOSCALE_CUDA)
  return __ballot_sync(0xFFFFFFFFu, condition);
#else
  const std::uint64_t lanes = __builtin_amdgcn_ballot_w64(condition);
  return static_cast<std::uint32_t>((wave_lane() & 32u) != 0 ? lanes >> 32 : lanes);
#endif
}

#endif

/// 16 bytes that move as one, in memory that may hold any type. Accesses through vec16* or vec16& may alias all types.
/// Accesses through a pointer to `word`, or as a member of another object, may not.
struct [[gnu::may_alias]] alignas(16) vec16 {
  std::uint32_t word[4];
};
/// The same for four and two bytes. As a template argument or through `auto*` they are plain integers.
using any_word [[gnu::may_alias]] = std::uint32_t;
using any_half [[gnu::may_alias]] = std::uint16_t;

/// Loads 16 bytes that are not read again soon. `from` is aligned to 16.
__device__ inline vec16 load_streaming(const void* from) {
#if defined(ROTOSCALE_CUDA)
  const uint4 v = __ldcs(static_cast<const uint4*>(from));
  return {{v.x, v.y, v.z, v.w}};
#elif defined(ROTOSCALE_AMD)
  using vector = std::uint32_t __attribute__((ext_vector_type(4)));
  const vector v = __builtin_nontemporal_load(static_cast<const vector*>(from));
  return {{v.x, v.y, v.z, v.w}};
#else
  return *static_cast<const vec16*>(from);
#endif
}

/// Stores 16 bytes that are not read soon. `to` is aligned to 16.
__device__ inline void store_streaming(void* to, const vec16& bytes) {
#if defined(ROTOSCALE_CUDA)
  __stcs(static_cast<uint4*>(to), uint4{bytes.word[0], bytes.word[1], bytes.word[2], bytes.word[3]});
#elif defined(ROTOSCALE_AMD)
  using vector = std::uint32_t __attribute__((ext_vector_type(4)));
  __builtin_nontemporal_store(vector{bytes.word[0], bytes.word[1], bytes.word[2], bytes.word[3]},
                              static_cast<vector*>(to));
#else
  *static_cast<vec16*>(to) = bytes;
#endif
}

/// The same for 8 bytes.
__device__ inline void store_streaming8(void* to, std::uint32_t low, std::uint32_t high) {
#if defined(ROTOSCALE_CUDA)
  __stcs(static_cast<uint2*>(to), uint2{low, high});
#elif defined(ROTOSCALE_AMD)
  using vector = std::uint32_t __attribute__((ext_vector_type(2)));
  __builtin_nontemporal_store(vector{low, high}, static_cast<vector*>(to));
#else
  static_cast<any_word*>(to)[0] = low;
  static_cast<any_word*>(to)[1] = high;
#endif
}

/// Loads a word that other blocks may write concurrently. A 64-bit load sees both words of one aligned 8-byte store.
template <class Word>
__device__ inline Word load_relaxed(const Word* from) {
#if defined(ROTOSCALE_AMD)
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  return *static_cast<const volatile Word*>(from);
#endif
}
__device__ inline void store_relaxed(std::uint64_t* to, std::uint64_t value) {
#if defined(ROTOSCALE_AMD)
  __hip_atomic_store(to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  *static_cast<volatile std::uint64_t*>(to) = value;
#endif
}

/// griddepcontrol.launch_dependents: the next kernel may start on free SMs once all blocks have called it or ended.
__device__ inline void release_kernel_behind() {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
#endif
}

/// griddepcontrol.wait: waits until previous kernels have completed, and lets the next kernel start on free SMs. Every
/// thread of a kernel that launch_behind launches calls it before any global access. The kernel's completion then
/// implies that all previous kernels are complete.
__device__ inline void wait_for_kernel_before() {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory");
#endif
#endif
}

/// Atomic *to = max(*to, value), relaxed.
__device__ inline void atomic_max(std::uint32_t* to, std::uint32_t value) {
#if defined(ROTOSCALE_CUDA)
  atomicMax(to, value);
#elif defined(ROTOSCALE_AMD)
  __hip_atomic_fetch_max(to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  *to = *to > value ? *to : value;
#endif
}

/// Atomic *to += value, relaxed. Returns the old value.
__device__ inline std::uint32_t atomic_add(std::uint32_t* to, std::uint32_t value) {
#if defined(ROTOSCALE_CUDA)
  return atomicAdd(to, value);
#elif defined(ROTOSCALE_AMD)
  return __hip_atomic_fetch_add(to, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  const std::uint32_t was = *to;
  *to += value;
  return was;
#endif
}

/// Fence of device scope: this thread's accesses before it are ordered before its accesses after it for all blocks.
__device__ inline void device_fence() {
#if defined(ROTOSCALE_CUDA)
  __threadfence();
#elif defined(ROTOSCALE_AMD)
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
#endif
}

/// Orders this thread's earlier reads and writes of global memory before later TMA copies.
__device__ inline void copy_engine_fence() {
#if defined(ROTOSCALE_CUDA) && defined(__CUDA_ARCH__)
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
#endif
}

}  // namespace rotoscale::gpu
