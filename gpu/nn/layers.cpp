// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/nn.hpp for element-wise layers, norms, biases, RoPE and the embedding. The loss and the
// optimizer have their own files.
#include <algorithm>
#include <type_traits>

#include "gpu/nn/bias.hpp"
#include "gpu/nn/check.hpp"
#include "gpu/nn/elementwise.hpp"
#include "gpu/nn/embedding.hpp"
#include "gpu/nn/gain_sum.hpp"
#include "gpu/nn/norm_gradient.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Target for the rows of a norm that a block stages, but at least two rows. Many small blocks overlap better than a
/// few large ones.
constexpr std::size_t staged_bytes = 12 * 1024;
constexpr std::size_t max_shared_bytes = has_small_shared_memory ? 60 * 1024 : 200 * 1024;

template <class T, bool Residual, norm_kind Kind>
status launch_norm(const op::residual_norm::in& i, const op::residual_norm::out& o, stream s) {
  norm_args<T> a;
  a.e = extents_of(i.x.extent(0), i.x.extent(1), {i.x, i.branch, o.y, Residual ? nn::const_tensor_view(o.sum) : i.x},
                   {i.gain, i.bias});
  a.x = span_of<T>(i.x);
  if constexpr (Residual) {
    a.branch = span_of<T>(i.branch);
    a.sum = span_of<T>(o.sum);
  }
  a.y = span_of<T>(o.y);
  a.gain = i.gain;
  a.rstd = o.rstd;
  a.bias = i.bias;
  a.mean = o.mean;
  a.eps = i.epsilon;
  const std::size_t pitch = row_pitch<T>(a.e.cols);
  const bool staged = pitch <= max_shared_bytes;
  const auto fitting =
      static_cast<unsigned>(std::max<std::size_t>(2 * pitch <= max_shared_bytes ? 2 : 1, staged_bytes / pitch));
  a.block_rows = staged ? std::min(fitting, max_norm_rows) : max_norm_rows;
  const auto grid = static_cast<std::uint64_t>((a.e.rows + a.block_rows - 1) / a.block_rows);
  return staged ? launch_rows(norm_kernel<T, Residual, true, Kind>, grid, row_threads, s, a, a.block_rows * pitch)
                : launch_rows(norm_kernel<T, Residual, false, Kind>, grid, row_threads, s, a);
}

/// Launches one block per chain of the gain's gradient.
template <class T>
status launch_norm_gradient(void (*kernel)(norm_gradient_args<T>), const norm_gradient_args<T>& a, unsigned threads,
                            std::size_t shared_bytes, stream s) {
  const auto grid = static_cast<std::uint64_t>((a.e.rows + nn::gain_chunk - 1) / nn::gain_chunk);
  return launch_rows(kernel, grid, threads, s, a, shared_bytes);
}
/// Chooses the largest row groups with which four blocks fit in an SM's shared memory (prefetch distance 2), or else
/// two blocks (distance 1).
template <norm_kind Kind, class T>
status launch_norm_gradient(const norm_gradient_args<T>& a, stream s) {
  // Shares of 228 KiB, less CUDA's 1 KiB per block and the block's static shared memory, in steps of 128 bytes.
  constexpr std::size_t others = (sizeof(norm_gradient_shared<Kind>) + 127) / 128 * 128;
  constexpr std::size_t half = has_small_shared_memory ? max_shared_bytes : 113 * 1024 - others;
  constexpr std::size_t quarter = 56 * 1024 - others;
  const unsigned threads = std::min(row_threads, (a.e.vec8s + subgroup_lanes - 1) / subgroup_lanes * subgroup_lanes);
  const unsigned each = (a.e.vec8s + threads - 1) / threads;  // vec8s per thread and row
  const auto bytes = [&](unsigned rows, unsigned stages) { return norm_gradient_bytes<T>(a.e.cols, rows, stages); };
  const auto launch_groups =
      [&]<unsigned Vec8s, unsigned Rows, unsigned Stages>(norm_gradient_shape<Vec8s, Rows, Stages>) {
        return launch_norm_gradient(norm_gradient_kernel<T, Kind, Vec8s, Rows, Stages>, a, threads + dot_threads<Rows>,
                                    bytes(Rows, Stages), s);
      };
  if (a.e.vectors) {
    if constexpr (!has_small_shared_memory) {  // AMD's copies are synchronous
      if (each == 1 && bytes(4, 4) <= quarter) return launch_groups(norm_gradient_shape<1, 4, 4>{});
      if (each == 1 && bytes(2, 4) <= quarter) return launch_groups(norm_gradient_shape<1, 2, 4>{});
    }
    if (each == 1 && bytes(4, 3) <= half) return launch_groups(norm_gradient_shape<1, 4, 3>{});
    if (each == 1 && bytes(2, 3) <= half) return launch_groups(norm_gradient_shape<1, 2, 3>{});
    if (each == 2 && bytes(2, 3) <= half) return launch_groups(norm_gradient_shape<2, 2, 3>{});
    if (each == 2 && bytes(1, 3) <= half) return launch_groups(norm_gradient_shape<2, 1, 3>{});
    if (each <= 4 && bytes(1, 3) <= max_shared_bytes) {
      return launch_groups(norm_gradient_shape<4, 1, 3>{});
    }
  }
  return launch_norm_gradient(norm_gradient_unstaged_kernel<T, Kind>, a, row_threads, 0, s);
}

