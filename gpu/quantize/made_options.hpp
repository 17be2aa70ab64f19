// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Options of a block quantizer that the device makes: random words and signs of a step, and NVFP4's encode factor.
// Each thread block makes them for itself, so no launch comes before the quantizer but that which measures amax.
#pragma once

#include "gpu/api/quantize.hpp"
#include "gpu/dialect/lanes.hpp"
#include "gpu/quantize/block.hpp"

namespace rotoscale::gpu {

/// Options of one orientation.
struct made_options {
  block_options options;
  fast_rule fast;
  nn::form_draws draws;  ///< with a state, they replace random words and signs of `options`
  const nn::step_state* state = nullptr;
  std::uint32_t* amax = nullptr;  ///< not null: amax_words words, which decide the encode factor
  float* factor = nullptr;        ///< set to the inverse encode factor, if `amax` is not null
};

/// Shared memory of block_options, which have no trivial constructor.
struct options_memory {
  alignas(block_options) unsigned char bytes[sizeof(block_options)];
  __device__ block_options& get() { return *reinterpret_cast<block_options*>(bytes); }
  __device__ const block_options& get() const { return *reinterpret_cast<const block_options*>(bytes); }
};

/// Maximum of `x` over the thread block, in thread 0. All threads call it.
__device__ inline std::uint32_t block_max(std::uint32_t x) {
  struct maxima {
    std::uint32_t of[32];
  };
  maxima& shared = block_shared<maxima>();
  const unsigned t = thread_index().x;
  x = subgroup_max(x);
  block_barrier();  // all threads have left an earlier call
  if (t % subgroup_lanes == 0) shared.of[t / subgroup_lanes] = x;
  block_barrier();
  for (unsigned i = 1; t == 0 && i < block_size().x / subgroup_lanes; ++i) x = shared.of[i] > x ? shared.of[i] : x;
  return x;
}

/// Writes a thread block's amax to its word. The first thread block zeroes all words past the grid, which has at most
/// amax_words thread blocks.
__device__ inline void store_amax(std::uint32_t* words, std::uint32_t amax) {
  amax = block_max(amax);
  const unsigned t = thread_index().x, block = block_index().x;
  if (t == 0) words[block] = amax;
  if (block != 0) return;
  for (unsigned i = grid_size().x + t; i < unsigned{amax_words}; i += block_size().x) words[i] = 0;
}

/// Makes the options in shared memory. One subgroup calls it; a barrier must follow. `amax`: from.amax, or null before
/// it is measured.
__device__ inline void make_options(const made_options& from, const block_format& f, const std::uint32_t* amax,
                                    block_options& to) {
  const unsigned lane = thread_index().x % subgroup_lanes;
  std::uint32_t most = 0;
  if (amax != nullptr) {
    ROTOSCALE_UNROLL_16
    for (unsigned i = 0; i < unsigned{amax_words} / subgroup_lanes; ++i) {
      const std::uint32_t word = amax[i * subgroup_lanes + lane];
      most = word > most ? word : most;
    }
    most = subgroup_max(most);
  }
  if (lane != 0) return;
  block_options o = from.options;
  if (from.state != nullptr) {
    o.random = from.draws.words(*from.state);
    for (int i = 0; i < nn::sign_words; ++i) o.rotation.signs[i] = from.draws.mask(*from.state, i);
  }
  if (amax != nullptr) {
    o.encode_factor = tensor_encode_factor(fp32_from_bits(most), f.element, f.scale, o.choice);
    if (from.factor != nullptr && block_index().x == 0) *from.factor = 1.0f / o.encode_factor;
  }
  to = o;
}
static_assert(amax_words % subgroup_lanes == 0, "a lane reads as many words as the others");

}  // namespace rotoscale::gpu
