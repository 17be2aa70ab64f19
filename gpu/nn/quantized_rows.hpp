// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers whose result becomes operands without a way through memory: the block quantizer's kernel with a tile that is
// computed, not copied. Both orientations come from the one tile, so the layer's inputs are read once.
#pragma once

#include "gpu/nn/elementwise.hpp"
#include "gpu/nn/norm.hpp"
#include "gpu/quantize/tile.hpp"

namespace rotoscale::gpu {

// A producer computes a vec8 of each of `outputs` matrices of one size at the same position: load(), then make().

/// h = silu(gate) * up.
template <class T>
struct swiglu_producer {
  using storage = T;
  static constexpr unsigned inputs = 2, outputs = 1;
  row_span<const T> in[inputs];  ///< gate, up

  __device__ void load(index_t r, unsigned col, unsigned count, bool vectors, stored_vec8<T> (&x)[inputs]) const {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < inputs; ++i) x[i].load(in[i][r] + col, count, vectors);
  }
  /// The first `outputs` of x become the results.
  __device__ void make(index_t, unsigned, unsigned, bool, stored_vec8<T> (&x)[inputs]) const {
    combine_vec8(x[0], x[1], [](float gate, float up) { return nn::swiglu(gate, up); });
  }
};

/// The gradients of gate and up.
template <class T>
struct swiglu_gradient_producer {
  using storage = T;
  static constexpr unsigned inputs = 3, outputs = 2;
  row_span<const T> in[inputs];  ///< gate, up, dh

  __device__ void load(index_t r, unsigned col, unsigned count, bool vectors, stored_vec8<T> (&x)[inputs]) const {
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < inputs; ++i) x[i].load(in[i][r] + col, count, vectors);
  }
  __device__ void make(index_t, unsigned, unsigned, bool, stored_vec8<T> (&x)[inputs]) const {
    swiglu_gradients(x[2], x[0], x[1]);
  }
};

/// The norm of x, whose rstd is known.
template <class T>
struct norm_producer {
  using storage = T;
  static constexpr unsigned inputs = 1, outputs = 1;
  row_span<const T> x;
  const float *gain = nullptr, *rstd = nullptr;

  __device__ void load(index_t r, unsigned col, unsigned count, bool vectors, stored_vec8<T> (&to)[inputs]) const {
    to[0].load(x[r] + col, count, vectors);
  }
  __device__ void make(index_t r, unsigned col, unsigned count, bool vectors, stored_vec8<T> (&to)[inputs]) const {
    norm_vec8(to[0], rstd[r], gain + col, count, vectors);
  }
};

template <class Producer>
struct quantized_rows_args {
  Producer producer;
  row_span<typename Producer::storage> written[Producer::outputs];  ///< where what was made goes as well, or nowhere
  bool vectors = false;                                             ///< of all rows that are read or written
  quantize_kernel_args quantized[Producer::outputs];                ///< without a source
};

/// Tiles of what a producer makes, one behind the other, then the columns' codes.
template <class Producer, class Element>
inline constexpr std::size_t rows_shared_bytes =
    Producer::outputs* tile_rows<typename Producer::storage>* tile_columns * sizeof(typename Producer::storage) +
    code_stage<typename Producer::storage, Element::format>::size;
/// As many blocks as the registers of the quantizer allow, unless shared memory holds fewer.
template <class Producer, class Element>
inline constexpr unsigned rows_blocks_per_processor = Producer::outputs == 2 ? 2 : 3;

/// Computes a tile of each output, as far as the matrix reaches; a thread loads for several rows before it computes.
template <class Producer>
__device__ inline void make_tile(const quantized_rows_args<Producer>& a, const tile_origin& at, unsigned char* tiles) {
  using T = typename Producer::storage;
  constexpr unsigned across = tile_columns / vec8_elements, rows_at_once = tile_threads / across;
  constexpr unsigned tile_bytes = tile_rows<T> * tile_columns * sizeof(T), batch = 8 / sizeof(T);
  static_assert(tile_rows<T> % (batch * rows_at_once) == 0);
  const quantize_kernel_args& q = a.quantized[0];
  const unsigned p = thread_index().x % across, col = at.column + p * vec8_elements;
  if (col >= q.columns) return;
  const unsigned left = q.columns - col, count = left < vec8_elements ? left : vec8_elements;
  ROTOSCALE_KEEP_LOOP
  for (unsigned first = thread_index().x / across; first < tile_rows<T>; first += batch * rows_at_once) {
    stored_vec8<T> x[batch][Producer::inputs];
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < batch; ++i) {
      const unsigned row = at.row + first + i * rows_at_once;
      if (row < q.rows) a.producer.load(row, col, count, a.vectors, x[i]);
    }
    ROTOSCALE_UNROLL
    for (unsigned i = 0; i < batch; ++i) {
      const unsigned r = first + i * rows_at_once, row = at.row + r;
      if (row >= q.rows) continue;
      a.producer.make(row, col, count, a.vectors, x[i]);
      ROTOSCALE_UNROLL
      for (unsigned o = 0; o < Producer::outputs; ++o) {
        if (a.written[o].data != nullptr) x[i][o].store(a.written[o][row] + col, count, a.vectors);
        const tile_view<T> tile{tiles + o * tile_bytes};
        constexpr unsigned vecs = stored_vec8<T>::vecs;
        ROTOSCALE_UNROLL
        for (unsigned v = 0; v < vecs; ++v) *tile.vec(r, p * vecs + v) = x[i][o].vec[v];
      }
    }
  }
}

/// Tiles along rows first; block b takes tiles b, b + blocks, ...
template <class Producer, class Element, quantize_path Path>
__global__ void __launch_bounds__(tile_threads, (rows_blocks_per_processor<Producer, Element>))
    quantized_rows_kernel(const ROTOSCALE_GRID_CONSTANT quantized_rows_args<Producer> a) {
  using T = typename Producer::storage;
  constexpr unsigned tile_bytes = tile_rows<T> * tile_columns * sizeof(T);
  auto* shared = dynamic_shared<unsigned char>();
  const code_stage<T, Element::format> stage{shared + Producer::outputs * tile_bytes};
  ROTOSCALE_KEEP_LOOP
  for (std::uint32_t i = block_index().x; i < a.quantized[0].tiles; i += grid_size().x) {
    const unsigned across = a.quantized[0].tiles_across;
    const tile_origin at = make_origin<T>(a.quantized[0], i / across, i % across);
    make_tile(a, at, shared);
    ROTOSCALE_KEEP_LOOP
    for (unsigned o = 0; o < Producer::outputs; ++o) {
      block_barrier();  // the tiles are whole, and the columns before have left
      const quantize_kernel_args& q = a.quantized[o];
      quantize_tile<T, Element::format, Path>(q, tile_view<T>{shared + o * tile_bytes}, stage, at,
                                              q.column.codes != nullptr, q.row.codes != nullptr);
    }
    block_barrier();  // nobody reads these tiles any more
  }
}

}  // namespace rotoscale::gpu
