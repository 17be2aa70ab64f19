// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The second conversion of `accurate` and `fast` on sm_90, inside the fallback kernel. It converts int8 rows to E5M2,
// or all rows to BF16 if one does not fit E5M2. Usually no tile needs it, and a separate launch to find out would cost
// one or two microseconds.
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/gemm/upconvert.hpp"

namespace rotoscale::gpu {

/// True if a row needs conversion.
__device__ inline bool is_in_fallback(const upconvert_arguments& p, const upconvert_position& at,
                                      operand_width widest) {
  return p.widths[at.slot] == operand_width::int8 || widest == operand_width::bf16;
}
__device__ inline void upconvert_fallback_chunk(const upconvert_arguments& p, const upconvert_position& at,
                                                operand_width widest, int lane) {
  const block_source m = at.second ? p.b : p.a;
  if (p.widths[at.slot] == operand_width::int8) {
    upconvert_codes codes;
    codes.load(m, at, lane);
    store_e5m2(p, at, codes, largest_of_base(p.base[at.slot]), lane);
  }
  if (widest == operand_width::bf16) store_bf16(p, at, m, lane);
}

/// Chunks per ticket, whose widths the lanes check together. Enough that the atomic and the loads of widths do not
/// dominate if no row is int8.
inline constexpr int ticket_chunks = 16;

/// Converts all rows. On return the results are visible in memory, also to TMA copies. All threads of a block call it.
/// Subgroups take chunks by tickets, which guarantees forward progress: a chunk that a block waits for has a running
/// owner.
__device__ inline void upconvert_fallback(const upconvert_arguments& p, fallback_work& work, operand_width widest) {
  const int thread = static_cast<int>(thread_index().x), lane = thread % 32, of_row = row_chunks(p.k);
  const int chunks = (p.a.rows + p.b.rows) * of_row;
  const auto position = [&](int chunk) { return position_of(p, chunk / of_row, chunk % of_row); };
  for (;;) {
    const std::uint32_t ticket = lane == 0 ? atomic_add(&work.taken, ticket_chunks) : 0;
    const int first = static_cast<int>(shuffle(ticket, 0)), left = chunks - first;
    if (left <= 0) break;
    const int count = left < ticket_chunks ? left : ticket_chunks;
    const std::uint32_t asked = lane < count && is_in_fallback(p, position(first + lane), widest) ? 1 : 0;
    for (int i = 0; i < count; ++i) {
      if (shuffle(asked, static_cast<unsigned>(i)) != 0) upconvert_fallback_chunk(p, position(first + i), widest, lane);
    }
    copy_engine_fence();
    device_fence();
    subgroup_barrier();
    if (lane == 0) atomic_add(&work.converted, static_cast<std::uint32_t>(count));
  }
  block_barrier();
  if (thread == 0) {
    while (load_relaxed(&work.converted) != static_cast<std::uint32_t>(chunks)) {
    }
    device_fence();
  }
  block_barrier();
  copy_engine_fence();
}
static_assert(std::int64_t{2} * max_gemm_extent * row_chunks(max_gemm_extent) <= std::int64_t{1} << 30,
              "chunks, and the tickets that subgroups of a device draw beyond them, are an int");

}  // namespace rotoscale::gpu
