// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cross-entropy kernel. Chunks, tickets and shared memory are in loss_chunk.hpp.
//
// 1. A block loads a chunk of 4096 logits of a row and publishes its maximum and sum of exponentials.
// 2. It waits for the records of the row's other chunks and combines them.
// 3. It turns its exponentials, still in shared memory, into gradients.
#pragma once

#include "gpu/nn/loss_chunk.hpp"

namespace rotoscale::gpu {

/// Spins until a chunk's record is published, and returns it.
__device__ inline softmax_part wait_for_part(const softmax_part* from) {
  std::uint64_t bits;
  do {
    bits = load_relaxed(reinterpret_cast<const std::uint64_t*>(from));
  } while (static_cast<std::uint32_t>(bits) == unwritten_part);
  return {fp32_from_bits(static_cast<std::uint32_t>(bits)), fp32_from_bits(static_cast<std::uint32_t>(bits >> 32))};
}
__device__ inline void write_part(softmax_part* to, const softmax_part& part) {
  store_relaxed(reinterpret_cast<std::uint64_t*>(to),
                std::uint64_t{fp32_bits(part.sum)} << 32 | fp32_bits(part.largest));
}

/// Combines the records of a row's chunks to its maximum and sum, by one subgroup. `own` is this block's record.
__device__ inline softmax_part combine_parts(const loss_args& a, const logits_chunk& at, const softmax_part& own) {
  const unsigned lane = thread_index().x % subgroup_lanes;
  const auto part = [&](unsigned c) {
    return c == at.chunk || c >= a.chunks ? own : wait_for_part(a.parts + at.row * a.chunks + c);
  };
  const softmax_part first = part(lane);
  float largest = first.largest;
  for (unsigned c = lane + subgroup_lanes; c < a.chunks; c += subgroup_lanes) {
    largest = larger_number(largest, part(c).largest);
  }
  largest = subgroup_reduce(largest, larger_number);
  float sum = 0.0f;
  for (unsigned c = 0; c < a.chunks; c += subgroup_lanes) {
    const softmax_part some = c == 0 ? first : part(c + lane);
    const bool is_there = c + lane < a.chunks;  // missing chunks add 0
    const std::uint32_t value = is_there ? fp32_bits(some.sum) : 0,
                        weight = is_there ? fp32_bits(nn::exp(some.largest - largest)) : 0;
    for (unsigned i = 0; i < subgroup_lanes && c + i < a.chunks; i += 8) {
      ROTOSCALE_UNROLL
      for (unsigned j = i; j < i + 8; ++j) {
        sum = nn::fma(fp32_from_bits(shuffle(value, j)), fp32_from_bits(shuffle(weight, j)), sum);
      }
    }
  }
  return {largest, sum};
}

/// Stores the gradients of the thread's exponentials. The target's element is stored again, so that others need no
/// comparison.
__device__ inline void store_gradients(const loss_args& a, const logits_chunk& at, unsigned target,
                                       const softmax_shared& shared) {
  const float factor = shared.factor;
  // A finite factor implies that no exponential is NaN or infinite.
  const bool numbers = (fp32_bits(factor) & fp32_magnitude_mask) < fp32_infinity_bits;
  ROTOSCALE_UNROLL
  for (unsigned slice = 0; slice < softmax_slices; ++slice) {
    if (slice >= at.slices()) break;
    float x[4][4];
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      const vec16 some = shared.e[logits_chunk::place(slice, j)];
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < 4; ++k) x[k][j] = fp32_from_bits(some.word[k]) * factor;
    }
    at.store(a, slice, x, numbers);
  }
  const unsigned place = target - at.chunk * static_cast<unsigned>(nn::softmax_chunk);
  const unsigned eighth = place / 4 % 8, step = place / 16 % 8;
  if (place < nn::softmax_chunk && place % softmax_slice / 128 * 8 + eighth == thread_index().x) {
    // By reference: AMD's compiler would put a copy with a dynamic index in scratch memory.
    const vec16& lane = shared.e[softmax_shared::place(place / 128, eighth, place % 4)];
    at.store_one(place, nn::fma(fp32_from_bits(lane.word[step / 2]), factor, -shared.scale));
  }
}