/// Strides and heads of x, which has been checked.
template <class T>
typename rope_args<T>::tensor heads_of(const nn::tensor_view& x) {
  return {static_cast<T*>(x.data), x.stride(0), x.stride(1), x.stride(2), static_cast<unsigned>(x.extent(2))};
}

template <class T>
status launch_rope(const op::rope::in& i, const op::rope::out& o, stream s) {
  const nn::tensor_view &q = o.queries, &k = o.keys;
  rope_args<T> a;
  a.q = heads_of<T>(q);
  if (!k.empty()) a.k = heads_of<T>(k);
  a.cosine = i.cosine;
  a.sine = i.sine;
  a.direction = i.inverse ? -1.0f : 1.0f;
  const index_t tokens = q.extent(0) * q.extent(1), half = q.extent(3) / 2;
  a.seq = static_cast<unsigned>(q.extent(1));
  a.half = static_cast<unsigned>(half);
  a.vec8s = (a.half + vec8_elements - 1) / vec8_elements;
  a.head_groups = (a.q.heads + a.k.heads + rope_heads - 1) / rope_heads;
  a.vectors = half % vec8_elements == 0 && is_aligned(i.cosine) && is_aligned(i.sine) && has_vectors(q) &&
              (k.empty() || has_vectors(k));
  const auto items = static_cast<std::uint64_t>(tokens) * a.vec8s * a.head_groups;
  if (items == 0) return {};
  if (tokens > 0x7FFFFFFF || items > 0xFFFFFFFFu - row_threads)
    return {error_code::bad_extent, "x", "has more than 2^32 vectors of 8 elements"};
  a.tokens = static_cast<unsigned>(tokens);
  return launch_rows(rope_kernel<T>, (items + row_threads - 1) / row_threads, row_threads, s, a);
}

status check_heads(const nn::tensor_view& x, const char* argument) {
  if (status s = check_rows(x, 4, argument); !s.ok()) return s;
  return x.extent(3) % 2 == 0 ? status{} : status{error_code::bad_extent, argument, "must have an even head_dim"};
}

}  // namespace

template <>
status launch<op::add>(const device_call& call, const op::add::in& i, const op::add::out& o) {
  if (status c = check_rows(i.x, 2, "x"); !c.ok()) return c;
  if (status c = check_like(i.y, i.x, "y"); !c.ok()) return c;
  if (status c = check_like(o.sum, i.x, "sum"); !c.ok()) return c;
  return with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    const add_args<T> a{extents_of(i.x.extent(0), i.x.extent(1), {i.x, i.y, o.sum}), span_of<T>(i.x), span_of<T>(i.y),
                        span_of<T>(o.sum)};
    unsigned blocks = 0;
    if (status c = count_blocks(a.e, add_rows, blocks); !c.ok()) return c;
    return launch_rows(add_kernel<T>, blocks, row_threads, call.s, a);
  });
}

