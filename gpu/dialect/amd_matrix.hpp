// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What AMD's GEMM kernels use beyond the dialect of hip.hpp: registers of several words, copies to LDS, and matrix
// instructions, which a wave of 64 lanes executes as one. In host mode amd_matrix_host.hpp does the same on the CPU.
//
// Operands of 16 rows: lane l holds part of row l % 16, g = l / 16 says which part of its k. Results: lane l holds
// rows 4 g .. 4 g + 3 (the first operand's) of column l % 16 (the second's). By instruction, k of lane l:
//   16x16x16 BF16            4 g .. + 3
//   16x16x32 FP8             8 g .. + 7
//   16x16x128 f8f6f4, FP4    32 g .. + 31, with the scale of block g of 32 in lane l's scale register
//   16x16x128 f8f6f4, FP8    16 g .. + 15 and 64 + 16 g .. + 15; scales as for FP4
// FP8 is FNUZ on gfx942, OCP on gfx950. Sources: AMD's ISA documents of CDNA3 and CDNA4 and
// https://rocm.blogs.amd.com/software-tools-optimization/matrix-cores-cdna; the k of scaled FP8 follow AMD's emulator
// rocjitsu (ROCm/rocm-systems). No device has confirmed them here.
#pragma once

#include "gpu/dialect/element.hpp"
#include "gpu/dialect/hip.hpp"

namespace rotoscale::gpu::amd {

using float4 = float __attribute__((vector_size(16)));
using int4 = int __attribute__((vector_size(16)));
using short4 = short __attribute__((vector_size(8)));
using uint2 = std::uint32_t __attribute__((vector_size(8)));
/// Of memory that the same kernel accesses as another type, too.
using any_int4 = int __attribute__((vector_size(16), may_alias));
using any_float4 = float __attribute__((vector_size(16), may_alias));
using any_short4 = short __attribute__((vector_size(8), may_alias));

/// A lane's part of an operand of multiply_scaled: 16 bytes of FP4, twice as many of FP8.
template <gemm_element Element>
struct scaled_fragment {
  static constexpr int parts = Element == gemm_element::e2m1 ? 1 : 2;
  /// As the instruction encodes the element.
  static constexpr int code = Element == gemm_element::e2m1 ? 4 : Element == gemm_element::e5m2 ? 1 : 0;
  int4 part[parts];
};

/// Are the bytes of multiply_fp8 FNUZ (gfx942, and host mode) or OCP's (gfx950)?
#if defined(__gfx950__)
inline constexpr bool fp8_is_fnuz = false;
#else
inline constexpr bool fp8_is_fnuz = true;
#endif

/// Has this architecture gfx950's instructions and LDS? Kernels for it are empty where it has not.
#if defined(__AMDGCN__) && !defined(__gfx950__)
inline constexpr bool is_gfx950 = false;
#else
inline constexpr bool is_gfx950 = true;
#endif

}  // namespace rotoscale::gpu::amd

#if defined(ROTOSCALE_GPU_HOST)
#include "gpu/dialect/amd_matrix_host.hpp"
#define ROTOSCALE_AMD_BLOCK(threads, min_waves, max_waves)
#else

/// Before a kernel: blocks have that many threads, and a SIMD unit so many waves.
#define ROTOSCALE_AMD_BLOCK(threads, min_waves, max_waves) \
  __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(min_waves, max_waves)))

namespace rotoscale::gpu::amd {

/// A number that is the same in all lanes of the wave, as one of the wave.
__device__ inline int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

/// The `value` of the lane of the wave whose number differs in the bits of `mask` (1 to 63).
__device__ inline std::uint32_t wave_xor(std::uint32_t value, unsigned mask) {
  return wave_permute(wave_lane() ^ mask, value);
}

/// Keeps a value out of the accumulation registers, which are for sums.
template <class T>
__device__ void keep_in_vector_registers(T& x) {
  asm volatile("" : "+v"(x));
}

/// An address that is the same in all lanes of the wave stays apart from what is a lane's own: the sums then need a
/// pair of scalar registers each, not of vector registers.
template <class T>
__device__ const T* keep_in_scalar_registers(const T* x) {
  auto global = (const __attribute__((address_space(1))) T*)x;  // known to be no address of LDS, or loads go both ways
  asm("" : "+s"(global));
  return (const T*)global;
}

/// Nothing is scheduled across this point.
__device__ inline void schedule_barrier() { __builtin_amdgcn_sched_barrier(0); }

/// Byte i of the result is byte n of `high:low`, n (0 to 7) byte i of the selector.
__device__ inline std::uint32_t permute(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}

/// `offset` bytes behind `from`, which is the same in all lanes of the wave: a load to registers that loads_done
/// counts.
template <class T>
__device__ T load_counted(const std::uint8_t* from, std::uint32_t offset) {
  return *reinterpret_cast<const T*>(keep_in_scalar_registers(from) + offset);
}

/// Copies sixteen bytes a lane to LDS at `to` (the same in all lanes), the lanes' vectors one after another; arrived
/// after loads_done (the wave's own) and a barrier (the block's). gfx950 has it.
__device__ inline void load_to_lds([[maybe_unused]] const std::uint8_t* from, [[maybe_unused]] std::uint8_t* to) {
#if defined(__gfx950__)
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)const_cast<std::uint8_t*>(from),
                                   (__attribute__((address_space(3))) void*)to, 16, 0, 0);
#endif
}
/// Waits for all of the wave's loads (load_counted) and copies (load_to_lds) but the `Younger` ones that were issued
/// last, 63 at most.
template <int Younger = 0>
__device__ void loads_done() {
  asm volatile("" ::: "memory");
  __builtin_amdgcn_s_waitcnt(0x0F70 | (Younger & 15) | Younger >> 4 << 14);  // lgkmcnt and expcnt stay as they are
  asm volatile("" ::: "memory");
}

/// x · y + z of each of four numbers, rounded once; by itself, so that compilers leave it in its place.
__device__ inline float4 multiply_add(float4 x, float4 y, float4 z) { return __builtin_elementwise_fma(x, y, z); }

/// a · b of a block of 32 FP8 bytes, from zero.
__device__ inline float4 multiply_fp8(std::int64_t a, std::int64_t b) {
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, float4{}, 0, 0, 0);
}

/// d + a · b of 16 BF16 numbers.
__device__ inline float4 multiply_bf16(short4 a, short4 b, float4 d) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, d, 0, 0, 0);
}

/// The registers that the instruction takes for any element.
template <gemm_element Element>
__device__ auto scaled_registers(const scaled_fragment<Element>& x) {
  using int8 = int __attribute__((vector_size(32)));
  const int4 &low = x.part[0], high = scaled_fragment<Element>::parts == 1 ? int4{} : x.part[1 % x.parts];
  return int8{low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
}

/// d + a · b of 128 scaled elements, A's scales byte ByteA of `scale_a`, B's alike.
template <int ByteA, int ByteB, gemm_element A, gemm_element B>
__device__ float4 multiply_scaled([[maybe_unused]] const scaled_fragment<A>& a,
                                  [[maybe_unused]] const scaled_fragment<B>& b, float4 d, [[maybe_unused]] int scale_a,
                                  [[maybe_unused]] int scale_b) {
#if defined(__gfx950__)
  constexpr int code_a = scaled_fragment<A>::code, code_b = scaled_fragment<B>::code;  // clang 22 takes no calls there
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(scaled_registers(a), scaled_registers(b), d, code_a, code_b,
                                                          ByteA, scale_a, ByteB, scale_b);
#else
  return d;
#endif
}

}  // namespace rotoscale::gpu::amd

#endif
