// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers whose result quantizer kernels compute in place of loading a source: activations, their gradients, a norm.
#pragma once

#include "gpu/nn/elementwise.hpp"
#include "gpu/nn/norm.hpp"

namespace rotoscale::gpu {

// A producer computes a vec8 of each of its `outputs` from the vec8s of its `inputs` at the same position. Outputs have
// equal extents. make(row, columns, x) replaces x[0 .. outputs). `columns` holds data of the thread's eight columns,
// loaded once per tile.

struct nothing_of_columns {};

/// h of activation A.
template <class A, class T>
struct activation_producer {
  using storage = T;
  using columns = nothing_of_columns;
  static constexpr unsigned inputs = A::gated ? 2 : 1, outputs = 1;
  row_span<const T> in[inputs];  ///< x, up

  __device__ columns load_columns(unsigned, unsigned, bool) const { return {}; }
  __device__ void make(unsigned, const columns&, stored_vec8<T> (&x)[inputs]) const {
    activate<A>(x[0], x[inputs - 1]);
  }
};

/// The gradients of x and up.
template <class A, class T>
struct activation_gradient_producer {
  using storage = T;
  using columns = nothing_of_columns;
  static constexpr unsigned inputs = A::gated ? 3 : 2, outputs = inputs - 1;
  row_span<const T> in[inputs];  ///< x, up, dh

  __device__ columns load_columns(unsigned, unsigned, bool) const { return {}; }
  __device__ void make(unsigned, const columns&, stored_vec8<T> (&x)[inputs]) const {
    activation_gradients<A>(x[outputs], x[0], x[outputs - 1]);
  }
};

/// The norm of x, from mean and rstd.
template <norm_kind Kind, class T>
struct norm_producer {
  using storage = T;
  using columns = norm_columns<Kind>;
  static constexpr unsigned inputs = 1, outputs = 1;
  row_span<const T> in[inputs];  ///< x
  const float *gain = nullptr, *rstd = nullptr, *bias = nullptr, *mean = nullptr;

  __device__ columns load_columns(unsigned col, unsigned count, bool vectors) const {
    columns c;
    c.load(gain, bias, col, count, vectors);
    return c;
  }
  __device__ void make(unsigned row, const columns& c, stored_vec8<T> (&x)[inputs]) const {
    norm_vec8(x[0], Kind == norm_kind::layer ? mean[row] : 0.0f, rstd[row], c);
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
