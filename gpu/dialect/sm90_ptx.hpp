// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// PTX of the sm_90 kernels, one function per instruction: mbarriers, TMA copies, clusters, and wgmma of FP8, BF16 and
// int8. Names and operands follow the PTX ISA 8.0. Tiles of attention are in wgmma_tiles.hpp.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/dialect/hip.hpp"

namespace rotoscale::gpu::sm90 {

/// True if the target has these instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool is_sm90a = true;
#else
inline constexpr bool is_sm90a = false;
#endif

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// ------------------------------------------------------------------ mbarriers; `bar` is a shared-memory address

__device__ inline void barrier_init(std::uint32_t bar, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
__device__ inline void barrier_expect(std::uint32_t bar, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/// Waits until the phase with this parity has completed.
__device__ inline void barrier_wait(std::uint32_t bar, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
/// Arrives at the barrier at this address in block `rank` of the cluster, without a cluster-scope fence. The released
/// data was read by wgmma, whose completion the caller has waited for.
__device__ inline void barrier_arrive_remote(std::uint32_t bar, std::uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
/// Makes initialised barriers visible to the cluster and to TMA.
__device__ inline void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers (16 per block): 0 is __syncthreads, 1 and 2 group_sync (two warpgroups compute a GEMM), 3 and up
// turns.

/// Barrier of the 128 threads of a warpgroup.
__device__ inline void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); }
/// Ping-pong of warpgroups: each waits for its turn, then signals the next one. The barrier of a turn counts 256
/// threads, 128 that wait and 128 that signal.
__device__ inline void wait_for_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(3 + group) : "memory"); }
__device__ inline void signal_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(3 + group) : "memory"); }

// ------------------------------------------------------------------ clusters, register budgets

__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
template <int Registers>
__device__ void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ------------------------------------------------------------------ TMA copies of the map's box at (x, y)

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ inline void load_box(std::uint32_t to, const CUtensorMap* map, int x, int y, std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(x), "r"(y), "r"(bar)
      : "memory");
}
/// Copies contiguous bytes. Both addresses and `bytes` are multiples of 16.
__device__ inline void load_bytes(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(bar)
               : "memory");
}
/// A box of a 4D map.
__device__ inline void load_box(std::uint32_t to, const CUtensorMap* map, int x, int y, int z, int w,
                                std::uint32_t bar) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar)
      : "memory");
}
/// Copies a 2D box to the same offset in every block of the cluster whose bit is set.
__device__ inline void load_box_multicast(std::uint32_t to, const CUtensorMap* map, int x, int y, std::uint32_t bar,
                                          std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(bar), "h"(blocks)
      : "memory");
}

// ------------------------------------------------------------------ words of an output

/// Transposes a 4 × 4 matrix of words held by four lanes. Lane q passes column q and receives row q.
__device__ inline uint4 transpose_quad(std::uint32_t w0, std::uint32_t w1, std::uint32_t w2, std::uint32_t w3,
                                       int lane) {
  const bool odd = lane & 1, high = lane & 2;
  const std::uint32_t x0 = __shfl_xor_sync(0xFFFFFFFFu, odd ? w0 : w1, 1);
  const std::uint32_t x1 = __shfl_xor_sync(0xFFFFFFFFu, odd ? w2 : w3, 1);
  const std::uint32_t a0 = odd ? x0 : w0, a1 = odd ? w1 : x0, a2 = odd ? x1 : w2, a3 = odd ? w3 : x1;
  const std::uint32_t y0 = __shfl_xor_sync(0xFFFFFFFFu, high ? a0 : a2, 2);
  const std::uint32_t y1 = __shfl_xor_sync(0xFFFFFFFFu, high ? a1 : a3, 2);
  return {high ? y0 : a0, high ? y1 : a1, high ? a2 : y0, high ? a3 : y1};
}

// ------------------------------------------------------------------ wgmma

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Prevents the compiler from moving accumulators across asynchronous instructions.
template <int N>
__device__ void hold(float (&d)[N]) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ void hold(std::int32_t (&d)[N]) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

/// Descriptor of a shared-memory operand with 128-byte swizzle.
///
/// K-major: rows of 128 bytes, eight rows an atom of 1024 bytes. 32 bytes along K add 2 to the descriptor.
/// Transposed: rows of 64 columns (128 bytes), eight k an atom, the next 64 columns 8192 bytes away. 16 k add 128.
template <bool Transposed = false>
__device__ inline std::uint64_t operand_descriptor(std::uint32_t address) {
  constexpr std::uint64_t next_columns = Transposed ? 8192 >> 4 : 1;
  return (std::uint64_t{address} & 0x3FFFF) >> 4 | next_columns << 16 | std::uint64_t{1024 >> 4} << 32 |
         std::uint64_t{1} << 62;
}

/// Formats of A and B; one name if they are equal.
enum class fp8_products { e4m3, e4m3_e5m2, e5m2_e4m3, e5m2 };

// clang-format off
#define ROTOSCALE_D8(c, d, i) \
  c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), c(d[i + 7])
#define ROTOSCALE_D32(c, d, i) \
  ROTOSCALE_D8(c, d, i), ROTOSCALE_D8(c, d, i + 8), ROTOSCALE_D8(c, d, i + 16), ROTOSCALE_D8(c, d, i + 24)