namespace {

/// Launches the kernel of an activation, forward or backward. dh, dx: empty for the forward pass. `partial`: takes sums
/// of dx, or null.
template <class T>
status launch_activation(nn::activation which, const nn::const_tensor_view& x, const nn::const_tensor_view& dh,
                         const nn::tensor_view& h, const nn::tensor_view& dx, stream s, float* partial = nullptr) {
  const auto first = input_of(which, x, 0), up = input_of(which, x, 1);
  const index_t rows = first.extent(0), cols = first.extent(1);
  activation_args<T> a;
  a.x = span_of<T>(first);
  a.up = span_of<T>(up);
  if (dx.data == nullptr) {
    a.e = extents_of(rows, cols, {first, up, h});
    a.h = span_of<T>(h);
  } else {
    const auto to = input_of(which, dx, 0), to_up = input_of(which, dx, 1);
    a.e = extents_of(rows, cols, {first, up, dh, to, to_up});
    a.dh = span_of<T>(dh);
    a.dx = span_of<T>(to);
    a.dup = span_of<T>(to_up);
  }
  unsigned blocks = 0;
  if (status c = count_blocks(a.e, activation_rows, blocks); !c.ok()) return c;
  return nn::with_activation(which, [&](auto activation) {
    using A = decltype(activation);
    if (partial != nullptr) {
      constexpr unsigned threads = activation_bias_threads;
      const auto items = static_cast<std::uint64_t>((rows + nn::gain_chunk - 1) / nn::gain_chunk) * a.e.vec8s;
      return launch_rows(activation_bias_kernel<A, T>, (items + threads - 1) / threads, threads, s, {a, partial});
    }
    const auto kernel = dx.data == nullptr ? activation_kernel<A, T> : activation_gradient_kernel<A, T>;
    return launch_rows(kernel, blocks, row_threads, s, a);
  });
}

}  // namespace

template <>
status launch<op::activation_forward>(const device_call& call, const op::activation_forward::in& i,
                                      const op::activation_forward::out& o) {
  if (status c = check_rows(o.h, 2, "h"); !c.ok()) return c;
  if (status c = check_input(i.which, i.x, o.h, "x"); !c.ok()) return c;
  return with_storage(o.h.type,
                      [&](auto t) { return launch_activation<decltype(t)>(i.which, i.x, {}, o.h, {}, call.s); });
}

namespace {

/// Adds the sums of `parts` rows of n columns to n numbers, for each matrix of `partial` that has an address.
status add_parts(const float* partial, index_t parts, index_t n, std::initializer_list<float*> to, stream s) {
  gain_sum_args sum{partial, {}, parts, static_cast<unsigned>(n)};
  unsigned matrices = 0;
  for (float* const each : to) {
    if (each != nullptr) sum.dgain[matrices++] = each;
  }
  if (matrices == 1 && parts <= few_chunks) {
    const dim3 grid = blocks((n + row_threads - 1) / row_threads);
    return launch_behind(few_gain_sum_kernel, grid, blocks(row_threads), 0, s, sum);
  }
  dim3 grid = blocks((n + gain_cols - 1) / gain_cols);
  grid.y = matrices;
  return launch_behind(gain_sum_kernel, grid, blocks(row_threads), 0, s, sum);
}

/// Checks the table of a bias for rows x.
status check_table(const nn::const_tensor_view& table, const nn::const_tensor_view& x, const char* argument) {
  if (status c = check_rows(table, 2, argument); !c.ok()) return c;
  if (table.type != nn::dtype::fp32) return {error_code::bad_option, argument, "must be FP32"};
  if (table.extent(0) < 1 || table.extent(0) > 0x7FFFFFFF || table.extent(1) != x.extent(1)) {
    return {error_code::bad_extent, argument, "must have the columns of the others, and rows"};
  }
  return {};
}
/// Checks the gradient of a bias of one row.
status check_gradient(const nn::tensor_view& dtable, const nn::const_tensor_view& dx) {
  if (status c = check_table(dtable, dx, "dtable"); !c.ok()) return c;
  return dtable.extent(0) == 1 ? status{} : status{error_code::bad_extent, "dtable", "must have one row"};
}

}  // namespace

