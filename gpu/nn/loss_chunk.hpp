// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Parts of the cross-entropy kernel (loss.hpp): arguments, and the order in which blocks take chunks of 4096 logits. A
// block's work on its chunk is: load, maximum, exponentials in place, sum, store.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/dialect/math.hpp"
#include "gpu/nn/rows.hpp"
#include "rotoscale/nn/operation_arguments.hpp"

namespace rotoscale::gpu {

/// Record of a chunk of logits: maximum, and sum of exponentials.
struct alignas(8) softmax_part {
  float largest, sum;
};
/// Initial value of a record's words: a NaN, which a maximum never is.
inline constexpr std::uint32_t unwritten_part = 0xFFFFFFFFu;

struct loss_args {
  float* logits = nullptr;
  index_t stride = 0, rows = 0;
  unsigned vocabulary = 0, chunks = 0;
  nn::token_source targets;
  index_t first = 0;
  float* loss = nullptr;
  const nn::step_state* state = nullptr;
  std::uint32_t* fault = nullptr;
  std::uint32_t* tickets = nullptr;  ///< ticket counter, initially -1; null: rows of one chunk
  softmax_part* parts = nullptr;     ///< records, (rows, chunks)
  bool gradients = false, vectors = false;
  std::uint16_t* narrow = nullptr;  ///< BF16 gradients (rows, vocabulary); null: FP32 in place of the logits
  bool narrow_vectors = false;
  known_divisor by_chunks;

  /// Returns n, or nn::ignored_target if n is outside the vocabulary.
  __device__ std::int32_t checked(std::int32_t n) const {
    return n >= 0 && static_cast<unsigned>(n) < vocabulary ? n : nn::ignored_target;
  }
};

/// Threads of a block. 64 on NVIDIA: shared memory limits occupancy, and the final sum is serial in one warp. On
/// gfx942, 64 KiB of LDS hold three blocks, and 128 threads make six waves of them.
inline constexpr unsigned softmax_threads = bounds_count_waves ? 128 : 64;
/// Blocks per SM. Each block waits for its loads, for the serial sum, and for its row.
inline constexpr unsigned softmax_blocks = bounds_count_waves ? 1 : 13;
/// Blocks of a row wait for each other if there are at most this many, and the device holds four times as many. Several
/// losses may then run concurrently.
inline constexpr unsigned softmax_waiting_chunks = 64;
constexpr bool softmax_waits(unsigned chunks, int processors) {
  const unsigned room = softmax_blocks * static_cast<unsigned>(processors);
  return blocks_run_at_once && chunks <= softmax_waiting_chunks && 4 * chunks <= room;
}

/// Chunk of a ticket.
struct softmax_item {
  unsigned row, chunk;
  bool again, is_there;
};

/// Order in which blocks take chunks.
///
/// One pass: row by row. The blocks of a row wait for each other; tickets guarantee forward progress.
/// Two passes: sums first, then gradients, which recompute the exponentials. No block waits for one that has not begun.
///   Rows go in groups. The gradients of a group come `lag` groups after its sums: these are then usually complete, and
///   the logits are still in L2.
struct softmax_order {
  unsigned chunks = 1, rows = 0, passes = 1, group_rows = 1, groups = 0, lag = 0;

  ROTOSCALE_HD std::uint64_t tickets() const { return std::uint64_t{groups + lag} * passes * group_rows * chunks; }
  __device__ softmax_item find(std::uint32_t ticket) const {
    if (passes == 1) {
      const unsigned row = ticket / chunks;
      return {row, ticket - row * chunks, false, row < rows};
    }
    const unsigned of_step = 2 * group_rows * chunks, step = ticket / of_step, within = ticket % of_step;
    const bool again = within % 2 != 0;
    const unsigned row = (again ? step - lag : step) * group_rows + within / 2 / chunks;
    return {row, within / 2 % chunks, again, (again ? step >= lag : step < groups) && row < rows};
  }
};

/// A block's logits, later its exponentials, as vectors of four.
///
/// 32 vectors are eight steps of ordered_sum's 16 lanes. A thread owns four of them: the same four lanes in every
/// second step. It stores their exponentials transposed, so that the summing thread of a lane reads four steps at once.
/// `place` permutes the vectors to avoid bank conflicts in both.
struct softmax_shared {
  vec16 e[nn::softmax_chunk / 4];
  float maxima[softmax_threads / subgroup_lanes];
  softmax_item item;
  std::int32_t given;  ///< the row's target
  float z_target, scale, factor;

