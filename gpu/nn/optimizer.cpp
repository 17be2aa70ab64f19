// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/nn.hpp for the step state, the loss and the optimizer.
#include "gpu/nn/optimizer.hpp"

#include <algorithm>

#include "gpu/nn/check.hpp"
#include "gpu/nn/loss.hpp"

namespace rotoscale::gpu {

namespace {

using namespace detail;

/// Two-pass softmax: a group of rows has 256 chunks of 16 KiB. Gradients follow 3 groups after the sums, while the
/// logits are still in L2.
constexpr index_t softmax_group_chunks = 256;
constexpr unsigned softmax_lag = 3;

constexpr index_t chunks_of(index_t n, index_t chunk) { return (n + chunk - 1) / chunk; }

softmax_order order_of(const loss_args& a, int processors) {
  softmax_order order;
  order.chunks = a.chunks;
  order.rows = static_cast<unsigned>(a.rows);
  if (a.gradients && a.chunks > 1 && !softmax_waits(a.chunks, processors)) {
    order.passes = 2;
    order.group_rows = static_cast<unsigned>(std::clamp<index_t>(softmax_group_chunks / a.chunks, 1, a.rows));
    order.lag = softmax_lag;
  }
  order.groups = static_cast<unsigned>(chunks_of(a.rows, order.group_rows));
  return order;
}

status check_arena(const nn::parameter_arena& a, bool moments) {
  if (a.size < 0) return {error_code::bad_extent, "arena.size", "must not be negative"};
  if (a.size == 0) return {};
  if (status s = check_pointer(a.gradient, 16, "arena.gradient"); !s.ok() || !moments) return s;
  if (status s = check_pointer(a.weight, 16, "arena.weight"); !s.ok()) return s;
  if (status s = check_pointer(a.m, 16, "arena.m"); !s.ok()) return s;
  return check_pointer(a.v, 16, "arena.v");
}

/// Checks that segments ascend, start at multiples of parameter_alignment and do not overlap.
status check_segments(const nn::parameter_arena& a) {
  index_t end = 0;
  for (const auto& s : a.segments) {
    if (s.count < 0 || s.first < end || s.first % nn::parameter_alignment != 0) {
      return {error_code::bad_extent, "arena.segments", "must ascend, each from a multiple of 4096 on"};
    }
    end = s.first + s.count;
  }
  if (end > a.size) return {error_code::bad_extent, "arena.segments", "must lie within the arena"};
  return a.segments.empty() ? status{} : check_pointer(a.segments_in_backend, "arena.segments_in_backend");
}

status launch_squares(const squares_args& a, index_t chunks, stream s) {
  constexpr index_t each = row_threads / 16;
  return launch_rows(squares_kernel, static_cast<std::uint64_t>(chunks_of(chunks, each)), row_threads, s, a);
}

template <class... Parameter, class... Argument>
status launch_one(void (*kernel)(Parameter...), unsigned threads, stream s, Argument... arguments) {
  if (status ready = check_ready(s); !ready.ok()) return ready;
  return launch(kernel, dim3{1, 1, 1}, dim3{threads, 1, 1}, 0, s, arguments...);
}

}  // namespace

status begin_step(const std::int32_t* targets, index_t count, nn::step_state* state, stream s) {
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  if (count > 0) {
    if (status c = check_pointer(targets, "targets"); !c.ok()) return c;
  }
  return launch_one(begin_step_kernel, tree_threads, s, begin_step_args{targets, count, state});
}
status set_gradient_scale(nn::step_state* state, stream s) {
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  return launch_one(gradient_scale_kernel, 1, s, state);
}
status next_micro_batch(nn::step_state* state, stream s) {
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  return launch_one(next_micro_batch_kernel, 1, s, state);
}

/// Tickets, stored before the records of softmax.
constexpr std::size_t ticket_bytes = 16;

std::size_t cross_entropy_workspace_bytes(index_t rows, index_t vocabulary) {
  const index_t chunks = chunks_of(vocabulary, nn::softmax_chunk);
  return chunks <= 1 ? 0 : ticket_bytes + static_cast<std::size_t>(rows * chunks) * sizeof(softmax_part);
}

status cross_entropy(nn::tensor_view logits, const nn::token_source& targets, index_t first, float* loss,
                     bool gradients, const nn::step_state* state, std::uint32_t* fault, void* workspace,
                     std::size_t workspace_bytes, stream s, bf16* narrow) {
  if (status c = check_rows(logits, 2, "logits"); !c.ok()) return c;
  if (logits.type != nn::dtype::fp32) return {error_code::bad_option, "logits", "must be FP32"};
  const index_t rows = logits.extent(0), vocabulary = logits.extent(1);
  if (logits.size() == 0) return {};
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  if (status c = check_pointer(targets.data, "targets"); !c.ok()) return c;
  if (status c = check_pointer(loss, "loss"); !c.ok()) return c;
  if (narrow != nullptr) {
    if (!gradients) return {error_code::bad_option, "narrow", "is for gradients, which are not asked for"};
    if (status c = check_pointer(narrow, "narrow"); !c.ok()) return c;
  }
  if (status c = check_optional(fault, "fault"); !c.ok()) return c;
  const std::size_t needed = cross_entropy_workspace_bytes(rows, vocabulary);
  if (status c = check_workspace(workspace, workspace_bytes, needed, 16); !c.ok()) return c;
  loss_args a;
  a.logits = static_cast<float*>(logits.data);
  a.stride = logits.stride(0);
  a.rows = rows;
  a.vocabulary = static_cast<unsigned>(vocabulary);
  a.chunks = static_cast<unsigned>(chunks_of(vocabulary, nn::softmax_chunk));
  a.targets = targets;
  a.first = first;
  a.loss = loss;
  a.state = state;
  a.fault = fault;
  a.gradients = gradients;
  a.vectors = has_vectors(logits);
  a.narrow = reinterpret_cast<std::uint16_t*>(narrow);
  a.narrow_vectors = vocabulary % 4 == 0 && reinterpret_cast<std::uintptr_t>(narrow) % 8 == 0;
  if (rows > 0x7FFFFFFF) return {error_code::bad_extent, "logits", "needs more than 2^31 blocks"};
  device_info device;
  if (status c = current_device(device); !c.ok()) return c;
  if (status c = check_stream(s); !c.ok()) return c;
  const softmax_order order = order_of(a, device.processors);
  a.by_chunks = known_divisor(a.chunks);
  if (order.tickets() > 0x7FFFFFFFu) return {error_code::bad_extent, "logits", "needs more than 2^31 blocks"};
  if (a.chunks > 1) {
    a.tickets = static_cast<std::uint32_t*>(workspace);
    a.parts = reinterpret_cast<softmax_part*>(static_cast<std::uint8_t*>(workspace) + ticket_bytes);
    if (status c = check_code(softmax_kernel); !c.ok()) return c;
    if (status c = fill(workspace, 0xFF, needed, s); !c.ok()) return c;
  }
  return launch(softmax_kernel, dim3{static_cast<unsigned>(order.tickets()), 1, 1}, dim3{softmax_threads, 1, 1}, 0, s,
                a, order);
}

std::size_t sum_losses_workspace_bytes(index_t n) { return n <= 0 ? 0 : static_cast<std::size_t>(n) * sizeof(double); }

status sum_losses(const float* loss, index_t n, nn::step_state* state, void* workspace, std::size_t workspace_bytes,
                  stream s) {
  if (n <= 0) return {};
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  if (status c = check_pointer(loss, "loss"); !c.ok()) return c;
  if (status c = check_workspace(workspace, workspace_bytes, sum_losses_workspace_bytes(n), 16); !c.ok()) return c;
  return launch_one(loss_sum_kernel, tree_threads, s, loss_sum_args{loss, n, static_cast<double*>(workspace), state});
}

std::size_t sum_squares_workspace_bytes(index_t size) {
  return static_cast<std::size_t>(chunks_of(size, nn::parameter_alignment)) * sizeof(double);
}

status sum_squares(const float* x, const nn::parameter_arena& arena, double* out, void* workspace,
                   std::size_t workspace_bytes, stream s) {
  if (status c = check_segments(arena); !c.ok()) return c;
  if (arena.segments.empty()) return {};
  if (status c = check_pointer(x, "x"); !c.ok()) return c;
  if (status c = check_pointer(out, "out"); !c.ok()) return c;
  if (status c = check_workspace(workspace, workspace_bytes, sum_squares_workspace_bytes(arena.size), 16); !c.ok())
    return c;
  const squares_args a{x, arena.size, static_cast<double*>(workspace), arena.segments_in_backend,
                       static_cast<index_t>(arena.segments.size())};
  if (status c = launch_squares(a, chunks_of(arena.size, nn::parameter_alignment), s); !c.ok()) return c;
  return launch_rows(squares_sum_kernel, arena.segments.size(), tree_threads, s,
                     squares_sum_args{a.partial, out, arena.segments_in_backend});
}

status gradient_norm(const nn::parameter_arena& arena, const nn::optimizer_config& config, nn::step_state* state,
                     void* workspace, std::size_t workspace_bytes, stream s) {
  if (status c = check_arena(arena, false); !c.ok()) return c;
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  if (status c = check_workspace(workspace, workspace_bytes, sum_squares_workspace_bytes(arena.size), 16); !c.ok())
    return c;
  squares_args squares;
  squares.x = arena.gradient;
  squares.size = arena.size;
  squares.partial = static_cast<double*>(workspace);
  const index_t chunks = chunks_of(arena.size, nn::parameter_alignment);
  if (status c = launch_squares(squares, chunks, s); !c.ok()) return c;
  const norm_state_args a{squares.partial, chunks, config, state, arena.gradient, arena.size};
  if (status c = launch_one(gradient_norm_kernel, tree_threads, s, a); !c.ok()) return c;
  return launch_rows(nonfinite_kernel, static_cast<std::uint64_t>(std::clamp<index_t>(chunks, 1, 1024)), row_threads, s,
                     a);
}

status adamw(const nn::parameter_arena& arena, const nn::optimizer_config& config, const nn::step_state* state,
             stream s) {
  if (status c = check_arena(arena, true); !c.ok()) return c;
  if (status c = check_segments(arena); !c.ok()) return c;
  if (status c = check_pointer(state, "state"); !c.ok()) return c;
  if (arena.segments.empty()) return {};
  const adamw_args a{config,
                     state,
                     arena.weight,
                     arena.m,
                     arena.v,
                     arena.gradient,
                     arena.segments_in_backend,
                     static_cast<index_t>(arena.segments.size())};
  const index_t end = arena.segments.back().first + arena.segments.back().count;
  return launch_rows(adamw_kernel, static_cast<std::uint64_t>(chunks_of(end, nn::parameter_alignment)), row_threads, s,
                     a);
}

}  // namespace rotoscale::gpu