template <>
std::size_t workspace_bytes<op::activation_backward>(const op::activation_backward::in& i,
                                                     const op::activation_backward::out& o) {
  const index_t parts = o.dtable.empty() ? 0 : nn::bias_partials(i.dh.extent(0), o.dtable.extent(1), 1);
  return static_cast<std::size_t>(parts) * sizeof(float);
}

template <>
status launch<op::activation_backward>(const device_call& call, const op::activation_backward::in& i,
                                       const op::activation_backward::out& o) {
  if (status c = check_rows(i.dh, 2, "dh"); !c.ok()) return c;
  if (status c = check_input(i.which, i.x, i.dh, "x"); !c.ok()) return c;
  if (status c = check_input(i.which, o.dx, i.dh, "dx"); !c.ok()) return c;
  float* partial = nullptr;
  if (!o.dtable.empty()) {
    if (status c = check_gradient(o.dtable, o.dx); !c.ok()) return c;
    const std::size_t needed = workspace_bytes<op::activation_backward>(i, o);
    if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
    partial = static_cast<float*>(call.workspace);
  }
  if (i.dh.size() == 0) return {};
  const status launched = with_storage(
      i.dh.type, [&](auto t) { return launch_activation<decltype(t)>(i.which, i.x, i.dh, {}, o.dx, call.s, partial); });
  if (!launched.ok() || partial == nullptr) return launched;
  const index_t parts = nn::bias_partials(i.dh.extent(0), 1, 1);
  return add_parts(partial, parts, o.dx.extent(1), {static_cast<float*>(o.dtable.data)}, call.s);
}

template <>
status launch<op::dropout>(const device_call& call, const op::dropout::in& i, const op::dropout::out& o) {
  if (status c = check_rows(i.x, 2, "x"); !c.ok()) return c;
  if (status c = check_rows(o.y, 2, "y"); !c.ok()) return c;
  if (o.y.extent(0) != i.x.extent(0) || o.y.extent(1) != i.x.extent(1)) {
    return {error_code::bad_extent, "y", "must have the extents of x"};
  }
  if (i.x.size() == 0) return {};
  if (status c = check_pointer(i.state, "state"); !c.ok()) return c;
  return with_storage(i.x.type, [&](auto u) {
    return with_storage(o.y.type, [&](auto v) {
      using X = decltype(u);
      using Y = decltype(v);
      const row_extents e = extents_of(i.x.extent(0), i.x.extent(1), {i.x, o.y});
      const dropout_kernel_args<X, Y> a{e, span_of<X>(i.x), span_of<Y>(o.y), i.args, i.state, i.accumulate};
      unsigned blocks = 0;
      if (status c = count_blocks(a.e, 1, blocks); !c.ok()) return c;
      return launch_rows(dropout_kernel<X, Y>, blocks, row_threads, call.s, a);
    });
  });
}

template <>
status launch<op::residual_norm>(const device_call& call, const op::residual_norm::in& i,
                                 const op::residual_norm::out& o) {
  if (status c = check_rows(i.x, 2, "x"); !c.ok()) return c;
  if (o.y.data != nullptr) {
    if (status c = check_like(o.y, i.x, "y"); !c.ok()) return c;
  }
  if (!i.branch.empty()) {
    if (status c = check_like(i.branch, i.x, "branch"); !c.ok()) return c;
    if (status c = check_like(o.sum, i.x, "sum"); !c.ok()) return c;
  }
  if (i.x.size() == 0) return {};
  if (status c = check_pointer(i.gain, "gain"); !c.ok()) return c;
  if (status c = check_pointer(o.rstd, "rstd"); !c.ok()) return c;
  if (status c = check_optional(i.bias, "bias"); !c.ok()) return c;
  if (i.bias != nullptr) {
    if (status c = check_pointer(o.mean, "mean"); !c.ok()) return c;
  }
  return with_storage(i.x.type, [&](auto t) {
    return with_norm_kind(i.bias, [&](auto kind) {
      using T = decltype(t);
      return i.branch.empty() ? launch_norm<T, false, kind()>(i, o, call.s)
                              : launch_norm<T, true, kind()>(i, o, call.s);
    });
  });
}

