// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Layers that quantize their result: checks a layer's arguments and makes its producer. `produce(in, out, launch)`
// calls launch(produced rows, m, n) for m × n elements of each output. An empty result is not written.
#pragma once

#include "gpu/nn/check.hpp"
#include "gpu/nn/row_producers.hpp"

namespace rotoscale::gpu::detail {

inline bool has_vectors_or_nothing(const nn::const_tensor_view& x) { return x.data == nullptr || has_vectors(x); }

template <class Launch>
status produce(const op::activation_quantize::in& i, const op::activation_quantize::out& o, const Launch& launch) {
  if (status c = check_rows(i.x, 2, "x"); !c.ok()) return c;
  if (i.x.extent(1) % nn::inputs_of(i.which) != 0) return {error_code::bad_extent, "x", "must have a gate and an up"};
  const auto first = input_of(i.which, i.x, 0), up = input_of(i.which, i.x, 1);
  if (!o.h.empty()) {
    if (status c = check_like(o.h, first, "h"); !c.ok()) return c;
  }
  const index_t m = first.extent(0), n = first.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(i.x.type, [&](auto t) {
    return nn::with_activation(i.which, [&](auto activation) {
      using T = decltype(t);
      produced_rows<activation_producer<decltype(activation), T>> a;
      a.producer.in[0] = span_of<T>(first);
      if constexpr (activation.gated) a.producer.in[1] = span_of<T>(up);
      if (!o.h.empty()) a.written[0] = span_of<T>(o.h);
      a.vectors = n % vec8_elements == 0 && has_vectors(first) && has_vectors(up) && has_vectors_or_nothing(o.h);
      return launch(a, m, n);
    });
  });
}

/// The gradient of each input, n columns each.
template <class Launch>
status produce(const op::activation_backward_quantize::in& i, const op::activation_backward_quantize::out& o,
               const Launch& launch) {
  if (status c = check_rows(i.dh, 2, "dh"); !c.ok()) return c;
  if (status c = check_input(i.which, i.x, i.dh, "x"); !c.ok()) return c;
  if (!o.dx.empty()) {
    if (status c = check_input(i.which, o.dx, i.dh, "dx"); !c.ok()) return c;
  }
  const index_t m = i.dh.extent(0), n = i.dh.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(i.dh.type, [&](auto t) {
    return nn::with_activation(i.which, [&](auto activation) {
      using T = decltype(t);
      produced_rows<activation_gradient_producer<decltype(activation), T>> a;
      constexpr unsigned outputs = decltype(a.producer)::outputs;
      a.producer.in[outputs] = span_of<T>(i.dh);
      a.vectors = n % vec8_elements == 0 && has_vectors(i.dh);
      for (unsigned k = 0; k < outputs; ++k) {
        const auto from = input_of(i.which, i.x, k);
        a.producer.in[k] = span_of<T>(from);
        a.vectors = a.vectors && has_vectors(from);
        if (o.dx.empty()) continue;
        const auto to = input_of(i.which, o.dx, k);
        a.written[k] = span_of<T>(to);
        a.vectors = a.vectors && has_vectors(to);
      }
      return launch(a, m, n);
    });
  });
}

/// The norm of the sum. An earlier launch writes the sum, mean and rstd.
template <class Launch>
status produce(const op::residual_norm::in& i, const op::residual_norm::out& o, const Launch& launch) {
  if (o.y.data != nullptr) {
    if (status c = check_like(o.y, i.x, "y"); !c.ok()) return c;
  }
  const nn::const_tensor_view x = i.branch.empty() ? i.x : nn::const_tensor_view(o.sum);
  if (status c = check_rows(x, 2, i.branch.empty() ? "x" : "sum"); !c.ok()) return c;
  const index_t m = x.extent(0), n = x.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(x.type, [&](auto t) {
    return with_norm_kind(i.bias, [&](auto kind) {
      using T = decltype(t);
      produced_rows<norm_producer<kind(), T>> a;
      a.producer = {{span_of<T>(x)}, i.gain, o.rstd, i.bias, o.mean};
      if (o.y.data != nullptr) a.written[0] = span_of<T>(o.y);
      a.vectors = n % vec8_elements == 0 && is_aligned(i.gain) && is_aligned(i.bias) && has_vectors(x) &&
                  has_vectors_or_nothing(o.y);
      return launch(a, m, n);
    });
  });
}
/// Launches what a producer needs.
template <class In, class Out>
status prologue(const device_call&, const In&, const Out&) {
  return {};
}
inline status prologue(const device_call& call, const op::residual_norm::in& i, op::residual_norm::out o) {
  o.y = {};
  return launch<op::residual_norm>(call, i, o);
}

}  // namespace rotoscale::gpu::detail

namespace rotoscale::gpu {

/// quantize_produced(produced rows, target, m, n, stream, prologue) launches the kernel of a target.
template <class Op, class Target>
status launch_quantized(const device_call& call, const typename Op::in& i, const typename Op::out& o,
                        const Target& to) {
  return detail::produce(i, o, [&](const auto& produced, index_t m, index_t n) {
    return quantize_produced(produced, to, m, n, call.s, [&] { return detail::prologue(call, i, o); });
  });
}
#define ROTOSCALE_INSTANTIATE(name, target)                                                                 \
  template status launch_quantized<op::name>(const device_call&, const op::name::in&, const op::name::out&, \
                                             const target&);
/// Instantiates launch_quantized for a target.
#define ROTOSCALE_INSTANTIATE_QUANTIZED(target)      \
  ROTOSCALE_INSTANTIATE(residual_norm, target)       \
  ROTOSCALE_INSTANTIATE(activation_quantize, target) \
  ROTOSCALE_INSTANTIATE(activation_backward_quantize, target)

}  // namespace rotoscale::gpu