  /// Index of the k-th vector of eighth `eighth` of a group.
  __device__ static unsigned place(unsigned group, unsigned eighth, unsigned k) {
    return (32 * group + eighth) ^ (10 * k);
  }
};

/// Slices of a chunk; a thread has four vectors of each.
inline constexpr unsigned softmax_slices = nn::softmax_chunk / 16 / softmax_threads;
inline constexpr unsigned softmax_slice = nn::softmax_chunk / softmax_slices;  ///< elements
// sm_90: an SM has 228 KiB, and every block takes 1 KiB more than it requests.
static_assert(bounds_count_waves || softmax_blocks * (sizeof(softmax_shared) + 1024) <= 228 * 1024);
static_assert(64 * 1024 / sizeof(softmax_shared) == 3);

/// Chunk of a block.
struct logits_chunk {
  index_t row;
  unsigned chunk, count;
  float* logits;
  std::uint16_t* narrow;

  __device__ logits_chunk(const loss_args& a, index_t r, unsigned c) : row(r), chunk(c) {
    const unsigned at = chunk * nn::softmax_chunk, left = a.vocabulary - at;
    count = left < nn::softmax_chunk ? left : static_cast<unsigned>(nn::softmax_chunk);
    logits = a.logits + row * a.stride + at;
    narrow = a.narrow != nullptr ? a.narrow + row * static_cast<index_t>(a.vocabulary) + at : nullptr;
  }
  __device__ bool is_whole() const { return count == nn::softmax_chunk; }
  /// Number of slices with elements.
  __device__ unsigned slices() const { return (count + softmax_slice - 1) / softmax_slice; }
  /// Index in shared memory of the thread's k-th vector of a slice.
  __device__ static unsigned place(unsigned slice, unsigned k) {
    const unsigned t = thread_index().x;
    return slice * (softmax_slice / 4) + softmax_shared::place(t / 8, t % 8, k);
  }
  /// Column of that vector's first element, in the chunk.
  __device__ static unsigned column(unsigned slice, unsigned k) {
    const unsigned t = thread_index().x;
    return slice * softmax_slice + 128 * (t / 8) + 4 * (t % 8) + 32 * k;
  }
  /// Calls body(slice, k) for each vector of the thread.
  template <class Body>
  __device__ void for_each_vector(const Body& body) const {
    ROTOSCALE_UNROLL
    for (unsigned slice = 0; slice < softmax_slices; ++slice) {
      if (slice >= slices()) break;
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < 4; ++k) body(slice, k);
    }
  }

  /// Loads the thread's logits, -Inf outside the chunk. They are there after wait_for_copies.
  __device__ void stage(bool vectors, softmax_shared& shared) const;
  /// Stores the thread's gradients of a slice. `numbers`: none is NaN.
  __device__ void store(const loss_args& a, unsigned slice, const float (&x)[4][4], bool numbers) const {
    if (narrow != nullptr && is_whole() && a.narrow_vectors && numbers) {
      std::uint16_t* const to = narrow + column(slice, 0);
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < 4; ++k)
        store_streaming8(to + 32 * k, bf16_pair(x[k][0], x[k][1]), bf16_pair(x[k][2], x[k][3]));
    } else if (narrow == nullptr && is_whole() && a.vectors) {
      float* const to = logits + column(slice, 0);
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < 4; ++k) {
        store_streaming(to + 32 * k,
                        {{fp32_bits(x[k][0]), fp32_bits(x[k][1]), fp32_bits(x[k][2]), fp32_bits(x[k][3])}});
      }
    } else {
      ROTOSCALE_UNROLL
      for (unsigned i = 0; i < 16; ++i) {
        const unsigned col = column(slice, i / 4) + i % 4;
        if (col < count) store_one(col, x[i / 4][i % 4]);
      }
    }
  }
  /// Stores the gradient of one element.
  __device__ void store_one(unsigned col, float x) const {
    if (narrow != nullptr) {
      narrow[col] = static_cast<std::uint16_t>(canonical_bf16(x));
    } else {
      logits[col] = x;
    }
  }
};

inline constexpr float minus_infinity = fp32_from_bits(fp32_infinity_bits | fp32_sign_mask);

