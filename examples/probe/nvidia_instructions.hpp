// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// NVIDIA's matrix instructions in PTX, one struct each. `run` computes one tile, per warp (mma.sync) or warpgroup
// (wgmma), from registers in PTX's layout. All m16n8 forms of mma.sync have the same layout: a register holds four
// bytes of k, eight for FP64.
#pragma once

#include <cstdint>

#include "gpu/dialect/hip.hpp"

namespace rotoscale::probe {

/// Registers of one thread for a tile: A (kept elements), B (mma.sync), accumulators (FP16 in pairs), metadata of a
/// sparse A.
struct tile_registers {
  std::uint32_t a[4], b[4], acc[4], metadata;
};
struct fp64_registers {
  double a[8], b[4], acc[4];
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
// Sparse forms: twice the B, and metadata of A.
#define ROTOSCALE_SPARSE_F32(NAME, TEXT)                                                                           \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      float d[4];                                                                                                  \
      asm volatile(TEXT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 0x0;"             \
                   : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "r"(t.b[0]), "r"(t.b[1]), "r"(t.b[2]),    \
                     "r"(t.b[3]), "f"(__uint_as_float(t.acc[0])), "f"(__uint_as_float(t.acc[1])),                  \
                     "f"(__uint_as_float(t.acc[2])), "f"(__uint_as_float(t.acc[3])), "r"(t.metadata));             \
      for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(d[i]);                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_SPARSE_HALF_K_F32(NAME, TEXT)                                                                    \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      float d[4];                                                                                                  \
      asm volatile(TEXT " {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%8,%9,%10,%11}, %12, 0x0;"                             \
                   : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.b[0]), "r"(t.b[1]), "f"(__uint_as_float(t.acc[0])),           \
                     "f"(__uint_as_float(t.acc[1])), "f"(__uint_as_float(t.acc[2])),                               \
                     "f"(__uint_as_float(t.acc[3])), "r"(t.metadata));                                             \
      for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(d[i]);                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_SPARSE_F16(NAME, TEXT)                                                                           \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      asm volatile(TEXT " {%0,%1}, {%2,%3,%4,%5}, {%6,%7,%8,%9}, {%0,%1}, %10, 0x0;"                               \
                   : "+r"(t.acc[0]), "+r"(t.acc[1])                                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "r"(t.b[0]), "r"(t.b[1]), "r"(t.b[2]),    \
                     "r"(t.b[3]), "r"(t.metadata));                                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_SPARSE_HALF_K_F16(NAME, TEXT)                                                                    \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t) {                                                                \
      asm volatile(TEXT " {%0,%1}, {%2,%3}, {%4,%5}, {%0,%1}, %6, 0x0;"                                            \
                   : "+r"(t.acc[0]), "+r"(t.acc[1])                                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.b[0]), "r"(t.b[1]), "r"(t.metadata));                         \
    }                                                                                                              \
  };
// wgmma: A in registers as in mma.sync, B by a shared-memory descriptor.
//
//  SPARSE   " %9, 0," (FP16: " %7, 0,") for metadata, else empty
//  SCALE_D  "1", or "0" to ignore C
//  TAIL     the immediates after scale-d, starting with the signs of A and B
#define ROTOSCALE_WGMMA_F32(NAME, TEXT, SPARSE, SCALE_D, TAIL)                                                     \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t, std::uint64_t b) {                                               \
      float d[4];                                                                                                  \
      for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(t.acc[i]);                                                \
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, " SCALE_D ", 0;\nwgmma.fence.sync.aligned;\n"                \
                   TEXT " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8," SPARSE " p, " TAIL ";\n"                              \
                   "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"                         \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "l"(b), "r"(t.metadata)                   \
                   : "memory");                                                                                    \
      for (int i = 0; i < 4; ++i) t.acc[i] = __float_as_uint(d[i]);                                                \
    }                                                                                                              \
  };
#define ROTOSCALE_WGMMA_F16(NAME, TEXT, SPARSE, SCALE_D, TAIL)                                                     \
  struct NAME {                                                                                                    \
    __device__ static void run(tile_registers& t, std::uint64_t b) {                                               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, " SCALE_D ", 0;\nwgmma.fence.sync.aligned;\n"                \
                   TEXT " {%0,%1}, {%2,%3,%4,%5}, %6," SPARSE " p, " TAIL ";\n"                                    \
                   "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"                         \
                   : "+r"(t.acc[0]), "+r"(t.acc[1])                                                                \
                   : "r"(t.a[0]), "r"(t.a[1]), "r"(t.a[2]), "r"(t.a[3]), "l"(b), "r"(t.metadata)                   \
                   : "memory");                                                                                    \
    }                                                                                                              \
  };

/// FP64: rows × k times k × 8.
template <int Rows, int K>
struct mma_f64;
template <>
struct mma_f64<8, 4> {
  __device__ static void run(fp64_registers& t) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(t.acc[0]), "+d"(t.acc[1])
                 : "d"(t.a[0]), "d"(t.b[0]));
  }
};
template <>
struct mma_f64<16, 4> {
  __device__ static void run(fp64_registers& t) {
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+d"(t.acc[0]), "+d"(t.acc[1]), "+d"(t.acc[2]), "+d"(t.acc[3])
                 : "d"(t.a[0]), "d"(t.a[1]), "d"(t.b[0]));
  }
};
template <>
struct mma_f64<16, 8> {
  __device__ static void run(fp64_registers& t) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+d"(t.acc[0]), "+d"(t.acc[1]), "+d"(t.acc[2]), "+d"(t.acc[3])
                 : "d"(t.a[0]), "d"(t.a[1]), "d"(t.a[2]), "d"(t.a[3]), "d"(t.b[0]), "d"(t.b[1]));
  }
};
template <>
struct mma_f64<16, 16> {
  __device__ static void run(fp64_registers& t) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
        "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(t.acc[0]), "+d"(t.acc[1]), "+d"(t.acc[2]), "+d"(t.acc[3])
        : "d"(t.a[0]), "d"(t.a[1]), "d"(t.a[2]), "d"(t.a[3]), "d"(t.a[4]), "d"(t.a[5]), "d"(t.a[6]), "d"(t.a[7]),
          "d"(t.b[0]), "d"(t.b[1]), "d"(t.b[2]), "d"(t.b[3]));
  }
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
ROTOSCALE_WGMMA_F32(wgmma_f16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "", "1", "1, 1, 0")
ROTOSCALE_WGMMA_F16(wgmma_f16_f16, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", "", "1", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_bf16, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "", "1", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_tf32, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_e4m3_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e4m3_e4m3_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3", "", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_e5m2_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e5m2", "", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e4m3_e5m2_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e5m2", "", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e5m2_e4m3_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3", "", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_e4m3_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e4m3", "", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e5m2_e5m2_f32, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e5m2", "", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_e5m2_f16, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "", "1", "1, 1")
ROTOSCALE_SPARSE_F32(sparse_f16_k32, "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32")
ROTOSCALE_SPARSE_F16(sparse_f16_k32_f16, "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16")
ROTOSCALE_SPARSE_HALF_K_F32(sparse_f16_k16, "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
ROTOSCALE_SPARSE_HALF_K_F16(sparse_f16_k16_f16, "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
ROTOSCALE_SPARSE_F32(sparse_bf16_k32, "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32")
ROTOSCALE_SPARSE_HALF_K_F32(sparse_bf16_k16, "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
ROTOSCALE_SPARSE_F32(sparse_tf32_k16, "mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32")
ROTOSCALE_SPARSE_HALF_K_F32(sparse_tf32_k8, "mma.sp::ordered_metadata.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
ROTOSCALE_SPARSE_F32(sparse_e4m3_e4m3_f32, "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32")
ROTOSCALE_SPARSE_F32(sparse_e4m3_e5m2_f32, "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e5m2.f32")
ROTOSCALE_SPARSE_F32(sparse_e5m2_e4m3_f32, "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e5m2.e4m3.f32")
ROTOSCALE_SPARSE_F32(sparse_e5m2_e5m2_f32, "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e5m2.e5m2.f32")
ROTOSCALE_WGMMA_F32(wgmma_sparse_f16_f32, "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16", " %9, 0,", "1", "1, 1, 0")
ROTOSCALE_WGMMA_F16(wgmma_sparse_f16_f16, "wgmma.mma_async.sp.sync.aligned.m64n8k32.f16.f16.f16", " %7, 0,", "1", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_sparse_bf16_f32, "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16", " %9, 0,", "1", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_sparse_tf32, "wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.tf32.tf32", " %9, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_sparse_e4m3_e4m3_f32, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e4m3", " %9, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_sparse_e4m3_e4m3_f16, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e4m3.e4m3", " %7, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_sparse_e4m3_e5m2_f32, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e4m3.e5m2", " %9, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_sparse_e4m3_e5m2_f16, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e4m3.e5m2", " %7, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_sparse_e5m2_e4m3_f32, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e5m2.e4m3", " %9, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_sparse_e5m2_e4m3_f16, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e5m2.e4m3", " %7, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_sparse_e5m2_e5m2_f32, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f32.e5m2.e5m2", " %9, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_sparse_e5m2_e5m2_f16, "wgmma.mma_async.sp.sync.aligned.m64n8k64.f16.e5m2.e5m2", " %7, 0,", "1", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_f16_f32_minus_a, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "", "1", "-1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_f16_f32_minus_b, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "", "1", "1, -1, 0")
ROTOSCALE_WGMMA_F32(wgmma_f16_f32_minus_both, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "", "1", "-1, -1, 0")
ROTOSCALE_WGMMA_F32(wgmma_f16_f32_no_c, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", "", "0", "1, 1, 0")
ROTOSCALE_WGMMA_F16(wgmma_f16_f16_minus_a, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", "", "1", "-1, 1, 0")
ROTOSCALE_WGMMA_F16(wgmma_f16_f16_minus_b, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", "", "1", "1, -1, 0")
ROTOSCALE_WGMMA_F16(wgmma_f16_f16_minus_both, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", "", "1", "-1, -1, 0")
ROTOSCALE_WGMMA_F16(wgmma_f16_f16_no_c, "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16", "", "0", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_bf16_f32_minus_a, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "", "1", "-1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_bf16_f32_minus_b, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "", "1", "1, -1, 0")
ROTOSCALE_WGMMA_F32(wgmma_bf16_f32_minus_both, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "", "1", "-1, -1, 0")
ROTOSCALE_WGMMA_F32(wgmma_bf16_f32_no_c, "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16", "", "0", "1, 1, 0")
ROTOSCALE_WGMMA_F32(wgmma_tf32_f32_minus_a, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "", "1", "-1, 1")
ROTOSCALE_WGMMA_F32(wgmma_tf32_f32_minus_b, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "", "1", "1, -1")
ROTOSCALE_WGMMA_F32(wgmma_tf32_f32_minus_both, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "", "1", "-1, -1")
ROTOSCALE_WGMMA_F32(wgmma_tf32_f32_no_c, "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32", "", "0", "1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_f32_minus_a, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "", "1", "-1, 1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_f32_minus_b, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "", "1", "1, -1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_f32_minus_both, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "", "1", "-1, -1")
ROTOSCALE_WGMMA_F32(wgmma_e4m3_f32_no_c, "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3", "", "0", "1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_f16_minus_a, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "", "1", "-1, 1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_f16_minus_b, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "", "1", "1, -1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_f16_minus_both, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "", "1", "-1, -1")
ROTOSCALE_WGMMA_F16(wgmma_e5m2_f16_no_c, "wgmma.mma_async.sync.aligned.m64n8k32.f16.e5m2.e5m2", "", "0", "1, 1")
// clang-format on

}  // namespace rotoscale::probe
