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
status launch_norm(const nn::residual_norm_args& n, stream s) {
  norm_args<T> a;
  a.e = extents_of(n.x.extent(0), n.x.extent(1), {n.x, n.branch, n.y, Residual ? nn::const_tensor_view(n.sum) : n.x},
                   {n.gain, n.bias});
  a.x = span_of<T>(n.x);
  if constexpr (Residual) {
    a.branch = span_of<T>(n.branch);
    a.sum = span_of<T>(n.sum);
  }
  a.y = span_of<T>(n.y);
  a.gain = n.gain;
  a.rstd = n.rstd;
  a.bias = n.bias;
  a.mean = n.mean;
  a.eps = n.epsilon;
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
status launch_rope(const nn::tensor_view& q, const nn::tensor_view& k, const float* cosine, const float* sine,
                   bool inverse, stream s) {
  rope_args<T> a;
  a.q = heads_of<T>(q);
  if (!k.empty()) a.k = heads_of<T>(k);
  a.cosine = cosine;
  a.sine = sine;
  a.direction = inverse ? -1.0f : 1.0f;
  const index_t tokens = q.extent(0) * q.extent(1), half = q.extent(3) / 2;
  a.seq = static_cast<unsigned>(q.extent(1));
  a.half = static_cast<unsigned>(half);
  a.vec8s = (a.half + vec8_elements - 1) / vec8_elements;
  a.head_groups = (a.q.heads + a.k.heads + rope_heads - 1) / rope_heads;
  a.vectors = half % vec8_elements == 0 && is_aligned(cosine) && is_aligned(sine) && has_vectors(q) &&
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

status add(nn::const_tensor_view x, nn::const_tensor_view y, nn::tensor_view sum, stream s) {
  if (status c = check_rows(x, 2, "x"); !c.ok()) return c;
  if (status c = check_like(y, x, "y"); !c.ok()) return c;
  if (status c = check_like(sum, x, "sum"); !c.ok()) return c;
  return with_storage(x.type, [&](auto t) {
    using T = decltype(t);
    const add_args<T> a{extents_of(x.extent(0), x.extent(1), {x, y, sum}), span_of<T>(x), span_of<T>(y),
                        span_of<T>(sum)};
    unsigned blocks = 0;
    if (status c = count_blocks(a.e, add_rows, blocks); !c.ok()) return c;
    return launch_rows(add_kernel<T>, blocks, row_threads, s, a);
  });
}

namespace {

/// Launches the kernel of an activation, forward or backward. dh, dx: empty for the forward pass.
template <class T>
status launch_activation(nn::activation which, const nn::const_tensor_view& x, const nn::const_tensor_view& dh,
                         const nn::tensor_view& h, const nn::tensor_view& dx, stream s) {
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
    const auto kernel = dx.data == nullptr ? activation_kernel<A, T> : activation_gradient_kernel<A, T>;
    return launch_rows(kernel, blocks, row_threads, s, a);
  });
}

}  // namespace

status activation_forward(nn::activation which, nn::const_tensor_view x, nn::tensor_view h, stream s) {
  if (status c = check_rows(h, 2, "h"); !c.ok()) return c;
  if (status c = check_input(which, x, h, "x"); !c.ok()) return c;
  return with_storage(h.type, [&](auto t) { return launch_activation<decltype(t)>(which, x, {}, h, {}, s); });
}

status activation_backward(nn::activation which, nn::const_tensor_view dh, nn::const_tensor_view x, nn::tensor_view dx,
                           stream s) {
  if (status c = check_rows(dh, 2, "dh"); !c.ok()) return c;
  if (status c = check_input(which, x, dh, "x"); !c.ok()) return c;
  if (status c = check_input(which, dx, dh, "dx"); !c.ok()) return c;
  if (dh.size() == 0) return {};
  return with_storage(dh.type, [&](auto t) { return launch_activation<decltype(t)>(which, x, dh, {}, dx, s); });
}

