// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers whose result quantizer kernels compute in place of loading a source: SwiGLU, its gradient, a norm.
#pragma once

#include "gpu/nn/elementwise.hpp"
#include "gpu/nn/norm.hpp"

namespace rotoscale::gpu {

// A producer computes a vec8 of each of its `outputs` from the vec8s of its `inputs` at the same position. Outputs have
// equal extents. make(row, columns, x) replaces x[0 .. outputs). `columns` holds data of the thread's eight columns,
// loaded once per tile.

struct nothing_of_columns {};

/// h = silu(gate) * up.
template <class T>
struct swiglu_producer {
  using storage = T;
  using columns = nothing_of_columns;
  static constexpr unsigned inputs = 2, outputs = 1;
  row_span<const T> in[inputs];  ///< gate, up

  __device__ columns load_columns(unsigned, unsigned, bool) const { return {}; }
  __device__ void make(unsigned, const columns&, stored_vec8<T> (&x)[inputs]) const { swiglu_vec8(x[0], x[1]); }
};

/// The gradients of gate and up.
template <class T>
struct swiglu_gradient_producer {
  using storage = T;
  using columns = nothing_of_columns;
  static constexpr unsigned inputs = 3, outputs = 2;
  row_span<const T> in[inputs];  ///< gate, up, dh

  __device__ columns load_columns(unsigned, unsigned, bool) const { return {}; }
  __device__ void make(unsigned, const columns&, stored_vec8<T> (&x)[inputs]) const {
    swiglu_gradients(x[2], x[0], x[1]);
  }
};

/// The norm of x, from rstd.
template <class T>
struct norm_producer {
  using storage = T;
  struct columns {
    float gain[vec8_elements];
  };
  static constexpr unsigned inputs = 1, outputs = 1;
  row_span<const T> in[inputs];  ///< x
  const float *gain = nullptr, *rstd = nullptr;

  __device__ columns load_columns(unsigned col, unsigned count, bool vectors) const {
    columns c;
    load_floats(gain + col, count, vectors, c.gain);
    return c;
  }
  __device__ void make(unsigned row, const columns& c, stored_vec8<T> (&x)[inputs]) const {
    norm_vec8(x[0], rstd[row], c.gain);
  }
};

/// A producer and the optional unquantized copies of its outputs.
template <class Producer>
struct produced_rows {
  Producer producer;
  row_span<typename Producer::storage> written[Producer::outputs];  ///< unquantized copy, or null
  bool vectors = false;                                             ///< all rows are aligned to 16 bytes
};

}  // namespace rotoscale::gpu