/// Stores zero loss and gradients for a masked row. A target outside the vocabulary sets `fault`.
__device__ inline void mask_chunk(const loss_args& a, const logits_chunk& at, std::int32_t given, bool gradients) {
  if (at.chunk == 0 && thread_index().x == 0) {
    a.loss[at.row] = 0.0f;
    const bool asked = given == nn::ignored_target;
    if (!asked && a.fault != nullptr) atomic_max(a.fault, static_cast<std::uint32_t>(a.first + at.row + 1));
  }
  if (!gradients) return;
  const float zeros[4][4] = {};
  for (unsigned slice = 0; slice < at.slices(); ++slice) at.store(a, slice, zeros, true);
}

/// Loads the row's target, by one thread while the block's logits are in flight.
__device__ inline void load_target(const loss_args& a, const logits_chunk& at, const std::int32_t* targets,
                                   softmax_shared& shared) {
  shared.given = targets[a.first + at.row];
  const std::int32_t target = a.checked(shared.given);
  // FP32 gradients overwrite the logits only after every record of the row is written. This block writes its record
  // after a later barrier, so it reads the logit in time without a fence.
  if (at.chunk + 1 == a.chunks && target != nn::ignored_target) shared.z_target = a.logits[at.row * a.stride + target];
}

/// One subgroup sums the block's exponentials, publishes the record and computes the chunk's factor. For the last chunk
/// of a row it also stores the loss.
__device__ inline void finish_chunk(const loss_args& a, const logits_chunk& at, float largest, bool again,
                                    bool gradients, softmax_shared& shared) {
  softmax_part* const to = a.parts != nullptr ? a.parts + at.row * a.chunks + at.chunk : nullptr;
  const bool is_writer = thread_index().x % subgroup_lanes == 0, has_loss = !again && at.chunk + 1 == a.chunks;
  softmax_part own;
  if (again) {
    own = wait_for_part(to);
  } else {
    own = {largest, sum_exponentials(at, shared)};
    if (is_writer && to != nullptr) write_part(to, own);
  }
  if (!gradients && !has_loss) return;
  const softmax_part row = combine_parts(a, at, own);
  if (!is_writer) return;
  if (has_loss) a.loss[at.row] = nn::log(row.sum) - (shared.z_target - row.largest);
  shared.factor = nn::exp(largest - row.largest) * (shared.scale / row.sum);
}

/// Computes losses, and gradients in place of the logits or as BF16. Grid: one block per ticket of `order`.
[[maybe_unused]] static __global__ void __launch_bounds__(softmax_threads, softmax_blocks)
    softmax_kernel(const ROTOSCALE_GRID_CONSTANT loss_args a, const ROTOSCALE_GRID_CONSTANT softmax_order order) {
  auto& shared = block_shared<softmax_shared>();
  const unsigned t = thread_index().x;
  const std::int32_t* targets = nullptr;
  if (a.gradients && order.passes == 1) prefetch_logits(a);
  if (t == 0) {
    targets = a.targets.now(*a.state);
    shared.scale = a.state->gradient_scale;
    shared.item = order.find(a.tickets != nullptr ? atomic_add(a.tickets, 1) + 1 : block_index().x);
  }
  block_barrier();
  const softmax_item item = shared.item;
  if (!item.is_there) return;
  const logits_chunk at(a, item.row, item.chunk);
  at.stage(a.vectors, shared);
  if (t == 0) load_target(a, at, targets, shared);
  wait_for_copies();
  const float largest = largest_logit(at, shared);
  const bool gradients = a.gradients && (item.again || order.passes == 1);
  const std::int32_t target = a.checked(shared.given);
  if (target == nn::ignored_target) return mask_chunk(a, at, shared.given, gradients);
  exponentiate(at, shared, nn::softmax_shift(largest));
  block_barrier();
  if (t < subgroup_lanes) finish_chunk(a, at, largest, item.again, gradients, shared);
  if (!gradients) return;
  block_barrier();
  store_gradients(a, at, static_cast<unsigned>(target), shared);
}

}  // namespace rotoscale::gpu