status dropout(nn::const_tensor_view x, const nn::dropout_args& args, nn::tensor_view y, bool accumulate,
               const nn::step_state* state, stream s) {
  if (status c = check_rows(x, 2, "x"); !c.ok()) return c;
  if (status c = check_rows(y, 2, "y"); !c.ok()) return c;
  if (y.extent(0) != x.extent(0) || y.extent(1) != x.extent(1)) {
    return {error_code::bad_extent, "y", "must have the extents of x"};
  }
  if (x.size() == 0) return {};
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  return with_storage(x.type, [&](auto u) {
    return with_storage(y.type, [&](auto v) {
      using X = decltype(u);
      using Y = decltype(v);
      const dropout_kernel_args<X, Y> a{
          extents_of(x.extent(0), x.extent(1), {x, y}), span_of<X>(x), span_of<Y>(y), args, state, accumulate};
      unsigned blocks = 0;
      if (status c = count_blocks(a.e, 1, blocks); !c.ok()) return c;
      return launch_rows(dropout_kernel<X, Y>, blocks, row_threads, s, a);
    });
  });
}

status residual_norm(const nn::residual_norm_args& args, stream s) {
  if (status c = check_rows(args.x, 2, "x"); !c.ok()) return c;
  if (args.y.data != nullptr) {
    if (status c = check_like(args.y, args.x, "y"); !c.ok()) return c;
  }
  if (!args.branch.empty()) {
    if (status c = check_like(args.branch, args.x, "branch"); !c.ok()) return c;
    if (status c = check_like(args.sum, args.x, "sum"); !c.ok()) return c;
  }
  if (args.x.size() == 0) return {};
  if (status c = check_pointer(args.gain, "gain"); !c.ok()) return c;
  if (status c = check_pointer(args.rstd, "rstd"); !c.ok()) return c;
  if (status c = check_optional(args.bias, "bias"); !c.ok()) return c;
  if (args.bias != nullptr) {
    if (status c = check_pointer(args.mean, "mean"); !c.ok()) return c;
  }
  return with_storage(args.x.type, [&](auto t) {
    return with_norm_kind(args, [&](auto kind) {
      using T = decltype(t);
      return args.branch.empty() ? launch_norm<T, false, kind()>(args, s) : launch_norm<T, true, kind()>(args, s);
    });
  });
}

status rmsnorm_forward(nn::const_tensor_view x, const float* gain, float eps, nn::tensor_view y, float* rstd,
                       stream s) {
  nn::residual_norm_args args;
  args.x = x;
  args.gain = gain;
  args.epsilon = eps;
  args.y = y;
  args.rstd = rstd;
  return residual_norm(args, s);
}

std::size_t rmsnorm_backward_workspace_bytes(index_t rows, index_t cols) {
  return static_cast<std::size_t>((rows + nn::gain_chunk - 1) / nn::gain_chunk * cols) * sizeof(float);
}

