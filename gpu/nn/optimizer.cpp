// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Launchers of gpu/api/nn.hpp for the step state, the loss and the optimizer.
#include "gpu/nn/optimizer.hpp"

#include <algorithm>

#include "gpu/api/quantize_state.hpp"
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

status check_arena(const nn::parameter_arena& a) {
  if (a.size < 0) return {error_code::bad_extent, "arena.size", "must not be negative"};
  if (a.size == 0) return {};
  if (status s = check_pointer(a.gradient, 16, "arena.gradient"); !s.ok()) return s;
  if (status s = check_pointer(a.weight, 16, "arena.weight"); !s.ok()) return s;
  if (status s = check_pointer(a.m, 16, "arena.m"); !s.ok()) return s;
  if (status s = check_optional(a.average, "arena.average"); !s.ok()) return s;
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

template <>
status launch<op::begin_step>(const device_call& call, const op::begin_step::in& i, const op::begin_step::out& o) {
  if (status c = check_pointer(o.state, "state"); !c.ok()) return c;
  if (i.count > 0) {
    if (status c = check_pointer(i.targets, "targets"); !c.ok()) return c;
  }
  return launch_one(begin_step_kernel, tree_threads, call.s, begin_step_args{i.targets, i.count, o.state});
}
template <>
status launch<op::set_gradient_scale>(const device_call& call, const op::set_gradient_scale::in&,
                                      const op::set_gradient_scale::out& o) {
  if (status c = check_pointer(o.state, "state"); !c.ok()) return c;
  return launch_one(gradient_scale_kernel, 1, call.s, o.state);
}
template <>
status launch<op::next_micro_batch>(const device_call& call, const op::next_micro_batch::in&,
                                    const op::next_micro_batch::out& o) {
  if (status c = check_pointer(o.state, "state"); !c.ok()) return c;
  return launch_one(next_micro_batch_kernel, 1, call.s, o.state);
}

/// Tickets, stored before the records of softmax.
constexpr std::size_t ticket_bytes = 16;

template <>
std::size_t workspace_bytes<op::cross_entropy>(const op::cross_entropy::in&, const op::cross_entropy::out& o) {
  const index_t chunks = chunks_of(o.logits.extent(1), nn::softmax_chunk);
  return chunks <= 1 ? 0 : ticket_bytes + static_cast<std::size_t>(o.logits.extent(0) * chunks) * sizeof(softmax_part);
}

template <>
status launch<op::cross_entropy>(const device_call& call, const op::cross_entropy::in& i,
                                 const op::cross_entropy::out& o) {
  return cross_entropy(call, i, o, nullptr);
}

status cross_entropy(const device_call& call, const op::cross_entropy::in& i, const op::cross_entropy::out& o,
                     bf16* narrow) {
  if (status c = check_rows(o.logits, 2, "logits"); !c.ok()) return c;
  if (o.logits.type != nn::dtype::fp32) return {error_code::bad_option, "logits", "must be FP32"};
  const index_t rows = o.logits.extent(0), vocabulary = o.logits.extent(1);
  if (o.logits.size() == 0) return {};
  if (status c = check_pointer(i.state, "state"); !c.ok()) return c;
  if (status c = check_pointer(i.targets.data, "targets"); !c.ok()) return c;
  if (status c = check_pointer(o.loss, "loss"); !c.ok()) return c;
  if (narrow != nullptr) {
    if (!i.gradients) return {error_code::bad_option, "narrow", "is for gradients, which are not asked for"};
    if (status c = check_pointer(narrow, "narrow"); !c.ok()) return c;
  }
  if (status c = check_optional(call.faults, "faults"); !c.ok()) return c;
  const std::size_t needed = workspace_bytes<op::cross_entropy>(i, o);
  if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
  loss_args a;
  a.logits = static_cast<float*>(o.logits.data);
  a.stride = o.logits.stride(0);
  a.rows = rows;
  a.vocabulary = static_cast<unsigned>(vocabulary);
  a.chunks = static_cast<unsigned>(chunks_of(vocabulary, nn::softmax_chunk));
  a.targets = i.targets;
  a.first = i.first;
  a.loss = o.loss;
  a.state = i.state;
  a.fault = call.faults == nullptr ? nullptr : call.faults + 1;
  a.gradients = i.gradients;
  a.vectors = has_vectors(o.logits);
  a.narrow = reinterpret_cast<std::uint16_t*>(narrow);
  a.narrow_vectors = vocabulary % 4 == 0 && reinterpret_cast<std::uintptr_t>(narrow) % 8 == 0;
  if (rows > 0x7FFFFFFF) return {error_code::bad_extent, "logits", "needs more than 2^31 blocks"};
  device_info device;
  if (status c = current_device(device); !c.ok()) return c;
  if (status c = check_stream(call.s); !c.ok()) return c;
  const softmax_order order = order_of(a, device.processors);
  a.by_chunks = known_divisor(a.chunks);
  if (order.tickets() > 0x7FFFFFFFu) return {error_code::bad_extent, "logits", "needs more than 2^31 blocks"};
  if (a.chunks > 1) {
    a.tickets = static_cast<std::uint32_t*>(call.workspace);
    a.parts = reinterpret_cast<softmax_part*>(static_cast<std::uint8_t*>(call.workspace) + ticket_bytes);
    if (status c = check_code(softmax_kernel); !c.ok()) return c;
    if (status c = fill(call.workspace, 0xFF, needed, call.s); !c.ok()) return c;
  }
  return launch(softmax_kernel, dim3{static_cast<unsigned>(order.tickets()), 1, 1}, dim3{softmax_threads, 1, 1}, 0,
                call.s, a, order);
}

template <>
std::size_t workspace_bytes<op::sum_losses>(const op::sum_losses::in& i, const op::sum_losses::out&) {
  return i.n <= 0 ? 0 : static_cast<std::size_t>(i.n) * sizeof(double);
}

template <>
status launch<op::sum_losses>(const device_call& call, const op::sum_losses::in& i, const op::sum_losses::out& o) {
  if (i.n <= 0) return {};
  if (status c = check_pointer(o.state, "state"); !c.ok()) return c;
  if (status c = check_pointer(i.loss, "loss"); !c.ok()) return c;
  const std::size_t needed = workspace_bytes<op::sum_losses>(i, o);
  if (status c = check_workspace(call.workspace, call.bytes, needed, 16); !c.ok()) return c;
  return launch_one(loss_sum_kernel, tree_threads, call.s,
                    loss_sum_args{i.loss, i.n, static_cast<double*>(call.workspace), o.state});
}

namespace {

/// Workspace of sums of squares over an arena, in bytes.
std::size_t squares_bytes(const nn::parameter_arena& arena) {
  return static_cast<std::size_t>(chunks_of(arena.size, nn::parameter_alignment)) * sizeof(double);
}

}  // namespace

template <>
std::size_t workspace_bytes<op::sum_squares>(const op::sum_squares::in& i, const op::sum_squares::out&) {
  return squares_bytes(i.arena);
}

template <>
status launch<op::sum_squares>(const device_call& call, const op::sum_squares::in& i, const op::sum_squares::out& o) {
  const nn::parameter_arena& arena = i.arena;
  if (status c = check_segments(arena); !c.ok()) return c;
  if (arena.segments.empty()) return {};
  if (status c = check_pointer(i.x, "x"); !c.ok()) return c;
  if (status c = check_pointer(o.squares, "squares"); !c.ok()) return c;
  if (status c = check_workspace(call.workspace, call.bytes, squares_bytes(arena), 16); !c.ok()) return c;
  const squares_args a{i.x, arena.size, static_cast<double*>(call.workspace), arena.segments_in_backend,
                       static_cast<index_t>(arena.segments.size())};
  if (status c = launch_squares(a, chunks_of(arena.size, nn::parameter_alignment), call.s); !c.ok()) return c;
  return launch_rows(squares_sum_kernel, arena.segments.size(), tree_threads, call.s,
                     squares_sum_args{a.partial, o.squares, arena.segments_in_backend});
}

template <>
status launch<op::square_chunks>(const device_call& call, const op::square_chunks::in& i,
                                 const op::square_chunks::out& o) {
  if (i.n <= 0) return {};
  if (status c = check_pointer(i.x, 16, "x"); !c.ok()) return c;
  if (status c = check_pointer(o.squares, "squares"); !c.ok()) return c;
  squares_args a;
  a.x = i.x;
  a.size = i.n;
  a.partial = o.squares;
  return launch_squares(a, chunks_of(i.n, nn::parameter_alignment), call.s);
}

template <>
status launch<op::gradient_norm>(const device_call& call, const op::gradient_norm::in& i,
                                 const op::gradient_norm::out& o) {
  if (status c = check_pointer(o.state, "state"); !c.ok()) return c;
  if (i.n > 0) {
    if (status c = check_pointer(i.gradient, 16, "gradient"); !c.ok()) return c;
  }
  if (i.chunks > 0) {
    if (status c = check_pointer(o.squares, "squares"); !c.ok()) return c;
  }
  const norm_state_args a{o.squares, i.chunks, i.config, o.state, i.gradient, i.n};
  if (status c = launch_one(gradient_norm_kernel, tree_threads, call.s, a); !c.ok()) return c;
  const index_t blocks = std::clamp<index_t>(chunks_of(i.n, nn::parameter_alignment), 1, 1024);
  return launch_rows(nonfinite_kernel, static_cast<std::uint64_t>(blocks), row_threads, call.s, a);
}

template <>
status launch<op::adamw>(const device_call& call, const op::adamw::in& i, const op::adamw::out& o) {
  const nn::parameter_arena& arena = o.arena;
  if (status c = check_arena(arena); !c.ok()) return c;
  if (status c = check_segments(arena); !c.ok()) return c;
  if (status c = check_pointer(i.state, "state"); !c.ok()) return c;
  if (arena.segments.empty()) return {};
  const adamw_args a{i.config,
                     i.state,
                     arena.weight,
                     arena.m,
                     arena.v,
                     arena.gradient,
                     arena.segments_in_backend,
                     static_cast<index_t>(arena.segments.size()),
                     arena.average};
  const index_t end = arena.segments.back().first + arena.segments.back().count;
  return launch_rows(adamw_kernel, static_cast<std::uint64_t>(chunks_of(end, nn::parameter_alignment)), row_threads,
                     call.s, a);
}

template <>
status launch<op::deoscillate>(const device_call& call, const op::deoscillate::in& i, const op::deoscillate::out& o) {
  const index_t n = i.quantized.size();
  if (n == 0) return {};
  if (i.quantized.type != nn::dtype::bf16) return {error_code::bad_option, "quantized", "must be BF16"};
  const nn::oscillation_state& own = o.state;
  for (const float* x : {static_cast<const float*>(o.weight), static_cast<const float*>(own.last),
                         static_cast<const float*>(own.last_quantized), static_cast<const float*>(own.moved),
                         static_cast<const float*>(own.moved_quantized)}) {
    if (status c = check_pointer(x, "state"); !c.ok()) return c;
  }
  const auto* const quantized = static_cast<const std::uint16_t*>(i.quantized.data);
  if (status c = check_pointer(quantized, "quantized"); !c.ok()) return c;
  const index_t blocks = std::min<index_t>(chunks_of(n, row_threads), 8192);
  return launch_rows(deoscillate_kernel, static_cast<std::uint64_t>(blocks), row_threads, call.s,
                     deoscillate_args{i.step, own, quantized, o.weight, n});
}

template <>
status launch<op::draw_normal>(const device_call& call, const op::draw_normal::in& i, const op::draw_normal::out& o) {
  const index_t n = o.x.size();
  if (n == 0) return {};
  if (o.x.type != nn::dtype::fp32) return {error_code::bad_option, "x", "must be FP32"};
  auto* const x = static_cast<float*>(o.x.data);
  if (status c = check_pointer(x, "x"); !c.ok()) return c;
  const index_t blocks = std::min<index_t>(chunks_of(n, 4 * row_threads), 8192);
  return launch_rows(draw_normal_kernel, static_cast<std::uint64_t>(blocks), row_threads, call.s,
                     draw_normal_args{i.how, x, n});
}

template <>
status launch<op::update_scales>(const device_call& call, const op::update_scales::in& i,
                                 const op::update_scales::out& o) {
  return update_scales(o.state, i.rule, call.s);
}

}  // namespace rotoscale::gpu
