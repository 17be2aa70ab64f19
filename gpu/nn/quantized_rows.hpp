// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers whose result is quantized to blocks in the same kernel. A producer computes the tiles of the block quantizer.
// Both orientations come from the same tile, so the layer's inputs are read once.
#pragma once

#include "gpu/dialect/async_copy.hpp"
#include "gpu/nn/row_producers.hpp"
#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu {

template <class Producer>
struct quantized_rows_args : produced_rows<Producer> {
  quantize_kernel_args quantized[Producer::outputs];  ///< without a source
};

/// Shared memory in bytes: one tile per output, then the codes of the columns.
template <class Producer, class Element>
inline constexpr std::size_t rows_shared_bytes =
    Producer::outputs* tile_rows<typename Producer::storage>* tile_columns * sizeof(typename Producer::storage) +
    code_stage<typename Producer::storage, Element::format>::size;
/// Blocks per SM, limited by the quantizer's registers or by shared memory. An SM has 228 KiB, of which a block takes
/// 1 KiB more than it requests.
template <class Producer, class Element>
inline constexpr unsigned rows_blocks_per_processor = bounds_count_waves ? 4 - Producer::outputs
                                                      : 3 * (rows_shared_bytes<Producer, Element> + 1024) <= 228 * 1024
                                                          ? 3
                                                          : 2;

/// Computes the part of each output's tile that is inside the matrix. A thread loads several rows before it computes.
/// Whole: the tile is inside the matrix and its rows are aligned, so no check is needed.
template <bool Whole, class Producer>
__device__ inline void make_tile(const quantized_rows_args<Producer>& a, const tile_origin& at, unsigned char* tiles) {
  using T = typename Producer::storage;
  constexpr unsigned across = tile_columns / vec8_elements, rows_at_once = tile_threads / across;
  constexpr unsigned tile_bytes = tile_rows<T> * tile_columns * sizeof(T), vecs = stored_vec8<T>::vecs;
  constexpr unsigned batch = (Producer::outputs == 1 ? 8 : 4) / sizeof(T);
  static_assert(tile_rows<T> % (batch * rows_at_once) == 0);
  const unsigned p = thread_index().x % across, col = at.column + p * vec8_elements, r0 = thread_index().x / across;
  unsigned rows = tile_rows<T>, count = vec8_elements;
  if constexpr (!Whole) {  // padding of scales may have extra tiles
    const quantize_kernel_args& q = a.quantized[0];
    if (col >= q.columns || at.row >= q.rows) return;
    const unsigned left = q.columns - col;
    rows = q.rows - at.row;
    count = left < vec8_elements ? left : vec8_elements;
  }
  const bool vectors = Whole || a.vectors;
  const auto columns = a.producer.load_columns(col, count, vectors);
  index_t from[Producer::inputs];  // offsets: with pointers, clang loses the global address space
  ROTOSCALE_UNROLL
  for (unsigned k = 0; k < Producer::inputs; ++k) from[k] = (at.row + r0) * a.producer.in[k].stride + col;
  ROTOSCALE_KEEP_LOOP
  for (unsigned first = r0; first < tile_rows<T> && first < rows; first += batch * rows_at_once) {
    stored_vec8<T> x[batch][Producer::inputs];
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < batch; ++i) {
      ROTOSCALE_UNROLL
      for (unsigned k = 0; k < Producer::inputs; ++k) {
        if (Whole || first + i * rows_at_once < rows) x[i][k].load(a.producer.in[k].data + from[k], count, vectors);
        from[k] += rows_at_once * a.producer.in[k].stride;
      }
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < batch; ++i) {
      const unsigned r = first + i * rows_at_once, row = at.row + r;
      if (!Whole && r >= rows) continue;
      a.producer.make(row, columns, x[i]);
      ROTOSCALE_UNROLL
      for (unsigned o = 0; o < Producer::outputs; ++o) {
        if (a.written[o].data != nullptr) x[i][o].store(a.written[o][row] + col, count, vectors);
        const tile_view<T> tile{tiles + o * tile_bytes};
        ROTOSCALE_UNROLL
        for (unsigned v = 0; v < vecs; ++v) *tile.vec(r, p * vecs + v) = x[i][o].vec[v];
      }
    }
  }
}

/// Prefetches the inputs of a tile into L2.
template <class Producer>
__device__ inline void prefetch_tile(const quantized_rows_args<Producer>& a, const tile_origin& at) {
  using T = typename Producer::storage;
  constexpr unsigned line = 128 / sizeof(T), across = tile_columns / line;
  const quantize_kernel_args& q = a.quantized[0];
  ROTOSCALE_UNROLL
  for (unsigned i = 0; i < tile_rows<T> * across; i += tile_threads) {
    const unsigned p = i + thread_index().x, row = at.row + p / across, col = at.column + p % across * line;
    if (row >= q.rows || col >= q.columns) continue;
    ROTOSCALE_UNROLL
    for (unsigned k = 0; k < Producer::inputs; ++k) prefetch(a.producer.in[k][row] + col);
  }
}

/// Block b takes tiles b, b + blocks, ... in the order of origin_of.
template <class Producer, class Element, quantize_path Path>
__global__ void __launch_bounds__(tile_threads, (rows_blocks_per_processor<Producer, Element>))
    quantized_rows_kernel(const ROTOSCALE_GRID_CONSTANT quantized_rows_args<Producer> a) {
  using T = typename Producer::storage;
  constexpr unsigned tile_bytes = tile_rows<T> * tile_columns * sizeof(T);
  auto* shared = dynamic_shared<unsigned char>();
  const code_stage<T, Element::format> stage{shared + Producer::outputs * tile_bytes};
  if constexpr (Path == quantize_path::general) make_general_options(a.quantized[0]);
  ROTOSCALE_KEEP_LOOP
  for (std::uint32_t i = block_index().x; i < a.quantized[0].tiles; i += grid_size().x) {
    const tile_origin at = origin_of<T>(a.quantized[0], i);
    if (at.whole && a.vectors) {
      make_tile<true>(a, at, shared);
    } else {
      make_tile<false>(a, at, shared);
    }
    ROTOSCALE_KEEP_LOOP
    for (unsigned o = 0; o < Producer::outputs; ++o) {
      block_barrier();  // tiles are complete, the previous columns stored
      const std::uint32_t next = i + grid_size().x;
      if (o + 1 == Producer::outputs && next < a.quantized[0].tiles) {
        prefetch_tile(a, origin_of<T>(a.quantized[0], next));
      }
      const quantize_kernel_args& q = a.quantized[o];
      quantize_tile<T, Element::format, Path>(q, tile_view<T>{shared + o * tile_bytes}, stage, at,
                                              q.column.codes != nullptr, q.row.codes != nullptr);
    }
    block_barrier();  // all reads of these tiles are complete
  }
}

}  // namespace rotoscale::gpu