namespace {

/// Adds the sums of `parts` rows of n columns to n numbers.
status add_parts(const float* partial, index_t parts, index_t n, float* to, stream s) {
  const gain_sum_args sum{partial, to, parts, static_cast<unsigned>(n)};
  return launch_behind(gain_sum_kernel, blocks((n + gain_cols - 1) / gain_cols), blocks(row_threads), 0, s, sum);
}

/// A null dgain: the gain's gradient is not computed, nor the bias's. A mean: LayerNorm.
status norm_backward(nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain, const float* mean,
                     const float* rstd, nn::tensor_view dx, float* dgain, float* dbias, void* workspace,
                     std::size_t workspace_bytes, stream s) {
  if (status c = check_rows(x, 2, "x"); !c.ok()) return c;
  if (status c = check_like(dy, x, "dy"); !c.ok()) return c;
  if (status c = check_like(dx, x, "dx"); !c.ok()) return c;
  if (x.size() == 0) return {};
  if (status c = check_pointer(gain, "gain"); !c.ok()) return c;
  if (status c = check_pointer(rstd, "rstd"); !c.ok()) return c;
  if (status c = check_optional(mean, "mean"); !c.ok()) return c;
  if (status c = check_optional(dgain, "dgain"); !c.ok()) return c;
  if (status c = check_optional(dbias, "dbias"); !c.ok()) return c;
  const index_t rows = x.extent(0), cols = x.extent(1), parts = (rows + nn::gain_chunk - 1) / nn::gain_chunk;
  if (dgain != nullptr) {
    const std::size_t bytes =
        mean == nullptr ? rmsnorm_backward_workspace_bytes(rows, cols) : layernorm_backward_workspace_bytes(rows, cols);
    if (status c = check_workspace(workspace, workspace_bytes, bytes, 16); !c.ok()) return c;
  }
  auto* const partial = dgain == nullptr ? nullptr : static_cast<float*>(workspace);
  const status launched = with_storage(x.type, [&](auto t) {
    using T = decltype(t);
    norm_gradient_args<T> a;
    a.e = extents_of(rows, cols, {dy, x, dx}, {gain});
    a.dy = span_of<T>(dy);
    a.x = span_of<T>(x);
    a.dx = span_of<T>(dx);
    a.gain = gain;
    a.rstd = rstd;
    a.mean = mean;
    a.partial = partial;
    return mean == nullptr ? launch_norm_gradient<norm_kind::rms>(a, s) : launch_norm_gradient<norm_kind::layer>(a, s);
  });
  if (!launched.ok() || dgain == nullptr) return launched;
  if (status c = add_parts(partial, parts, cols, dgain, s); !c.ok() || dbias == nullptr) return c;
  return add_parts(partial + parts * cols, parts, cols, dbias, s);
}

}  // namespace

status rmsnorm_backward(nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain, const float* rstd,
                        nn::tensor_view dx, float* dgain, void* workspace, std::size_t workspace_bytes, stream s) {
  return norm_backward(dy, x, gain, nullptr, rstd, dx, dgain, nullptr, workspace, workspace_bytes, s);
}

status layernorm_forward(nn::const_tensor_view x, const float* gain, const float* bias, float eps, nn::tensor_view y,
                         float* mean, float* rstd, stream s) {
  if (status c = check_pointer(bias, "bias"); !c.ok()) return c;
  return residual_norm({x, {}, gain, eps, {}, y, rstd, bias, mean}, s);
}

std::size_t layernorm_backward_workspace_bytes(index_t rows, index_t cols) {
  return static_cast<std::size_t>(nn::layernorm_partials(rows, cols)) * sizeof(float);
}

status layernorm_backward(nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain, const float* mean,
                          const float* rstd, nn::tensor_view dx, float* dgain, float* dbias, void* workspace,
                          std::size_t workspace_bytes, stream s) {
  if (status c = check_pointer(mean, "mean"); !c.ok()) return c;
  return norm_backward(dy, x, gain, mean, rstd, dx, dgain, dbias, workspace, workspace_bytes, s);
}

namespace {

/// Checks the table of a bias for rows x.
status check_table(const nn::const_tensor_view& table, const nn::const_tensor_view& x, const char* argument) {
  if (status c = check_rows(table, 2, argument); !c.ok()) return c;
  if (table.type != nn::dtype::fp32) return {error_code::bad_option, argument, "must be FP32"};
  if (table.extent(0) < 1 || table.extent(0) > 0x7FFFFFFF || table.extent(1) != x.extent(1)) {
    return {error_code::bad_extent, argument, "must have the columns of the others, and rows"};
  }
  return {};
}

}  // namespace

