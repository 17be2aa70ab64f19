// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// NVIDIA's matrix instructions as PTX has them, one struct each: `run` computes one tile from registers in the layout
// that PTX prescribes. All of mma.sync's m16n8 forms place their operands alike, four bytes of k a register. One warp
// (mma.sync) or warpgroup (wgmma) computes one tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/hip.hpp"
#include "gpu/probe/device.hpp"

namespace rotoscale::gpu {

/// Registers of one thread for a tile: A, B (mma.sync) and the accumulators, FP16 ones in pairs.
struct tile_registers {
  std::uint32_t a[4], b[2], acc[4];
};

// clang-format off
#define ROTOSCALE_MMA_F32(NAME, TEXT)                                                                              \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      float d[4];                                                                                                  \
      asm volatile(TEXT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                               \
                   : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "r"(t.b[0]), "r"(t.b[1]),                 \
                     "f"(__uint_as_float(t.acc[0])), "f"(__uint_as_float(t.acc[1])),                               \
                     "f"(__uint_as_float(t.acc[2])), "f"(__uint_as_float(t.acc[3])));                              \
      for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(d[i]);                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_MMA_HALF_K_F32(NAME, TEXT)                                                                       \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      float d[4];                                                                                                  \
      asm volatile(TEXT " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"                                           \
                   : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.b[0]), "f"(__uint_as_float(t.acc[0])),                        \
                     "f"(__uint_as_float(t.acc[1])), "f"(__uint_as_float(t.acc[2])),                               \
                     "f"(__uint_as_float(t.acc[3])));                                                              \
      for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(d[i]);                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_MMA_F16(NAME, TEXT)                                                                              \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      asm volatile(TEXT " {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"                                               \
                   : "+r"(t.acc[0]), "+r"(t.acc[1])                                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "r"(t.b[0]), "r"(t.b[1]));                \
    }                                                                                                              \
  };
#define ROTOSCALE_MMA_HALF_K_F16(NAME, TEXT)                                                                       \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      asm volatile(TEXT " {%0,%1}, {%2,%3}, {%4}, {%0,%1};"                                                        \
                   : "+r"(t.acc[0]), "+r"(t.acc[1])                                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.b[0]));                                                       \
    }                                                                                                              \
  };
