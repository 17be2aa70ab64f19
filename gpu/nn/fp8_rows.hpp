// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers whose result is cast to FP8 in the same kernel. A producer computes each thread's share of the FP8 cast
// kernel. Both orientations come from the same share, so the layer's inputs are read once.
#pragma once

#include "gpu/nn/row_producers.hpp"
#include "gpu/quantize/fp8_tile.hpp"

namespace rotoscale::gpu {

template <class Producer>
struct fp8_rows_args : produced_rows<Producer> {
  unsigned rows = 0, columns = 0;  ///< of each output
  unsigned tiles_across = 0;
  bool whole_vectors = false;  ///< `vectors`, and rows of the codes are aligned too
  fp8_cast cast;
  fp8_output out[Producer::outputs];
};

template <class Producer>
inline constexpr unsigned fp8_rows_blocks_per_processor = sizeof(typename Producer::storage) == 2 && !bounds_count_waves
                                                              ? 2
                                                              : 1;  // limited by registers

/// Computes the thread's share of each output; zero outside the matrix.
template <class Producer, class T = typename Producer::storage>
__device__ inline void make_shares(const fp8_rows_args<Producer>& a, const fp8_place& at,
                                   fp8_share<T> (&shares)[Producer::outputs]) {
  ROTOSCALE_UNROLL
  for (unsigned side = 0; side < 2; ++side) {
    const unsigned column = at.column + 64 * side, left = column < at.columns ? at.columns - column : 0;
    const unsigned count = left < vec8_elements ? left : vec8_elements;
    const auto columns = a.producer.load_columns(column, count, at.whole);
    stored_vec8<T> x[4][Producer::inputs];
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < 4; ++r) {
      const bool any = at.whole || (at.row + r < at.rows && count != 0);
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < Producer::inputs; ++k) {
        x[r][k] = {};
        if (any) x[r][k].load(a.producer.in[k][at.row + r] + column, count, at.whole);
      }
    }
    ROTOSCALE_UNROLL
    for (unsigned r = 0; r < 4; ++r) {
      const bool any = at.whole || (at.row + r < at.rows && count != 0);
      if (any) a.producer.make(at.row + r, columns, x[r]);
      ROTOSCALE_UNROLL
      for (unsigned o = 0; o < Producer::outputs; ++o) {
        if (any && a.written[o].data != nullptr) {
          x[r][o].store(a.written[o][at.row + r] + column, count, at.whole);
        }
        ROTOSCALE_UNROLL
        for (unsigned w = 0; w < fp8_share<T>::words; ++w) shares[o].word[side][r][w] = x[r][o].vec[w / 4].word[w % 4];
      }
    }
  }
}

/// One block per tile of every output.
template <class Producer, class Element>
__global__ void __launch_bounds__(fp8_threads, fp8_rows_blocks_per_processor<Producer>)
    fp8_rows_kernel(const ROTOSCALE_GRID_CONSTANT fp8_rows_args<Producer> a) {
  const fp8_place at = fp8_place_of_thread(a.tiles_across, a.rows, a.columns, a.whole_vectors);
  const float scale = a.cast.scale == nullptr ? 1.0f : *a.cast.scale;
  store_factor(a.out[0]);
  fp8_share<typename Producer::storage> shares[Producer::outputs];
  make_shares(a, at, shares);
  auto& stage = block_shared<fp8_stage>();
  std::uint32_t amax = 0;
  ROTOSCALE_UNROLL
  for (unsigned o = 0; o < Producer::outputs; ++o) {
    const auto element = [&](unsigned side, unsigned r, unsigned c) { return shares[o].picked(side, r, c); };
    fp8_codes_of_share codes;
    const std::uint32_t own = encode_share<Element::format, false>(a.cast, shares[o], scale, at, element, codes);
    amax = own > amax ? own : amax;
    if (a.out[o].rows != nullptr) store_fp8_rows(a.out[o], codes, at);
    if (a.out[o].columns == nullptr) continue;
    if (o != 0) block_barrier();  // the previous output's columns have left `stage`
    store_fp8_columns(a.out[o], codes, stage, at, a.whole_vectors);
  }
  if (a.out[0].amax != nullptr) raise_amax(a.out[0].amax, amax);
}

}  // namespace rotoscale::gpu