template <>
status launch<op::norm_forward>(const device_call& call, const op::norm_forward::in& i,
                                const op::norm_forward::out& o) {
  return launch<op::residual_norm>(call, {i.x, {}, i.gain, i.epsilon, nullptr, i.bias}, {{}, o.y, o.rstd, {}, o.mean});
}

template <>
std::size_t workspace_bytes<op::norm_backward>(const op::norm_backward::in& i, const op::norm_backward::out& o) {
  const index_t vectors = !o.dtable.empty() ? 3 : i.mean != nullptr ? 2 : 1;
  return static_cast<std::size_t>(nn::bias_partials(i.x.extent(0), vectors * i.x.extent(1), 1)) * sizeof(float);
}

template <>
status launch<op::norm_backward>(const device_call& call, const op::norm_backward::in& i,
                                 const op::norm_backward::out& o) {
  if (status c = check_rows(i.x, 2, "x"); !c.ok()) return c;
  if (status c = check_like(i.dy, i.x, "dy"); !c.ok()) return c;
  if (status c = check_like(o.dx, i.x, "dx"); !c.ok()) return c;
  if (!o.dtable.empty()) {
    if (status c = check_gradient(o.dtable, i.x); !c.ok()) return c;
  }
  if (i.x.size() == 0) return {};
  if (status c = check_pointer(i.gain, "gain"); !c.ok()) return c;
  if (status c = check_pointer(i.rstd, "rstd"); !c.ok()) return c;
  if (status c = check_optional(i.mean, "mean"); !c.ok()) return c;
  if (status c = check_optional(o.dgain, "dgain"); !c.ok()) return c;
  if (status c = check_optional(o.dbias, "dbias"); !c.ok()) return c;
  if (!o.dtable.empty()) {
    if (status c = check_pointer(i.mean, "mean"); !c.ok()) return c;
    if (status c = check_pointer(o.dgain, "dgain"); !c.ok()) return c;
    if (status c = check_pointer(o.dbias, "dbias"); !c.ok()) return c;
  }
  const index_t rows = i.x.extent(0), cols = i.x.extent(1), parts = (rows + nn::gain_chunk - 1) / nn::gain_chunk;
  if (o.dgain != nullptr) {
    const std::size_t needed = workspace_bytes<op::norm_backward>(i, o);
    if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
  }
  auto* const partial = o.dgain == nullptr ? nullptr : static_cast<float*>(call.workspace);
  const status launched = with_storage(i.x.type, [&](auto t) {
    using T = decltype(t);
    norm_gradient_args<T> a;
    a.e = extents_of(rows, cols, {i.dy, i.x, o.dx}, {i.gain});
    a.dy = span_of<T>(i.dy);
    a.x = span_of<T>(i.x);
    a.dx = span_of<T>(o.dx);
    a.gain = i.gain;
    a.rstd = i.rstd;
    a.mean = i.mean;
    a.partial = partial;
    a.adds_dx = !o.dtable.empty();
    return i.mean == nullptr ? launch_norm_gradient<norm_kind::rms>(a, call.s)
                             : launch_norm_gradient<norm_kind::layer>(a, call.s);
  });
  if (!launched.ok() || o.dgain == nullptr) return launched;
  return add_parts(partial, parts, cols, {o.dgain, o.dbias, static_cast<float*>(o.dtable.data)}, call.s);
}

template <>
status launch<op::bias_forward>(const device_call& call, const op::bias_forward::in& i,
                                const op::bias_forward::out& o) {
  if (status c = check_rows(o.x, 2, "x"); !c.ok()) return c;
  if (status c = check_table(i.table, o.x, "table"); !c.ok()) return c;
  return with_storage(o.x.type, [&](auto t) {
    using T = decltype(t);
    const bias_args<T> a{extents_of(o.x.extent(0), o.x.extent(1), {o.x, i.table}), span_of<float>(i.table),
                         span_of<T>(o.x), static_cast<unsigned>(i.table.extent(0))};
    unsigned blocks = 0;
    if (status c = count_blocks(a.e, bias_rows, blocks); !c.ok()) return c;
    return launch_rows(bias_kernel<T>, blocks, row_threads, call.s, a);
  });
}

