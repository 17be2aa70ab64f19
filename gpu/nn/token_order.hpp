// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Sorts the tokens of a pass by id, then position, for the embedding's gradient (embedding.hpp).
#pragma once

#include "gpu/dialect/lanes.hpp"
#include "gpu/dialect/packed.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::gpu {

/// `order`: positions of the valid tokens, sorted by id, then position. `runs[i]`: length of the run of equal ids that
/// starts at i; other entries are not written. `long_runs`: starts of runs longer than `longest_short_run`, in any
/// order. `long_count`: their number.
struct token_order_args {
  nn::token_source tokens;
  const nn::step_state* state = nullptr;
  unsigned count = 0, vocabulary = 0;
  std::uint32_t *order = nullptr, *runs = nullptr, *long_runs = nullptr, *long_count = nullptr;
};
inline constexpr unsigned longest_short_run = 64;

/// A block sorts the tokens of `order_range` consecutive ids. It first counts lower ids and each id in its range. It
/// then goes through all tokens again, order_batch loads per thread at a time.
inline constexpr unsigned order_range = 64, order_threads = 256, order_warps = order_threads / subgroup_lanes;
inline constexpr unsigned order_batch = 4, order_groups = order_batch * order_warps;
struct order_shared {
  std::uint32_t lower[order_warps];
  std::uint32_t number[order_range];  ///< per id: its count, later the next place in `order`
  /// The same per group of 32 consecutive tokens.
  std::uint32_t of_group[order_groups][order_range];
};

/// Ids of `order_batch` tokens of the thread. Tokens of a subgroup are consecutive.
struct token_batch_ids {
  std::uint32_t id[order_batch];

  __device__ token_batch_ids(const std::int32_t* tokens, unsigned first, unsigned count) {
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < order_batch; ++k) {
      const unsigned i = first + k * order_threads + thread_index().x;
      id[k] = i < count ? static_cast<std::uint32_t>(tokens[i]) : 0xFFFFFFFFu;
    }
  }
};

/// Returns the lanes of the subgroup, among those in `own`, whose number (below order_range) equals this lane's.
__device__ inline std::uint32_t lanes_alike(std::uint32_t number, std::uint32_t own) {
  ROTOSCALE_UNROLL
  for (unsigned bit = 1; bit < order_range; bit *= 2) {
    const bool is_set = (number & bit) != 0;
    const std::uint32_t set = subgroup_ballot(is_set);
    own &= is_set ? set : ~set;
  }
  return own;
}

/// Counts the tokens of each id, and sets the ids' first places in `order`, after all lower ids.
__device__ inline void count_tokens(const token_order_args& a, const std::int32_t* tokens, unsigned low,
                                    order_shared& shared) {
  const unsigned t = thread_index().x;
  if (t < order_range) shared.number[t] = 0;
  block_barrier();
  std::uint32_t below = 0;
  for (unsigned first = 0; first < a.count; first += order_batch * order_threads) {
    const token_batch_ids ids(tokens, first, a.count);
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < order_batch; ++k) {
      const std::uint32_t n = ids.id[k];
      below += n < low;
      if (n - low < order_range && n < a.vocabulary) atomic_add(&shared.number[n - low], 1);
    }
  }
  below = subgroup_sum(below);
  if (t % subgroup_lanes == 0) shared.lower[t / subgroup_lanes] = below;
  block_barrier();
  std::uint32_t at = 0, own = 0;
  if (t < order_range) {
    own = shared.number[t];
    for (unsigned w = 0; w < order_warps; ++w) at += shared.lower[w];
    for (unsigned v = 0; v < t; ++v) at += shared.number[v];
    if (own != 0) a.runs[at] = own;
    if (own > longest_short_run) a.long_runs[atomic_add(a.long_count, 1)] = at;
  }
  block_barrier();
  if (t < order_range) shared.number[t] = at;
}

/// Writes `order`, `runs` and `long_runs`. Grid: one block per order_range ids.
[[maybe_unused]] static __global__ void __launch_bounds__(order_threads)
    token_order_kernel(const ROTOSCALE_GRID_CONSTANT token_order_args a) {
  auto& shared = block_shared<order_shared>();
  const unsigned t = thread_index().x, lane = t % subgroup_lanes, warp = t / subgroup_lanes;
  const unsigned low = block_index().x * order_range;
  const std::int32_t* const tokens = a.tokens.now(*a.state);
  count_tokens(a, tokens, low, shared);
  auto* const counts = &shared.of_group[0][0];
  for (unsigned first = 0; first < a.count; first += order_batch * order_threads) {
    const token_batch_ids ids(tokens, first, a.count);
    for (unsigned i = t; i < order_groups * order_range; i += order_threads) counts[i] = 0;
    block_barrier();
    // 1. Per group: count of each id, and rank of this lane's token.
    unsigned rank[order_batch];
    bool own[order_batch];
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < order_batch; ++k) {
      const std::uint32_t number = ids.id[k] - low;
      own[k] = number < order_range && ids.id[k] < a.vocabulary;
      const std::uint32_t all = subgroup_ballot(own[k]);
      rank[k] = 0;
      if (all == 0) continue;
      const std::uint32_t alike = lanes_alike(number, all);
      rank[k] = static_cast<unsigned>(count_bits(alike & ((1u << lane) - 1)));
      if (own[k] && rank[k] == 0) {
        shared.of_group[k * order_warps + warp][number] = static_cast<std::uint32_t>(count_bits(alike));
      }
    }
    block_barrier();
    // 2. First place of each group's tokens in `order`.
    if (t < order_range) {
      std::uint32_t at = shared.number[t];
      for (unsigned g = 0; g < order_groups; ++g) {
        const std::uint32_t some = shared.of_group[g][t];
        shared.of_group[g][t] = at;
        at += some;
      }
      shared.number[t] = at;
    }
    block_barrier();
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < order_batch; ++k) {
      if (!own[k]) continue;
      a.order[shared.of_group[k * order_warps + warp][ids.id[k] - low] + rank[k]] = first + k * order_threads + t;
    }
    block_barrier();
  }
}

}  // namespace rotoscale::gpu