__device__ inline void logits_chunk::stage(bool vectors, softmax_shared& shared) const {
  if (vectors && is_whole()) {
    const float* const from = logits + column(0, 0);
    for_each_vector([&](unsigned slice, unsigned k) {
      copy_async(shared.e + place(slice, k), from + slice * softmax_slice + 32 * k);
    });
    return;
  }
  for_each_vector([&](unsigned slice, unsigned k) {
    const unsigned col = column(slice, k);
    vec16& to = shared.e[place(slice, k)];
    if (vectors && col + 4 <= count) {
      copy_async(&to, logits + col);
    } else {
      vec16 some;
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < 4; ++j) some.word[j] = fp32_bits(col + j < count ? logits[col + j] : minus_infinity);
      to = some;
    }
  });
}

/// Prefetches the chunk of ticket block_index() into L2. The block usually draws another ticket, whose chunk a
/// neighbouring block prefetched.
__device__ inline void prefetch_logits(const loss_args& a) {
  const auto [row, chunk] = divide(block_index().x, a.by_chunks);
  const unsigned begin = chunk * nn::softmax_chunk;
  ROTOSCALE_UNROLL
  for (unsigned within = 0; within < nn::softmax_chunk; within += 32 * softmax_threads) {
    const unsigned column = begin + within + 32 * thread_index().x;
    if (column < a.vocabulary) prefetch(a.logits + row * a.stride + column);
  }
}

/// Returns the block's maximum, NaN ignored.
__device__ inline float largest_logit(const logits_chunk& at, softmax_shared& shared) {
  float largest = minus_infinity;
  at.for_each_vector([&](unsigned slice, unsigned k) {
    const vec16 some = shared.e[logits_chunk::place(slice, k)];
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) largest = larger_number(largest, fp32_from_bits(some.word[j]));
  });
  largest = subgroup_reduce(largest, larger_number);
  if (thread_index().x % subgroup_lanes == 0) shared.maxima[thread_index().x / subgroup_lanes] = largest;
  block_barrier();
  ROTOSCALE_UNROLL
  for (const float other : shared.maxima) largest = larger_number(largest, other);
  return largest;
}

/// Replaces the thread's logits by their exponentials.
__device__ inline void exponentiate(const logits_chunk& at, softmax_shared& shared, float shift) {
  ROTOSCALE_KEEP_LOOP
  for (unsigned slice = 0; slice < at.slices(); ++slice) {
    float below[16];  // maximum minus logit, or NaN
    std::uint32_t most = 0;
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const vec16 some = shared.e[logits_chunk::place(slice, k)];
      ROTOSCALE_UNROLL
      for (unsigned j = 0; j < 4; ++j) below[4 * j + k] = shift - fp32_from_bits(some.word[j]);
    }
    ROTOSCALE_UNROLL
    for (const float x : below) most = fp32_bits(x) > most ? fp32_bits(x) : most;  // a NaN is largest
    if (most <= fp32_bits(87.33f)) {  // the usual case: fewer operations, same bits
      ROTOSCALE_UNROLL
      for (float& x : below) x = nn::exp_normal(-x);
    } else {
      ROTOSCALE_UNROLL
      for (float& x : below) x = nn::exp_of_difference(-x);
    }
    ROTOSCALE_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      const float* const x = below + 4 * j;
      shared.e[logits_chunk::place(slice, j)] = {{fp32_bits(x[0]), fp32_bits(x[1]), fp32_bits(x[2]), fp32_bits(x[3])}};
    }
  }
}

/// Returns nn::ordered_sum of the chunk's exponentials, by one subgroup. Elements outside the chunk add 0.
__device__ inline float sum_exponentials(const logits_chunk& at, const softmax_shared& shared) {
  const unsigned lane = thread_index().x % 16, groups = at.slices() * (softmax_slice / 128);
  const vec16* const even = shared.e + softmax_shared::place(0, lane / 4, lane % 4);
  const vec16* const odd = shared.e + softmax_shared::place(0, lane / 4 + 4, lane % 4);
  float sum = 0.0f;
  vec16 next[2] = {even[0], odd[0]};
  const auto add = [&](unsigned behind) {
    const vec16 now[2] = {next[0], next[1]};
    next[0] = even[32 * behind];  // prefetch
    next[1] = odd[32 * behind];
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < 8; ++i) sum += fp32_from_bits(now[i % 2].word[i / 2]);
  };
  static_assert(softmax_slice / 128 % 4 == 0);
  ROTOSCALE_KEEP_LOOP
  for (unsigned group = 0; group < groups; group += 4) {
    ROTOSCALE_UNROLL
    for (unsigned i = 1; i < 4; ++i) add(group + i);
    add(group + 4 < groups ? group + 4 : 0);
  }
  return subgroup_sum<nn::sum_lanes>(sum);
}

}  // namespace rotoscale::gpu
