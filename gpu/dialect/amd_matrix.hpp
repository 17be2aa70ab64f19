// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// AMD's additions to hip.hpp for GEMM kernels: register vectors, copies to LDS, and matrix instructions of a 64-lane
// wave. amd_matrix_host.hpp implements them in host mode.
//
// Operands have 16 rows. Lane l holds row l % 16; g = l / 16 selects its part of k. Results: lane l holds rows 4 g to
// 4 g + 3 (of the first operand) in column l % 16 (of the second). k of lane l, by instruction:
//   16x16x16 BF16            4 g .. + 3
//   16x16x32 FP8             8 g .. + 7
//   16x16x128 f8f6f4, FP4    32 g .. + 31. Lane l's scale register has the scale of block g of 32.
//   16x16x128 f8f6f4, FP8    16 g .. + 15 and 64 + 16 g .. + 15. Scales are as for FP4.
// FP8 is FNUZ on gfx942 and OCP on gfx950. Sources: AMD's ISA documents of CDNA3 and CDNA4, and
// https://rocm.blogs.amd.com/software-tools-optimization/matrix-cores-cdna. The k of scaled FP8 follow AMD's emulator
// rocjitsu (ROCm/rocm-systems). None of this was confirmed on a device.
#pragma once

#include "gpu/dialect/element.hpp"
#include "gpu/dialect/hip.hpp"

namespace rotoscale::gpu::amd {

using float4 = float __attribute__((vector_size(16)));
using int4 = int __attribute__((vector_size(16)));
using short4 = short __attribute__((vector_size(8)));
using uint2 = std::uint32_t __attribute__((vector_size(8)));
/// For memory that the same kernel also accesses as another type.
using any_int4 = int __attribute__((vector_size(16), may_alias));
using any_float4 = float __attribute__((vector_size(16), may_alias));
using any_short4 = short __attribute__((vector_size(8), may_alias));

/// A lane's part of an operand of multiply_scaled: 16 bytes of FP4, 32 bytes of FP8.
template <gemm_element Element>
struct scaled_fragment {
  static constexpr int parts = Element == gemm_element::e2m1 ? 1 : 2;
  /// The instruction's code of the element type.
  static constexpr int code = Element == gemm_element::e2m1 ? 4 : Element == gemm_element::e5m2 ? 1 : 0;
  int4 part[parts];
};

/// True if multiply_fp8 multiplies FNUZ (gfx942, host mode), false if OCP FP8 (gfx950).
#if defined(__gfx950__)
inline constexpr bool fp8_is_fnuz = false;
#else
inline constexpr bool fp8_is_fnuz = true;
#endif

/// True if this architecture has gfx950's instructions and LDS. Kernels for gfx950 are empty elsewhere.
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

/// Kernel attribute: threads of a block, and minimum and maximum waves of a SIMD.
#define ROTOSCALE_AMD_BLOCK(threads, min_waves, max_waves) \
  __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(min_waves, max_waves)))

namespace rotoscale::gpu::amd {

/// Moves a number that is equal in all lanes to a scalar register.
__device__ inline int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

/// Returns `value` of lane (own lane ^ mask) of the wave. `mask` is 1 to 63.
__device__ inline std::uint32_t wave_xor(std::uint32_t value, unsigned mask) {
  return wave_permute(wave_lane() ^ mask, value);
}

/// Keeps a value in VGPRs, out of the accumulation registers (AGPRs).
template <class T>
__device__ void keep_in_vector_registers(T& x) {
  asm volatile("" : "+v"(x));
}

/// Keeps a wave-uniform address in scalar registers. Sums of it and a lane's offset then need no pair of vector
/// registers.
template <class T>
__device__ const T* keep_in_scalar_registers(const T* x) {
  auto global = (const __attribute__((address_space(1))) T*)x;  // global, or the compiler emits flat loads
  asm("" : "+s"(global));
  return (const T*)global;
}

/// The compiler moves no instruction across this point.
__device__ inline void schedule_barrier() { __builtin_amdgcn_sched_barrier(0); }

/// v_perm_b32: byte i of the result is byte n of `high:low`, where n (0 to 7) is byte i of the selector.
__device__ inline std::uint32_t permute(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  return __builtin_amdgcn_perm(high, low, selector);
}

/// Loads a T at from + offset to registers. `from` is wave-uniform. loads_done counts the load.
template <class T>
__device__ T load_counted(const std::uint8_t* from, std::uint32_t offset) {
  return *reinterpret_cast<const T*>(keep_in_scalar_registers(from) + offset);
}

/// Copies 16 bytes per lane to LDS at `to` (wave-uniform), in lane order. The wave sees them after loads_done, the
/// block after a barrier as well. gfx950 only.
__device__ inline void load_to_lds([[maybe_unused]] const std::uint8_t* from, [[maybe_unused]] std::uint8_t* to) {
#if defined(__gfx950__)
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)const_cast<std::uint8_t*>(from),
                                   (__attribute__((address_space(3))) void*)to, 16, 0, 0);
#endif
}
/// Waits for the wave's loads (load_counted) and copies (load_to_lds), except the latest `Younger` (at most 63).
template <int Younger = 0>
__device__ void loads_done() {
  asm volatile("" ::: "memory");
  __builtin_amdgcn_s_waitcnt(0x0F70 | (Younger & 15) | Younger >> 4 << 14);  // vmcnt alone
  asm volatile("" ::: "memory");
}

/// x · y + z of four numbers, each rounded once. A function, so that compilers leave it in its place.
__device__ inline float4 multiply_add(float4 x, float4 y, float4 z) { return __builtin_elementwise_fma(x, y, z); }

/// Returns a · b over 32 FP8 bytes, accumulated from zero.
__device__ inline float4 multiply_fp8(std::int64_t a, std::int64_t b) {
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, float4{}, 0, 0, 0);
}

/// Returns d + a · b over 16 BF16 numbers.
__device__ inline float4 multiply_bf16(short4 a, short4 b, float4 d) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, d, 0, 0, 0);
}

/// The eight registers that the instruction takes for any element type.
template <gemm_element Element>
__device__ auto scaled_registers(const scaled_fragment<Element>& x) {
  using int8 = int __attribute__((vector_size(32)));
  const int4 &low = x.part[0], high = scaled_fragment<Element>::parts == 1 ? int4{} : x.part[1 % x.parts];
  return int8{low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]};
}

/// Returns d + a · b over 128 scaled elements. The scales are byte ByteA of `scale_a` and byte ByteB of `scale_b`.
template <int ByteA, int ByteB, gemm_element A, gemm_element B>
__device__ float4 multiply_scaled([[maybe_unused]] const scaled_fragment<A>& a,
                                  [[maybe_unused]] const scaled_fragment<B>& b, float4 d, [[maybe_unused]] int scale_a,
                                  [[maybe_unused]] int scale_b) {
#if defined(__gfx950__)
  constexpr int code_a = scaled_fragment<A>::code, code_b = scaled_fragment<B>::code;  // clang 22 rejects calls below
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(scaled_registers(a), scaled_registers(b), d, code_a, code_b,
                                                          ByteA, scale_a, ByteB, scale_b);
#else
  return d;
#endif
}

}  // namespace rotoscale::gpu::amd

#endif
