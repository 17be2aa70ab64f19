// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tree sum in FP64, by one block.
#pragma once

#include "gpu/dialect/hip.hpp"
#include "rotoscale/config.hpp"

namespace rotoscale::gpu {

inline constexpr unsigned tree_threads = 1024;

/// Returns the sum of n terms in the order of nn::cpu::tree_sum, to all threads. The grid has one block. `room` has n
/// elements and may alias the terms; it is overwritten if n is above tree_threads.
template <class Term>
__device__ inline double tree_sum(const Term* terms, double* room, index_t n) {
  const unsigned t = thread_index().x;
  index_t width = 1;
  while (width < n) width *= 2;
  const auto term = [&](index_t i) { return i < n ? static_cast<double>(terms[i]) : 0.0; };
  const bool fits = width <= tree_threads;
  // First levels: room[i] becomes the sum of terms i, i + tree_threads, ..., folded by halves.
  for (index_t half = width / 2; !fits && half >= tree_threads; half /= 2) {
    for (index_t i = t; i < half; i += tree_threads) {
      room[i] = half == width / 2 ? term(i) + term(i + half) : room[i] + room[i + half];
    }
  }
  if (!fits) width = tree_threads;
  auto& shared = block_shared<double[tree_threads]>();
  shared[t] = fits ? term(t) : room[t];  // `room` past n belongs to others
  for (unsigned half = tree_threads / 2; half > 0; half /= 2) {
    block_barrier();
    if (t < half && half < width) shared[t] += shared[t + half];
  }
  block_barrier();
  return shared[0];
}

}  // namespace rotoscale::gpu