template <>
std::size_t workspace_bytes<op::bias_backward>(const op::bias_backward::in& i, const op::bias_backward::out& o) {
  return static_cast<std::size_t>(nn::bias_partials(i.dy.extent(0), i.dy.extent(1), o.dtable.extent(0))) *
         sizeof(float);
}

template <>
status launch<op::bias_backward>(const device_call& call, const op::bias_backward::in& i,
                                 const op::bias_backward::out& o) {
  if (status c = check_rows(i.dy, 2, "dy"); !c.ok()) return c;
  if (status c = check_table(o.dtable, i.dy, "dtable"); !c.ok()) return c;
  const index_t rows = i.dy.extent(0), cols = i.dy.extent(1), period = o.dtable.extent(0);
  if (i.dy.size() == 0) return {};
  if (period > 1 && o.dtable.stride(0) != cols) return {error_code::bad_extent, "dtable", "must be contiguous"};
  if (period > max_columns / cols) return {error_code::bad_extent, "dtable", "must have at most 2^28 elements"};
  const std::size_t needed = workspace_bytes<op::bias_backward>(i, o);
  if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
  auto* const partial = static_cast<float*>(call.workspace);
  const index_t parts = nn::bias_partials(rows, 1, period);
  const status launched = with_storage(i.dy.type, [&](auto t) {
    using T = decltype(t);
    const bias_gradient_args<T> a{extents_of(rows, cols, {i.dy}), span_of<T>(i.dy), partial,
                                  static_cast<unsigned>(period), parts};
    row_extents items = a.e;
    items.rows = parts;
    unsigned blocks = 0;
    if (status c = count_blocks(items, 1, blocks); !c.ok()) return c;
    return launch_rows(bias_gradient_kernel<T>, blocks, row_threads, call.s, a);
  });
  if (!launched.ok()) return launched;
  return add_parts(partial, parts / period, period * cols, {static_cast<float*>(o.dtable.data)}, call.s);
}

template <>
status launch<op::rope>(const device_call& call, const op::rope::in& i, const op::rope::out& o) {
  const nn::tensor_view &queries = o.queries, &keys = o.keys;
  if (status c = check_heads(queries, "queries"); !c.ok()) return c;
  if (!keys.empty()) {
    if (status c = check_heads(keys, "keys"); !c.ok()) return c;
    if (keys.type != queries.type || keys.extent(0) != queries.extent(0) || keys.extent(1) != queries.extent(1) ||
        keys.extent(3) != queries.extent(3)) {
      return {error_code::bad_extent, "keys", "must have the tokens, head_dim and storage of the queries"};
    }
  }
  if (queries.size() == 0) return {};
  if (status c = check_pointer(i.cosine, "cosine"); !c.ok()) return c;
  if (status c = check_pointer(i.sine, "sine"); !c.ok()) return c;
  return with_storage(queries.type, [&](auto t) { return launch_rope<decltype(t)>(i, o, call.s); });
}

template <>
status launch<op::embedding_forward>(const device_call& call, const op::embedding_forward::in& i,
                                     const op::embedding_forward::out& o) {
  if (status c = check_rows(o.y, 2, "y"); !c.ok()) return c;
  if (status c = check_rows(i.table, 2, "table"); !c.ok()) return c;
  if (i.table.type != nn::dtype::fp32) return {error_code::bad_option, "table", "must be FP32"};
  if (i.table.extent(1) != o.y.extent(1)) return {error_code::bad_extent, "table", "must have the columns of y"};
  if (o.y.size() == 0) return {};
  if (status c = check_pointer(i.tokens.data, "tokens"); !c.ok()) return c;
  if (status c = check_pointer(i.state, "state"); !c.ok()) return c;
  if (status c = check_optional(call.faults, "faults"); !c.ok()) return c;
  return with_storage(o.y.type, [&](auto t) {
    using T = decltype(t);
    const embedding_args<T> a{extents_of(o.y.extent(0), o.y.extent(1), {i.table, o.y}),
                              span_of<float>(i.table),
                              span_of<T>(o.y),
                              i.tokens,
                              i.state,
                              call.faults,
                              static_cast<unsigned>(i.table.extent(0))};
    unsigned blocks = 0;
    if (status c = count_blocks(a.e, embedding_rows, blocks); !c.ok()) return c;
    return launch_rows(embedding_kernel<T>, blocks, row_threads, call.s, a);
  });
}

