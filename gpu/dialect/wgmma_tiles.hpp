// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// wgmma on tiles of 64 rows. The second operand is in shared memory with 128-byte swizzle, the first there or in
// registers. Results have the lane layout of mma.sync, and the same bits. The PTX wrappers are in sm90_ptx.hpp.
#pragma once

#include "gpu/dialect/sm90_ptx.hpp"
#include "gpu/dialect/tensor_map.hpp"

namespace rotoscale::gpu::sm90 {

/// 64 rows × D features of BF16, in column blocks of 64 features. A row of a block has 128 bytes. Its eight 16-byte
/// chunks are permuted by the row number.
template <int D>
struct swizzled_tile {
  static constexpr int column_block = 64 * 64;
  alignas(1024) std::uint16_t codes[64 * D];

  /// Index of 8 features of a row.
  __device__ static int place(int row, int column) {
    return column / 64 * column_block + row * 64 + ((column / 8 % 8) ^ (row % 8)) * 8;
  }
};

/// TMA loads of pairs of tiles from two BF16 (batch, token, head, feature) tensors.
struct tile_engine {
  static constexpr bool exists = true;
  struct maps {
    CUtensorMap x, y;
  };
  template <int Stages>
  struct barriers {
    std::uint64_t full[Stages];
  };

  /// See make_heads_map.
  static bool make_map(CUtensorMap& map, const void* data, const std::int64_t (&extents)[4],
                       const std::int64_t (&strides)[3]) {
    return make_heads_map(map, data, extents, strides);
  }
  /// One thread calls this before a block barrier.
  template <int Stages>
  __device__ static void init(barriers<Stages>& b) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Stages; ++i) barrier_init(shared_address(&b.full[i]), 1);
    fence_barrier_init();
  }
  /// Starts copies of rows [first, first + 64) of head h of both tensors. One thread calls this.
  template <int D>
  __device__ static void load(const maps& m, int h, int first, int b, swizzled_tile<D>& x, swizzled_tile<D>& y,
                              std::uint64_t& full) {
    const std::uint32_t bar = shared_address(&full);
    barrier_expect(bar, sizeof(x.codes) + sizeof(y.codes));
    ROTOSCALE_UNROLL
    for (int column = 0; column < D; column += 64) {
      load_box(shared_address(x.codes + x.place(0, column)), &m.x, column, h, first, b, bar);
      load_box(shared_address(y.codes + y.place(0, column)), &m.y, column, h, first, b, bar);
    }
  }
  __device__ static void wait(std::uint64_t& full, unsigned parity) { barrier_wait(shared_address(&full), parity); }
};

/// Makes this thread's shared-memory writes visible to wgmma after the next barrier.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Descriptor of a shared-memory operand in two words. An offset changes the low word alone, so an instruction needs
/// one move and no 64-bit addition.
struct descriptor {
  std::uint32_t low, high;
  __device__ std::uint64_t at(std::uint32_t bytes) const {
    std::uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low + (bytes >> 4)), "r"(high));
    return both;
  }
};
/// Descriptor of rows of k; groups of eight rows are 1 KiB apart. `codes` must be warp-uniform for the compiler:
/// descriptors are in uniform registers, and others need one more move each.
__device__ inline descriptor rows_descriptor(const std::uint16_t* codes) {
  return {(shared_address(codes) & 0x3FFFFu) >> 4 | 1u << 16, 1024u >> 4 | 1u << 30};
}
/// Descriptor of a second operand whose rows are k. Blocks of 64 columns are 8 KiB apart, groups of eight k 1 KiB.
__device__ inline descriptor transposed_descriptor(const std::uint16_t* codes) {
  return {(shared_address(codes) & 0x3FFFFu) >> 4 | (8192u >> 4) << 16, 1024u >> 4 | 1u << 30};
}

// clang-format off
#define ROTOSCALE_ROW(d, i) \
  "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), \
  "+f"(d[i][4]), "+f"(d[i][5]), "+f"(d[i][6]), "+f"(d[i][7])
#define ROTOSCALE_N32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define ROTOSCALE_N64 ROTOSCALE_N32 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
  "%59,%60,%61,%62,%63"

/// d [64 × 64] = a · bᵀ (+ d unless `first`) over 16 k.
__device__ inline void multiply_k16(float (&d)[4][8], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ROTOSCALE_N32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
               : ROTOSCALE_ROW(d, 0), ROTOSCALE_ROW(d, 1), ROTOSCALE_ROW(d, 2), ROTOSCALE_ROW(d, 3)
               : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)));
}
/// d [64 × 64] += a · b. a [64 × 16] is in registers, the rows of b are k.
__device__ inline void add_k16(float (&d)[4][8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ROTOSCALE_N32
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : ROTOSCALE_ROW(d, 0), ROTOSCALE_ROW(d, 1), ROTOSCALE_ROW(d, 2), ROTOSCALE_ROW(d, 3)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/// The same with 128 columns of d and b.
__device__ inline void add_k16(float (&d)[8][8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ROTOSCALE_N64
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
               : ROTOSCALE_ROW(d, 0), ROTOSCALE_ROW(d, 1), ROTOSCALE_ROW(d, 2), ROTOSCALE_ROW(d, 3),
                 ROTOSCALE_ROW(d, 4), ROTOSCALE_ROW(d, 5), ROTOSCALE_ROW(d, 6), ROTOSCALE_ROW(d, 7)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef ROTOSCALE_ROW
#undef ROTOSCALE_N32
#undef ROTOSCALE_N64
// clang-format on

template <int Count>
__device__ void hold_rows(float (&d)[Count][8]) {
  ROTOSCALE_UNROLL
  for (int i = 0; i < Count; ++i) hold(d[i]);
}

/// Starts d [64 × 64] = a · bᵀ over D features.
template <int D>
__device__ void start_rows(const swizzled_tile<D>& a, const swizzled_tile<D>& b, float (&d)[4][8]) {
  if constexpr (is_sm90a) {
    const descriptor at_a = rows_descriptor(a.codes), at_b = rows_descriptor(b.codes);
    hold_rows(d);
    wgmma_fence();
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < D / 16; ++i) {
      const std::uint32_t offset = i / 4 * 2 * swizzled_tile<D>::column_block + i % 4 * 32;
      multiply_k16(d, at_a.at(offset), at_b.at(offset), i == 0);
    }
    wgmma_commit();
  }
}
/// Starts d [64 × D] += weights [64 × 64] · b.
template <int D>
__device__ void start_sum(const std::uint32_t (&weights)[4][4], const swizzled_tile<D>& b, float (&d)[D / 16][8]) {
  if constexpr (is_sm90a) {
    const descriptor at_b = transposed_descriptor(b.codes);
    hold_rows(d);
    wgmma_fence();
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 4; ++i) add_k16(d, weights[i], at_b.at(i * 2048));
    wgmma_commit();
  }
}
/// Waits for all products except the latest `Youngest`. d are results of finished products.
template <int Youngest, int... Count>
__device__ void finish(float (&... d)[Count][8]) {
  if constexpr (is_sm90a) {
    wgmma_wait<Youngest>();
    (hold_rows(d), ...);
  }
}

}  // namespace rotoscale::gpu::sm90