status bias_forward(nn::const_tensor_view table, nn::tensor_view x, stream s) {
  if (status c = check_rows(x, 2, "x"); !c.ok()) return c;
  if (status c = check_table(table, x, "table"); !c.ok()) return c;
  return with_storage(x.type, [&](auto t) {
    using T = decltype(t);
    const bias_args<T> a{extents_of(x.extent(0), x.extent(1), {x, table}), span_of<float>(table), span_of<T>(x),
                         static_cast<unsigned>(table.extent(0))};
    unsigned blocks = 0;
    if (status c = count_blocks(a.e, bias_rows, blocks); !c.ok()) return c;
    return launch_rows(bias_kernel<T>, blocks, row_threads, s, a);
  });
}

std::size_t bias_backward_workspace_bytes(index_t rows, index_t cols, index_t period) {
  return static_cast<std::size_t>(nn::bias_partials(rows, cols, period)) * sizeof(float);
}

status bias_backward(nn::const_tensor_view dy, nn::tensor_view dtable, void* workspace, std::size_t workspace_bytes,
                     stream s) {
  if (status c = check_rows(dy, 2, "dy"); !c.ok()) return c;
  if (status c = check_table(dtable, dy, "dtable"); !c.ok()) return c;
  const index_t rows = dy.extent(0), cols = dy.extent(1), period = dtable.extent(0);
  if (dy.size() == 0) return {};
  if (period > 1 && dtable.stride(0) != cols) return {error_code::bad_extent, "dtable", "must be contiguous"};
  if (period > max_columns / cols) return {error_code::bad_extent, "dtable", "must have at most 2^28 elements"};
  if (status c = check_workspace(workspace, workspace_bytes, bias_backward_workspace_bytes(rows, cols, period), 16);
      !c.ok()) {
    return c;
  }
  auto* const partial = static_cast<float*>(workspace);
  const index_t parts = nn::bias_partials(rows, 1, period);
  const status launched = with_storage(dy.type, [&](auto t) {
    using T = decltype(t);
    const bias_gradient_args<T> a{extents_of(rows, cols, {dy}), span_of<T>(dy), partial, static_cast<unsigned>(period),
                                  parts};
    row_extents items = a.e;
    items.rows = parts;
    unsigned blocks = 0;
    if (status c = count_blocks(items, 1, blocks); !c.ok()) return c;
    return launch_rows(bias_gradient_kernel<T>, blocks, row_threads, s, a);
  });
  if (!launched.ok()) return launched;
  return add_parts(partial, parts / period, period * cols, static_cast<float*>(dtable.data), s);
}

status rope_both(nn::tensor_view queries, nn::tensor_view keys, const float* cosine, const float* sine, bool inverse,
                 stream s) {
  if (status c = check_heads(queries, "queries"); !c.ok()) return c;
  if (!keys.empty()) {
    if (status c = check_heads(keys, "keys"); !c.ok()) return c;
    if (keys.type != queries.type || keys.extent(0) != queries.extent(0) || keys.extent(1) != queries.extent(1) ||
        keys.extent(3) != queries.extent(3)) {
      return {error_code::bad_extent, "keys", "must have the tokens, head_dim and storage of the queries"};
    }
  }
  if (queries.size() == 0) return {};
  if (status c = check_pointer(cosine, "cosine"); !c.ok()) return c;
  if (status c = check_pointer(sine, "sine"); !c.ok()) return c;
  return with_storage(queries.type,
                      [&](auto t) { return launch_rope<decltype(t)>(queries, keys, cosine, sine, inverse, s); });
}

status rope(nn::tensor_view x, const float* cosine, const float* sine, bool inverse, stream s) {
  return rope_both(x, {}, cosine, sine, inverse, s);
}