namespace {

/// Layout of embedding_backward's workspace, in words: order, runs, number of long runs, long runs.
struct order_room {
  std::size_t runs, long_count, all;
  explicit order_room(index_t tokens)
      : runs((static_cast<std::size_t>(tokens) + 3) / 4 * 4),
        long_count(2 * runs),
        all(long_count + 1 + static_cast<std::size_t>(long_runs_of(tokens))) {}
  /// Upper bound on the number of long runs of `tokens` tokens.
  static index_t long_runs_of(index_t tokens) { return tokens / (longest_short_run + 1); }
};

}  // namespace

template <>
std::size_t workspace_bytes<op::embedding_backward>(const op::embedding_backward::in& i,
                                                    const op::embedding_backward::out&) {
  return order_room(i.dy.extent(0)).all * sizeof(std::uint32_t);
}

template <>
status launch<op::embedding_backward>(const device_call& call, const op::embedding_backward::in& i,
                                      const op::embedding_backward::out& o) {
  if (status c = check_rows(i.dy, 2, "dy"); !c.ok()) return c;
  if (status c = check_rows(o.dtable, 2, "dtable"); !c.ok()) return c;
  if (o.dtable.type != nn::dtype::fp32) return {error_code::bad_option, "dtable", "must be FP32"};
  if (o.dtable.extent(1) != i.dy.extent(1)) return {error_code::bad_extent, "dtable", "must have the columns of dy"};
  if (i.dy.size() == 0) return {};
  if (status c = check_pointer(i.tokens.data, "tokens"); !c.ok()) return c;
  if (status c = check_pointer(i.state, "state"); !c.ok()) return c;
  const index_t n = i.dy.extent(0), vocabulary = o.dtable.extent(0);
  const std::size_t needed = workspace_bytes<op::embedding_backward>(i, o);
  if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
  if (n > 0x7FFFFFFF || vocabulary > 0x7FFFFFFF) return {error_code::bad_extent, "dy", "has more than 2^31 rows"};
  const order_room room(n);
  auto *const order = static_cast<std::uint32_t*>(call.workspace), *const runs = order + room.runs,
              *const long_count = order + room.long_count, *const long_runs = long_count + 1;
  const row_extents e = extents_of(n, i.dy.extent(1), {i.dy, o.dtable});
  unsigned blocks = 0;
  if (status c = count_blocks(e, 1, blocks); !c.ok()) return c;
  device_info device;
  if (status found = current_device(device); !found.ok()) return found;
  if (status c = check_ready(call.s); !c.ok()) return c;
  if (status c = check_code(token_order_kernel); !c.ok()) return c;
  if (status c = fill(runs, 0, (room.long_count + 1 - room.runs) * sizeof(std::uint32_t), call.s); !c.ok()) return c;
  const token_order_args sort{
      i.tokens,  i.state,   static_cast<unsigned>(n), static_cast<unsigned>(vocabulary), order, runs,
      long_runs, long_count};
  if (status c =
          launch_rows(token_order_kernel, (static_cast<std::uint64_t>(vocabulary) + order_range - 1) / order_range,
                      order_threads, call.s, sort);
      !c.ok()) {
    return c;
  }
  return with_storage(i.dy.type, [&](auto t) {
    using T = decltype(t);
    const embedding_gradient_args<T> a{
        e, span_of<T>(i.dy), span_of<float>(o.dtable), i.tokens, i.state, order, runs, long_runs, long_count};
    if (status c = launch_rows(embedding_gradient_kernel<T>, blocks, row_threads, call.s, a); !c.ok()) return c;
    const index_t items = order_room::long_runs_of(n) * ((e.cols + long_columns - 1) / long_columns);
    return launch_rows(embedding_long_gradient_kernel<T>,
                       static_cast<std::uint64_t>(std::min(items, index_t{4} * device.processors)), row_threads, call.s,
                       a);
  });
}

}  // namespace rotoscale::gpu
