// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checks a layer's arguments and makes its producer. The caller launches the kernel: launch(produced rows, m, n) for m
// × n elements of each output.
#pragma once

#include "gpu/nn/check.hpp"
#include "gpu/nn/row_producers.hpp"

namespace rotoscale::gpu::detail {

/// For producers without a prologue.
inline status no_prologue() { return {}; }

inline bool has_vectors_or_nothing(const nn::const_tensor_view& x) { return x.data == nullptr || has_vectors(x); }

/// `h`: where the unquantized result is written too, or empty.
template <class Launch>
status produce_swiglu(const nn::const_tensor_view& gate_up, const nn::tensor_view& h, const Launch& launch) {
  if (status c = check_rows(gate_up, 2, "gate_up"); !c.ok()) return c;
  if (gate_up.extent(1) % 2 != 0) return {error_code::bad_extent, "gate_up", "must have a gate and an up"};
  const auto gate = half_of(gate_up, 0), up = half_of(gate_up, 1);
  if (h.data != nullptr) {
    if (status c = check_like(h, gate, "h"); !c.ok()) return c;
  }
  const index_t m = gate.extent(0), n = gate.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(gate_up.type, [&](auto t) {
    using T = decltype(t);
    produced_rows<swiglu_producer<T>> a;
    a.producer = {{span_of<T>(gate), span_of<T>(up)}};
    if (h.data != nullptr) a.written[0] = span_of<T>(h);
    a.vectors = n % vec8_elements == 0 && has_vectors(gate) && has_vectors(up) && has_vectors_or_nothing(h);
    return launch(a, m, n);
  });
}

/// Both gradients, n columns each.
template <class Launch>
status produce_swiglu_gradients(const nn::const_tensor_view& dh, const nn::const_tensor_view& gate_up,
                                const nn::tensor_view& d_gate_up, const Launch& launch) {
  if (status c = check_rows(dh, 2, "dh"); !c.ok()) return c;
  if (status c = check_gate_up(gate_up, dh, "gate_up"); !c.ok()) return c;
  if (d_gate_up.data != nullptr) {
    if (status c = check_gate_up(d_gate_up, dh, "d_gate_up"); !c.ok()) return c;
  }
  const index_t m = dh.extent(0), n = dh.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(dh.type, [&](auto t) {
    using T = decltype(t);
    const auto gate = half_of(gate_up, 0), up = half_of(gate_up, 1);
    produced_rows<swiglu_gradient_producer<T>> a;
    a.producer = {{span_of<T>(gate), span_of<T>(up), span_of<T>(dh)}};
    a.vectors = n % vec8_elements == 0 && has_vectors(dh) && has_vectors(gate) && has_vectors(up);
    for (index_t half = 0; half < 2 && d_gate_up.data != nullptr; ++half) {
      const auto to = half_of(d_gate_up, half);
      a.written[half] = span_of<T>(to);
      a.vectors = a.vectors && has_vectors(to);
    }
    return launch(a, m, n);
  });
}

/// The norm of the sum. An earlier launch writes args.rstd.
template <class Launch>
status produce_norm(const nn::residual_norm_args& args, const Launch& launch) {
  if (args.y.data != nullptr) {
    if (status c = check_like(args.y, args.x, "y"); !c.ok()) return c;
  }
  const nn::const_tensor_view x = args.branch.empty() ? args.x : nn::const_tensor_view(args.sum);
  if (status c = check_rows(x, 2, args.branch.empty() ? "x" : "sum"); !c.ok()) return c;
  const index_t m = x.extent(0), n = x.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(x.type, [&](auto t) {
    using T = decltype(t);
    produced_rows<norm_producer<T>> a;
    a.producer = {{span_of<T>(x)}, args.gain, args.rstd};
    if (args.y.data != nullptr) a.written[0] = span_of<T>(args.y);
    a.vectors = n % vec8_elements == 0 && is_aligned(args.gain) && has_vectors(x) && has_vectors_or_nothing(args.y);
    return launch(a, m, n);
  });
}
/// Arguments of that earlier launch, which computes the sum and rstd.
inline nn::residual_norm_args without_norm(nn::residual_norm_args args) {
  args.y = {};
  return args;
}

}  // namespace rotoscale::gpu::detail