// wgmma: A in registers as mma.sync has it, B through a shared-memory descriptor. TAIL: the immediates after scale-d.
#define ROTOSCALE_WGMMA_F32(NAME, TEXT, TAIL)                                                                      \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t, std::uint64_t b) {                                               \
      float d[4];                                                                                                  \
      for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(t.acc[i]);                                                \
      asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.fence.sync.aligned;\n" TEXT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, " TAIL ";\n"          \
                   "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"                          \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "l"(b)                                    \
                   : "memory");                                                                                    \
      for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(d[i]);                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_WGMMA_F16(NAME, TEXT, TAIL)                                                                      \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t, std::uint64_t b) {                                               \
      asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.fence.sync.aligned;\n" TEXT " {%0,%1}, {%2,%3,%4,%5}, %6, p, " TAIL ";\n"                \
                   "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"                          \
                   : "+r"(t.acc[0]), "+r"(t.acc[1])                                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "l"(b)                                    \
                   : "memory");                                                                                    \
    }                                                                                                              \
  };

ROTOSCALE_MMA_F32(mma_f16_k16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
ROTOSCALE_MMA_F16(mma_f16_k16_f16, "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
ROTOSCALE_MMA_HALF_K_F32(mma_f16_k8, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32")
ROTOSCALE_MMA_HALF_K_F16(mma_f16_k8_f16, "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16")
ROTOSCALE_MMA_F32(mma_bf16_k16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
ROTOSCALE_MMA_HALF_K_F32(mma_bf16_k8, "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32")
ROTOSCALE_MMA_F32(mma_tf32_k8, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
ROTOSCALE_MMA_HALF_K_F32(mma_tf32_k4, "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32")
ROTOSCALE_MMA_F32(mma_e4m3_e4m3_k32_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32")
ROTOSCALE_MMA_HALF_K_F32(mma_e4m3_e4m3_k16_f32, "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32")
ROTOSCALE_MMA_F16(mma_e4m3_e4m3_k32_f16, "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16")
ROTOSCALE_MMA_HALF_K_F16(mma_e4m3_e4m3_k16_f16, "mma.sync.aligned.m16n8k16.row.col.f16.e4m3.e4m3.f16")
ROTOSCALE_MMA_F32(mma_e4m3_e5m2_k32_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32")
ROTOSCALE_MMA_F16(mma_e4m3_e5m2_k32_f16, "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16")
ROTOSCALE_MMA_F32(mma_e5m2_e4m3_k32_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32")
ROTOSCALE_MMA_F16(mma_e5m2_e4m3_k32_f16, "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16")
ROTOSCALE_MMA_F32(mma_e5m2_e5m2_k32_f32, "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32")
ROTOSCALE_MMA_HALF_K_F32(mma_e5m2_e5m2_k16_f32, "mma.sync.aligned.m16n8k16.row.col.f32.e5m2.e5m2.f32")
ROTOSCALE_MMA_F16(mma_e5m2_e5m2_k32_f16, "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e5m2.f16")
ROTOSCALE_MMA_HALF_K_F16(mma_e5m2_e5m2_k16_f16, "mma.sync.aligned.m16n8k16.row.col.f16.e5m2.e5m2.f16")
ROTOSCALE_WGMMA_F32(wgmma_f16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "1, 1, 0")
ROTOSCALE_WGMMA_F16(wgmma_f16_f16, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_bf16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_tf32, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_e4m3_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e4m3_e4m3_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_e5m2_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e4m3_e5m2_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e5m2_e4m3_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_e4m3_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e4m3", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e5m2_e5m2_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_e5m2_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "1, 1")
// clang-format on

__device__ std::uint32_t load_word(const std::uint8_t* from) { return *reinterpret_cast<const std::uint32_t*>(from); }

/// Rows `row` and row + 8 of a tile's A: registers i and i + 2 are four bytes of k at 4 * (lane % 4) and 16 later.
__device__ void load_a(tile_registers& t, const std::uint8_t* a, int row, int lane, int row_bytes) {
  for (int i = 0; i < row_bytes / 8; ++i) {
    t.a[i] = load_word(a + (row + 8 * (i % 2)) * row_bytes + 4 * (lane % 4) + 16 * (i / 2));
  }
}

/// Accumulators: columns 2 * (lane % 4) and the next, of rows `row` and row + 8.
template <bool Fp16, bool Store>
__device__ void move_accumulators(tile_registers& t, std::conditional_t<Store, std::uint8_t*, const std::uint8_t*> m,
                                  int row, int lane) {
  constexpr int bytes = Fp16 ? 2 : 4;
  for (int i = 0; i < bytes; ++i) {  // FP16: two registers of two; FP32: four of one
    const int half = Fp16 ? i : i / 2, column = 2 * (lane % 4) + (Fp16 ? 0 : i % 2);
    auto* word = reinterpret_cast<std::conditional_t<Store, std::uint32_t*, const std::uint32_t*>>(
        m + ((row + 8 * half) * 8 + column) * bytes);
    if constexpr (Store) {
      *word = t.acc[i];
    } else {
      t.acc[i] = *word;
    }
  }
}

template <class Instruction, bool Fp16, int RowBytes>
__global__ void mma_kernel(tile_pointers p) {
  const int tile = static_cast<int>(block_index().x * 4 + thread_index().x / 32);
  if (tile >= p.tiles) return;
  const int lane = static_cast<int>(thread_index().x % 32);
  constexpr int result_bytes = 16 * 8 * (Fp16 ? 2 : 4);
  tile_registers t;
  load_a(t, p.a + static_cast<std::int64_t>(tile) * 16 * RowBytes, lane / 4, lane, RowBytes);
  const std::uint8_t* b = p.b + static_cast<std::int64_t>(tile) * 8 * RowBytes;
  for (int i = 0; i < RowBytes / 16; ++i) t.b[i] = load_word(b + lane / 4 * RowBytes + 4 * (lane % 4) + 16 * i);
  move_accumulators<Fp16, false>(t, p.c + static_cast<std::int64_t>(tile) * result_bytes, lane / 4, lane);
  Instruction::run(t);
  move_accumulators<Fp16, true>(t, p.d + static_cast<std::int64_t>(tile) * result_bytes, lane / 4, lane);
}

/// B in shared memory without a swizzle: two core matrices of 8 rows of 16 bytes, 128 bytes apart along k.
__device__ std::uint64_t core_matrix_descriptor(const std::uint8_t* shared) {
  const auto address = static_cast<std::uint64_t>(__cvta_generic_to_shared(shared));
  return (address & 0x3FFFF) >> 4 | std::uint64_t{128 >> 4} << 16 | std::uint64_t{256 >> 4} << 32;
}

template <class Instruction, bool Fp16, int RowBytes>
__global__ void wgmma_kernel(tile_pointers p) {
  static_assert(RowBytes == 32);
  __shared__ alignas(128) std::uint8_t shared[8 * RowBytes];
  const std::int64_t tile = block_index().x;
  const int thread = static_cast<int>(thread_index().x), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  constexpr int result_bytes = 64 * 8 * (Fp16 ? 2 : 4);
  for (int i = thread; i < 8 * RowBytes; i += 128) {
    const int n = i / RowBytes, byte = i % RowBytes;
    shared[byte / 16 * 128 + n * 16 + byte % 16] = p.b[tile * 8 * RowBytes + i];
  }
  tile_registers t;
  load_a(t, p.a + tile * 64 * RowBytes, row, lane, RowBytes);
  move_accumulators<Fp16, false>(t, p.c + tile * result_bytes, row, lane);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  Instruction::run(t, core_matrix_descriptor(shared));
  move_accumulators<Fp16, true>(t, p.d + tile * result_bytes, row, lane);
}

struct device_entry {
  probed_instruction what;
  void (*launch)(tile_pointers);
};

template <class Instruction, bool Fp16, int RowBytes, bool Warpgroup>
device_entry entry(const char* unit, const char* name, format a, format b, int k) {
  return {{unit, name, a, b, Fp16, Warpgroup ? 64 : 16, 8, k}, [](tile_pointers p) {
            if constexpr (Warpgroup) {
              wgmma_kernel<Instruction, Fp16, RowBytes><<<static_cast<unsigned>(p.tiles), 128>>>(p);
            } else {
              mma_kernel<Instruction, Fp16, RowBytes><<<static_cast<unsigned>((p.tiles + 3) / 4), 128>>>(p);
            }
          }};
}

// clang-format off
const device_entry entries[] = {
    entry<mma_f16_k16, false, 32, false>("hopper-mma-fp16-f32", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", formats::fp16, formats::fp16, 16),
    entry<mma_f16_k16_f16, true, 32, false>("hopper-mma-fp16-f16", "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", formats::fp16, formats::fp16, 16),
    entry<mma_f16_k8, false, 16, false>("hopper-mma-k8-fp16-f32", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", formats::fp16, formats::fp16, 8),
    entry<mma_f16_k8_f16, true, 16, false>("hopper-mma-k8-fp16-f16", "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16", formats::fp16, formats::fp16, 8),
    entry<mma_bf16_k16, false, 32, false>("hopper-mma-fp16-f32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", formats::bf16, formats::bf16, 16),
    entry<mma_bf16_k8, false, 16, false>("hopper-mma-k8-fp16-f32", "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", formats::bf16, formats::bf16, 8),
    entry<mma_tf32_k8, false, 32, false>("hopper-mma-tf32-f32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", formats::tf32, formats::tf32, 8),
    entry<mma_tf32_k4, false, 16, false>("hopper-mma-k4-tf32-f32", "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", formats::tf32, formats::tf32, 4),
    entry<mma_e4m3_e4m3_k32_f32, false, 32, false>("hopper-mma-fp8-f32", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", formats::e4m3, formats::e4m3, 32),
    entry<mma_e4m3_e4m3_k16_f32, false, 16, false>("hopper-mma-k16-fp8-f32", "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32", formats::e4m3, formats::e4m3, 16),
    entry<mma_e4m3_e4m3_k32_f16, true, 32, false>("hopper-mma-fp8-f16", "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16", formats::e4m3, formats::e4m3, 32),
    entry<mma_e4m3_e4m3_k16_f16, true, 16, false>("hopper-mma-k16-fp8-f16", "mma.sync.aligned.m16n8k16.row.col.f16.e4m3.e4m3.f16", formats::e4m3, formats::e4m3, 16),
    entry<mma_e4m3_e5m2_k32_f32, false, 32, false>("hopper-mma-fp8-f32", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", formats::e4m3, formats::e5m2, 32),
    entry<mma_e4m3_e5m2_k32_f16, true, 32, false>("hopper-mma-fp8-f16", "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e5m2.f16", formats::e4m3, formats::e5m2, 32),
    entry<mma_e5m2_e4m3_k32_f32, false, 32, false>("hopper-mma-fp8-f32", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32", formats::e5m2, formats::e4m3, 32),
    entry<mma_e5m2_e4m3_k32_f16, true, 32, false>("hopper-mma-fp8-f16", "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16", formats::e5m2, formats::e4m3, 32),
    entry<mma_e5m2_e5m2_k32_f32, false, 32, false>("hopper-mma-fp8-f32", "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32", formats::e5m2, formats::e5m2, 32),
    entry<mma_e5m2_e5m2_k16_f32, false, 16, false>("hopper-mma-k16-fp8-f32", "mma.sync.aligned.m16n8k16.row.col.f32.e5m2.e5m2.f32", formats::e5m2, formats::e5m2, 16),
    entry<mma_e5m2_e5m2_k32_f16, true, 32, false>("hopper-mma-fp8-f16", "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e5m2.f16", formats::e5m2, formats::e5m2, 32),
    entry<mma_e5m2_e5m2_k16_f16, true, 16, false>("hopper-mma-k16-fp8-f16", "mma.sync.aligned.m16n8k16.row.col.f16.e5m2.e5m2.f16", formats::e5m2, formats::e5m2, 16),
    entry<wgmma_f16, false, 32, true>("hopper-mma-fp16-f32", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", formats::fp16, formats::fp16, 16),
    entry<wgmma_f16_f16, true, 32, true>("hopper-mma-fp16-f16", "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", formats::fp16, formats::fp16, 16),
    entry<wgmma_bf16, false, 32, true>("hopper-mma-fp16-f32", "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", formats::bf16, formats::bf16, 16),
    entry<wgmma_tf32, false, 32, true>("hopper-mma-tf32-f32", "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", formats::tf32, formats::tf32, 8),
    entry<wgmma_e4m3_e4m3_f32, false, 32, true>("hopper-wgmma-fp8-f32", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", formats::e4m3, formats::e4m3, 32),
    entry<wgmma_e4m3_e4m3_f16, true, 32, true>("hopper-wgmma-fp8-f16", "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3", formats::e4m3, formats::e4m3, 32),
    entry<wgmma_e4m3_e5m2_f32, false, 32, true>("hopper-wgmma-fp8-f32", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2", formats::e4m3, formats::e5m2, 32),
    entry<wgmma_e4m3_e5m2_f16, true, 32, true>("hopper-wgmma-fp8-f16", "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", formats::e4m3, formats::e5m2, 32),
    entry<wgmma_e5m2_e4m3_f32, false, 32, true>("hopper-wgmma-fp8-f32", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3", formats::e5m2, formats::e4m3, 32),
    entry<wgmma_e5m2_e4m3_f16, true, 32, true>("hopper-wgmma-fp8-f16", "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e4m3", formats::e5m2, formats::e4m3, 32),
    entry<wgmma_e5m2_e5m2_f32, false, 32, true>("hopper-wgmma-fp8-f32", "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", formats::e5m2, formats::e5m2, 32),
    entry<wgmma_e5m2_e5m2_f16, true, 32, true>("hopper-wgmma-fp8-f16", "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", formats::e5m2, formats::e5m2, 32),
};
// clang-format on

inline bool runs_here(const device_entry&) { return true; }

}  // namespace rotoscale::gpu