#define ROTOSCALE_D64(c, d, i) ROTOSCALE_D32(c, d, i), ROTOSCALE_D32(c, d, i + 32)
#define ROTOSCALE_N32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define ROTOSCALE_N64 ROTOSCALE_N32 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
  "%59,%60,%61,%62,%63"
#define ROTOSCALE_N128 ROTOSCALE_N64 \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90," \
  "%91,%92,%93,%94,%95," \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117," \
  "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define ROTOSCALE_FP8_64(types) \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %34, 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n64k32.f32." types " {" ROTOSCALE_N32 "}, %32, %33, p, 1, 1;\n}" \
               : ROTOSCALE_D32("+f", d, 0) : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)))
#define ROTOSCALE_FP8_128(types) \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %66, 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n128k32.f32." types " {" ROTOSCALE_N64 "}, %64, %65, p, 1, 1;\n}" \
               : ROTOSCALE_D64("+f", d, 0) : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)))
#define ROTOSCALE_FP8_256(types) \
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %130, 0;\n" \
               "wgmma.mma_async.sync.aligned.m64n256k32.f32." types " {" ROTOSCALE_N128 "}, %128, %129, p, 1, 1;\n}" \
               : ROTOSCALE_D64("+f", d, 0), ROTOSCALE_D64("+f", d, 64) \
               : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)))
#define ROTOSCALE_FP8(product) \
  if constexpr (Products == fp8_products::e4m3) product("e4m3.e4m3"); \
  if constexpr (Products == fp8_products::e4m3_e5m2) product("e4m3.e5m2"); \
  if constexpr (Products == fp8_products::e5m2_e4m3) product("e5m2.e4m3"); \
  if constexpr (Products == fp8_products::e5m2) product("e5m2.e5m2")
/// d [64 × 64 or more] = a·bᵀ (+ d unless `first`) over 32 k of FP8.
template <fp8_products Products>
__device__ inline void wgmma_fp8(float (&d)[32], std::uint64_t a, std::uint64_t b, bool first) {
  ROTOSCALE_FP8(ROTOSCALE_FP8_64);
}
template <fp8_products Products>
__device__ inline void wgmma_fp8(float (&d)[64], std::uint64_t a, std::uint64_t b, bool first) {
  ROTOSCALE_FP8(ROTOSCALE_FP8_128);
}
template <fp8_products Products>
__device__ inline void wgmma_fp8(float (&d)[128], std::uint64_t a, std::uint64_t b, bool first) {
  ROTOSCALE_FP8(ROTOSCALE_FP8_256);
}
#undef ROTOSCALE_FP8
#undef ROTOSCALE_FP8_64
#undef ROTOSCALE_FP8_128
#undef ROTOSCALE_FP8_256
/// d [64 × 64 or more] = a·bᵀ (+ d unless `first`) over 16 k of BF16.
template <bool TransposedA, bool TransposedB>
__device__ inline void wgmma_bf16(float (&d)[32], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ROTOSCALE_N32
               "}, %32, %33, p, 1, 1, %35, %36;\n}"
               : ROTOSCALE_D32("+f", d, 0) : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)),
                 "n"(TransposedA ? 1 : 0), "n"(TransposedB ? 1 : 0));
}
template <bool TransposedA, bool TransposedB>
__device__ inline void wgmma_bf16(float (&d)[64], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ROTOSCALE_N64
               "}, %64, %65, p, 1, 1, %67, %68;\n}"
               : ROTOSCALE_D64("+f", d, 0) : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)),
                 "n"(TransposedA ? 1 : 0), "n"(TransposedB ? 1 : 0));
}
template <bool TransposedA, bool TransposedB>
__device__ inline void wgmma_bf16(float (&d)[128], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %130, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" ROTOSCALE_N128
               "}, %128, %129, p, 1, 1, %131, %132;\n}"
               : ROTOSCALE_D64("+f", d, 0), ROTOSCALE_D64("+f", d, 64)
               : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)),
                 "n"(TransposedA ? 1 : 0), "n"(TransposedB ? 1 : 0));
}
/// d [64 × 64 or more] = a·bᵀ (+ d unless `first`) over 32 k of int8.
__device__ inline void wgmma_int8(std::int32_t (&d)[32], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {" ROTOSCALE_N32 "}, %32, %33, p;\n}"
               : ROTOSCALE_D32("+r", d, 0) : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)));
}
__device__ inline void wgmma_int8(std::int32_t (&d)[64], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {" ROTOSCALE_N64 "}, %64, %65, p;\n}"
               : ROTOSCALE_D64("+r", d, 0) : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)));
}
__device__ inline void wgmma_int8(std::int32_t (&d)[128], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %130, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 {" ROTOSCALE_N128 "}, %128, %129, p;\n}"
               : ROTOSCALE_D64("+r", d, 0), ROTOSCALE_D64("+r", d, 64)
               : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)));
}
#undef ROTOSCALE_D8
#undef ROTOSCALE_D32
#undef ROTOSCALE_D64
#undef ROTOSCALE_N32
#undef ROTOSCALE_N64
#undef ROTOSCALE_N128
// clang-format on

}  // namespace rotoscale::gpu::sm90
