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
status produce_activation(nn::activation which, const nn::const_tensor_view& x, const nn::tensor_view& h,
                          const Launch& launch) {
  if (status c = check_rows(x, 2, "x"); !c.ok()) return c;
  if (x.extent(1) % nn::inputs_of(which) != 0) return {error_code::bad_extent, "x", "must have a gate and an up"};
  const auto first = input_of(which, x, 0), up = input_of(which, x, 1);
  if (h.data != nullptr) {
    if (status c = check_like(h, first, "h"); !c.ok()) return c;
  }
  const index_t m = first.extent(0), n = first.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(x.type, [&](auto t) {
    return nn::with_activation(which, [&](auto activation) {
      using T = decltype(t);
      produced_rows<activation_producer<decltype(activation), T>> a;
      a.producer.in[0] = span_of<T>(first);
      if constexpr (activation.gated) a.producer.in[1] = span_of<T>(up);
      if (h.data != nullptr) a.written[0] = span_of<T>(h);
      a.vectors = n % vec8_elements == 0 && has_vectors(first) && has_vectors(up) && has_vectors_or_nothing(h);
      return launch(a, m, n);
    });
  });
}

/// The gradient of each input, n columns each.
template <class Launch>
status produce_activation_gradients(nn::activation which, const nn::const_tensor_view& dh,
                                    const nn::const_tensor_view& x, const nn::tensor_view& dx, const Launch& launch) {
  if (status c = check_rows(dh, 2, "dh"); !c.ok()) return c;
  if (status c = check_input(which, x, dh, "x"); !c.ok()) return c;
  if (dx.data != nullptr) {
    if (status c = check_input(which, dx, dh, "dx"); !c.ok()) return c;
  }
  const index_t m = dh.extent(0), n = dh.extent(1);
  if (m == 0 || n == 0) return {};
  return with_storage(dh.type, [&](auto t) {
    return nn::with_activation(which, [&](auto activation) {
      using T = decltype(t);
      produced_rows<activation_gradient_producer<decltype(activation), T>> a;
      constexpr unsigned outputs = decltype(a.producer)::outputs;
      a.producer.in[outputs] = span_of<T>(dh);
      a.vectors = n % vec8_elements == 0 && has_vectors(dh);
      for (unsigned k = 0; k < outputs; ++k) {
        const auto from = input_of(which, x, k);
        a.producer.in[k] = span_of<T>(from);
        a.vectors = a.vectors && has_vectors(from);
        if (dx.data == nullptr) continue;
        const auto to = input_of(which, dx, k);
        a.written[k] = span_of<T>(to);
        a.vectors = a.vectors && has_vectors(to);
      }
      return launch(a, m, n);
    });
  });
}

/// The norm of the sum. An earlier launch writes args.mean and args.rstd.
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
    return with_norm_kind(args, [&](auto kind) {
      using T = decltype(t);
      produced_rows<norm_producer<kind(), T>> a;
      a.producer = {{span_of<T>(x)}, args.gain, args.rstd, args.bias, args.mean};
      if (args.y.data != nullptr) a.written[0] = span_of<T>(args.y);
      a.vectors = n % vec8_elements == 0 && is_aligned(args.gain) && is_aligned(args.bias) && has_vectors(x) &&
                  has_vectors_or_nothing(args.y);
      return launch(a, m, n);
    });
  });
}
/// Arguments of that earlier launch, which computes the sum, mean and rstd.
inline nn::residual_norm_args without_norm(nn::residual_norm_args args) {
  args.y = {};
  return args;
}

}  // namespace rotoscale::gpu::detail