status embedding_forward(const nn::token_source& tokens, nn::const_tensor_view table, nn::tensor_view y,
                         const nn::step_state* state, std::uint32_t* fault, stream s) {
  if (status c = check_rows(y, 2, "y"); !c.ok()) return c;
  if (status c = check_rows(table, 2, "table"); !c.ok()) return c;
  if (table.type != nn::dtype::fp32) return {error_code::bad_option, "table", "must be FP32"};
  if (table.extent(1) != y.extent(1)) return {error_code::bad_extent, "table", "must have the columns of y"};
  if (y.size() == 0) return {};
  if (status c = check_pointer(tokens.data, "tokens"); !c.ok()) return c;
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  if (status c = check_optional(fault, "fault"); !c.ok()) return c;
  return with_storage(y.type, [&](auto t) {
    using T = decltype(t);
    const embedding_args<T> a{extents_of(y.extent(0), y.extent(1), {table, y}),
                              span_of<float>(table),
                              span_of<T>(y),
                              tokens,
                              state,
                              fault,
                              static_cast<unsigned>(table.extent(0))};
    unsigned blocks = 0;
    if (status c = count_blocks(a.e, embedding_rows, blocks); !c.ok()) return c;
    return launch_rows(embedding_kernel<T>, blocks, row_threads, s, a);
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

std::size_t embedding_backward_workspace_bytes(index_t tokens, index_t) {
  return order_room(tokens).all * sizeof(std::uint32_t);
}

status embedding_backward(const nn::token_source& tokens, nn::const_tensor_view dy, nn::tensor_view dtable,
                          const nn::step_state* state, void* workspace, std::size_t workspace_bytes, stream s) {
  if (status c = check_rows(dy, 2, "dy"); !c.ok()) return c;
  if (status c = check_rows(dtable, 2, "dtable"); !c.ok()) return c;
  if (dtable.type != nn::dtype::fp32) return {error_code::bad_option, "dtable", "must be FP32"};
  if (dtable.extent(1) != dy.extent(1)) return {error_code::bad_extent, "dtable", "must have the columns of dy"};
  if (dy.size() == 0) return {};
  if (status c = check_pointer(tokens.data, "tokens"); !c.ok()) return c;
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  const index_t n = dy.extent(0), vocabulary = dtable.extent(0);
  const std::size_t needed = embedding_backward_workspace_bytes(n, vocabulary);
  if (status c = check_workspace(workspace, workspace_bytes, needed, 16); !c.ok()) return c;
  if (n > 0x7FFFFFFF || vocabulary > 0x7FFFFFFF) return {error_code::bad_extent, "dy", "has more than 2^31 rows"};
  const order_room room(n);
  auto *const order = static_cast<std::uint32_t*>(workspace), *const runs = order + room.runs,
              *const long_count = order + room.long_count, *const long_runs = long_count + 1;
  const row_extents e = extents_of(n, dy.extent(1), {dy, dtable});
  unsigned blocks = 0;
  if (status c = count_blocks(e, 1, blocks); !c.ok()) return c;
  device_info device;
  if (status found = current_device(device); !found.ok()) return found;
  if (status c = check_ready(s); !c.ok()) return c;
  if (status c = check_code(token_order_kernel); !c.ok()) return c;
  if (status c = fill(runs, 0, (room.long_count + 1 - room.runs) * sizeof(std::uint32_t), s); !c.ok()) return c;
  const token_order_args sort{
      tokens, state, static_cast<unsigned>(n), static_cast<unsigned>(vocabulary), order, runs, long_runs, long_count};
  if (status c =
          launch_rows(token_order_kernel, (static_cast<std::uint64_t>(vocabulary) + order_range - 1) / order_range,
                      order_threads, s, sort);
      !c.ok()) {
    return c;
  }
  return with_storage(dy.type, [&](auto t) {
    using T = decltype(t);
    const embedding_gradient_args<T> a{e,         span_of<T>(dy), span_of<float>(dtable), tokens, state, order, runs,
                                       long_runs, long_count};
    if (status c = launch_rows(embedding_gradient_kernel<T>, blocks, row_threads, s, a); !c.ok()) return c;
    const index_t items = order_room::long_runs_of(n) * ((e.cols + long_columns - 1) / long_columns);
    return launch_rows(embedding_long_gradient_kernel<T>,
                       static_cast<std::uint64_t>(std::min(items, index_t{4} * device.processors)), row_threads, s, a);
  });
}

}  // namespace rotoscale::gpu
