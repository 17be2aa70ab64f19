// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Products of whole tiles of 64 rows by sm_90a's wgmma: a warpgroup multiplies tiles that lie in shared memory as its
// 128-byte swizzle wants them, and a result of it as first operand from registers. Results lie in lanes as those of
// mma.sync do, and have the same bits.
#pragma once

#include "gpu/dialect/sm90_ptx.hpp"
#include "gpu/dialect/tensor_map.hpp"

namespace rotoscale::gpu::sm90 {

/// 64 rows of D features of BF16, in column blocks of 64 features: rows of 128 bytes, whose eight 16-byte chunks are
/// permuted by the row's number.
template <int D>
struct swizzled_tile {
  static constexpr int column_block = 64 * 64;
  alignas(1024) std::uint16_t codes[64 * D];

  /// Where 8 features of a row lie.
  __device__ static int place(int row, int column) {
    return column / 64 * column_block + row * 64 + ((column / 8 % 8) ^ (row % 8)) * 8;
  }
};

/// Pairs of tiles by the copy engine, from two [batch, token, head, feature] tensors of BF16.
struct tile_engine {
  static constexpr bool exists = true;
  struct maps {
    CUtensorMap x, y;
  };
  template <int Stages>
  struct barriers {
    std::uint64_t full[Stages];
  };

  /// Of a tensor; see make_heads_map.
  static bool make_map(CUtensorMap& map, const void* data, const std::int64_t (&extents)[4],
                       const std::int64_t (&strides)[3]) {
    return make_heads_map(map, data, extents, strides);
  }
  /// By one thread, before a barrier of the block.
  template <int Stages>
  __device__ static void init(barriers<Stages>& b) {
    ROTOSCALE_UNROLL
    for (int i = 0; i < Stages; ++i) barrier_init(shared_address(&b.full[i]), 1);
    fence_barrier_init();
  }
  /// Starts copies of rows [first, first + 64) of a head of both tensors, by one thread.
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

/// Makes what this thread wrote to shared memory visible to wgmma, after a barrier.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A descriptor of an operand in shared memory, in halves: an offset changes the lower one alone, so that the compiler
/// moves a word for each instruction and not a sum of two.
struct descriptor {
  std::uint32_t low, high;
  __device__ std::uint64_t at(std::uint32_t bytes) const {
    std::uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low + (bytes >> 4)), "r"(high));
    return both;
  }
};
/// Rows of k: groups of eight rows lie 1 KiB apart. Descriptors have to be in uniform registers: unless the compiler
/// knows that `codes` is the same in all lanes, it moves each of them there by an instruction of its own.
__device__ inline descriptor rows_descriptor(const std::uint16_t* codes) {
  return {(shared_address(codes) & 0x3FFFFu) >> 4 | 1u << 16, 1024u >> 4 | 1u << 30};
}
/// Second operand whose k are rows: blocks of 64 columns lie 8 KiB apart, groups of eight k 1 KiB.
__device__ inline descriptor transposed_descriptor(const std::uint16_t* codes) {
  return {(shared_address(codes) & 0x3FFFFu) >> 4 | (8192u >> 4) << 16, 1024u >> 4 | 1u << 30};
}

// clang-format off
#define ROTOSCALE_ROW(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i][4]), "+f"(d[i][5]), "+f"(d[i][6]), "+f"(d[i][7])
#define ROTOSCALE_N32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ROTOSCALE_N64 ROTOSCALE_N32 \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

/// d [64 × 64] = a · bᵀ (+ d unless `first`) over 16 k.
__device__ inline void multiply_k16(float (&d)[4][8], std::uint64_t a, std::uint64_t b, bool first) {
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %34, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ROTOSCALE_N32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
               : ROTOSCALE_ROW(d, 0), ROTOSCALE_ROW(d, 1), ROTOSCALE_ROW(d, 2), ROTOSCALE_ROW(d, 3)
               : "l"(a), "l"(b), "r"(static_cast<unsigned>(first)));
}
/// d [64 × 64] += a · b, a [64 × 16] in registers, the rows of b being k.
__device__ inline void add_k16(float (&d)[4][8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ROTOSCALE_N32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
               : ROTOSCALE_ROW(d, 0), ROTOSCALE_ROW(d, 1), ROTOSCALE_ROW(d, 2), ROTOSCALE_ROW(d, 3)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
/// The same for 128 columns.
__device__ inline void add_k16(float (&d)[8][8], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ROTOSCALE_N64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
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

/// Starts d [64 × 64] = rows of a times rows of b, a chain over the features.
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
/// Starts d += weights [64 × 64] times the rows of b.
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
/// Waits for all that was started but the `Youngest` last products; d are results of it.
template <int Youngest, int... Count>
__device__ void finish(float (&... d)[Count][8]) {
  if constexpr (is_sm90a) {
    wgmma_wait<Youngest>();
    (hold_rows(d), ...);
  }
}

}  // namespace rotoscale::gpu::sm90
