// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The layers and the optimizer of device_backend: each is its launcher, with the queue's workspace.
#include "gpu/api/attention.hpp"
#include "gpu/api/nn.hpp"
#include "gpu/api/statistics.hpp"
#include "gpu/train/backend.hpp"

namespace rotoscale::gpu {

namespace {

std::size_t bytes_of(const nn::const_tensor_view& x) { return static_cast<std::size_t>(x.size() * size_of(x.type)); }
std::size_t bytes_of(index_t floats) { return static_cast<std::size_t>(floats) * sizeof(float); }

/// launch(what the target is...) once its words are drawn.
template <class Launch>
status launch_into(const nn::quantize_target& to, const operands::fused_target& target, const nn::step_state* state,
                   stream s, const Launch& launch) {
  if (const status drawn = static_cast<const operands&>(*to.set).draw(to, state, s); !drawn.ok()) return drawn;
  return std::visit([&](const auto& t) { return t.apply(launch); }, target);
}

}  // namespace

std::size_t device_backend::workspace_bytes(const nn::workspace_request& r) const {
  return std::max({r.gemm_bytes, embedding_backward_workspace_bytes(r.tokens, r.vocabulary),
                   rmsnorm_backward_workspace_bytes(r.tokens, r.hidden),
                   cross_entropy_workspace_bytes(r.tokens, r.vocabulary), sum_losses_workspace_bytes(r.tokens),
                   attention_backward_workspace_bytes(1, r.tokens, r.heads), sum_squares_workspace_bytes(r.parameters),
                   observe_workspace_bytes(r.observed_rows), compare_workspace_bytes(r.observed_elements)});
}

std::optional<nn::attention_contract> device_backend::contract(const std::string& attention, index_t head_dim) const {
  const auto found = nn::find_attention_contract(attention);
  return found && runs_attention(*found, head_dim, device_) ? found : std::nullopt;
}

void device_backend::begin_step(nn::queue q, const std::int32_t* targets, index_t count, nn::step_state* state) {
  run(q, {"begin_step", 0.0, bytes_of(count)}, [&] { return gpu::begin_step(targets, count, state, of(q).stream); });
}
void device_backend::set_gradient_scale(nn::queue q, nn::step_state* state) {
  run(q, {"set_gradient_scale"}, [&] { return gpu::set_gradient_scale(state, of(q).stream); });
}
void device_backend::next_micro_batch(nn::queue q, nn::step_state* state) {
  run(q, {"next_micro_batch"}, [&] { return gpu::next_micro_batch(state, of(q).stream); });
}

void device_backend::embedding_forward(nn::queue q, const nn::token_source& tokens, nn::const_tensor_view table,
                                       nn::tensor_view y, const nn::step_state* state) {
  run(q, {"embedding_forward", 0.0, 2 * bytes_of(y)},
      [&] { return gpu::embedding_forward(tokens, table, y, state, of(q).faults, of(q).stream); });
}
void device_backend::embedding_backward(nn::queue q, const nn::token_source& tokens, nn::const_tensor_view dy,
                                        nn::tensor_view dtable, const nn::step_state* state) {
  run(q, {"embedding_backward", 0.0, bytes_of(dy) + 2 * bytes_of(dy.size())}, [&] {
    const device_queue& on = of(q);
    return gpu::embedding_backward(tokens, dy, dtable, state, on.workspace, on.workspace_bytes, on.stream);
  });
}
void device_backend::rmsnorm_forward(nn::queue q, nn::const_tensor_view x, const float* gain, float eps,
                                     nn::tensor_view y, float* rstd) {
  run(q, {"rmsnorm_forward", 0.0, 2 * bytes_of(x)},
      [&] { return gpu::rmsnorm_forward(x, gain, eps, y, rstd, of(q).stream); });
}
void device_backend::rmsnorm_backward(nn::queue q, nn::const_tensor_view dy, nn::const_tensor_view x, const float* gain,
                                      const float* rstd, nn::tensor_view dx, float* dgain) {
  run(q, {"rmsnorm_backward", 0.0, 4 * bytes_of(x)}, [&] {
    const device_queue& on = of(q);
    return gpu::rmsnorm_backward(dy, x, gain, rstd, dx, dgain, on.workspace, on.workspace_bytes, on.stream);
  });
}
void device_backend::rope(nn::queue q, nn::tensor_view x, const float* cosine, const float* sine, bool inverse) {
  run(q, {"rope", 0.0, 2 * bytes_of(x)}, [&] { return gpu::rope(x, cosine, sine, inverse, of(q).stream); });
}
void device_backend::rope_both(nn::queue q, nn::tensor_view queries, nn::tensor_view keys, const float* cosine,
                               const float* sine, bool inverse) {
  run(q, {"rope", 0.0, 2 * (bytes_of(queries) + bytes_of(keys))},
      [&] { return gpu::rope_both(queries, keys, cosine, sine, inverse, of(q).stream); });
}
void device_backend::attention_forward(nn::queue q, const nn::attention_tensors& t,
                                       const nn::attention_contract& contract, const nn::step_state* state) {
  run(q, {"attention_forward", 0.0, bytes_of(t.q) + bytes_of(t.k) + bytes_of(t.v) + bytes_of(t.o)},
      [&] { return gpu::attention_forward(contract, t, state, of(q).stream); });
}
void device_backend::attention_backward(nn::queue q, const nn::attention_tensors& t, const nn::attention_gradients& d,
                                        const nn::attention_contract& contract, const nn::step_state* state) {
  run(q, {"attention_backward", 0.0, 2 * (bytes_of(t.q) + bytes_of(t.k) + bytes_of(t.v) + bytes_of(t.o))}, [&] {
    const device_queue& on = of(q);
    return gpu::attention_backward(contract, t, d, state, on.workspace, on.workspace_bytes, on.stream);
  });
}
void device_backend::swiglu_forward(nn::queue q, nn::const_tensor_view gate_up, nn::tensor_view h) {
  run(q, {"swiglu_forward", 0.0, bytes_of(gate_up) + bytes_of(h)},
      [&] { return gpu::swiglu_forward(gate_up, h, of(q).stream); });
}
void device_backend::swiglu_backward(nn::queue q, nn::const_tensor_view dh, nn::const_tensor_view gate_up,
                                     nn::tensor_view d_gate_up) {
  run(q, {"swiglu_backward", 0.0, bytes_of(dh) + 2 * bytes_of(gate_up)},
      [&] { return gpu::swiglu_backward(dh, gate_up, d_gate_up, of(q).stream); });
}
void device_backend::add(nn::queue q, nn::const_tensor_view x, nn::const_tensor_view y, nn::tensor_view sum) {
  run(q, {"add", 0.0, 3 * bytes_of(x)}, [&] { return gpu::add(x, y, sum, of(q).stream); });
}
void device_backend::dropout(nn::queue q, nn::const_tensor_view x, const nn::dropout_args& args, nn::tensor_view y,
                             bool accumulate, const nn::step_state* state) {
  run(q, {"dropout", 0.0, bytes_of(x) + (accumulate ? 2 : 1) * bytes_of(y)},
      [&] { return gpu::dropout(x, args, y, accumulate, state, of(q).stream); });
}
void device_backend::residual_norm(nn::queue q, const nn::residual_norm_args& a, const nn::step_state* state) {
  const std::size_t bytes = (a.branch.empty() ? 2 : 4) * bytes_of(a.x);
  if (const auto target = operands::one_launch(a.to)) {
    nn::residual_norm_args own = a;
    if (!a.to.keeps_source) own.y = {};
    run(q, {"residual_norm_quantize", 0.0, bytes}, [&] {
      return launch_into(a.to, *target, state, of(q).stream,
                         [&](const auto&... to) { return gpu::residual_norm_quantize(own, to..., of(q).stream); });
    });
    return;
  }
  run(q, {"residual_norm", 0.0, bytes}, [&] { return gpu::residual_norm(a, of(q).stream); });
  if (a.to.set != nullptr) quantize(q, a.y, a.to, state);
}
void device_backend::swiglu_quantize(nn::queue q, nn::const_tensor_view gate_up, nn::tensor_view h,
                                     const nn::quantize_target& to, const nn::step_state* state) {
  const auto target = operands::one_launch(to);
  if (!target) return backend::swiglu_quantize(q, gate_up, h, to, state);
  run(q, {"swiglu_quantize", 0.0, bytes_of(gate_up) + (to.keeps_source ? bytes_of(h) : 0)}, [&] {
    return launch_into(to, *target, state, of(q).stream, [&](const auto&... into) {
      return gpu::swiglu_quantize(gate_up, to.keeps_source ? h : nn::tensor_view{}, into..., of(q).stream);
    });
  });
}
void device_backend::swiglu_backward_quantize(nn::queue q, nn::const_tensor_view dh, nn::const_tensor_view gate_up,
                                              nn::tensor_view d_gate_up, const nn::quantize_target& to,
                                              const nn::step_state* state) {
  const auto target = operands::one_launch(to);
  const auto* const blocks = target ? std::get_if<operands::block_target>(&*target) : nullptr;
  // A block of a row lies in one half, and what a half's rows begin with is aligned.
  if (!target || (blocks != nullptr && (dh.extent(1) % 32 != 0 || blocks->blocks.rows != 1))) {
    return backend::swiglu_backward_quantize(q, dh, gate_up, d_gate_up, to, state);
  }
  const std::size_t bytes = bytes_of(dh) + bytes_of(gate_up) + (to.keeps_source ? bytes_of(d_gate_up) : 0);
  run(q, {"swiglu_backward_quantize", 0.0, bytes}, [&] {
    return launch_into(to, *target, state, of(q).stream, [&](const auto&... into) {
      return gpu::swiglu_backward_quantize(dh, gate_up, to.keeps_source ? d_gate_up : nn::tensor_view{}, into...,
                                           of(q).stream);
    });
  });
}
void device_backend::cross_entropy(nn::queue q, nn::tensor_view logits, const nn::token_source& targets, index_t first,
                                   float* loss, bool gradients, const nn::step_state* state) {
  run(q, {"cross_entropy", 0.0, (gradients ? 2 : 1) * bytes_of(logits)}, [&] {
    const device_queue& on = of(q);
    return gpu::cross_entropy(logits, targets, first, loss, gradients, state, on.faults + 1, on.workspace,
                              on.workspace_bytes, on.stream);
  });
}
void device_backend::cross_entropy_quantize(nn::queue q, nn::tensor_view logits, const nn::token_source& targets,
                                            index_t first, float* loss, const nn::quantize_target& to,
                                            const nn::step_state* state) {
  bf16* const narrow = to.keeps_source ? nullptr : operands::only_bf16(to);
  if (narrow == nullptr) return backend::cross_entropy_quantize(q, logits, targets, first, loss, to, state);
  run(q, {"cross_entropy", 0.0, bytes_of(logits) * 3 / 2}, [&] {
    const device_queue& on = of(q);
    return gpu::cross_entropy(logits, targets, first, loss, true, state, on.faults + 1, on.workspace,
                              on.workspace_bytes, on.stream, narrow);
  });
}
void device_backend::sum_losses(nn::queue q, const float* loss, index_t n, nn::step_state* state) {
  run(q, {"sum_losses", 0.0, bytes_of(n)}, [&] {
    const device_queue& on = of(q);
    return gpu::sum_losses(loss, n, state, on.workspace, on.workspace_bytes, on.stream);
  });
}
void device_backend::sum_squares(nn::queue q, const float* x, const nn::parameter_arena& arena, double* out) {
  run(q, {"sum_squares", 0.0, bytes_of(arena.size)}, [&] {
    const device_queue& on = of(q);
    return gpu::sum_squares(x, arena, out, on.workspace, on.workspace_bytes, on.stream);
  });
}
void device_backend::gradient_norm(nn::queue q, const nn::parameter_arena& arena, const nn::optimizer_config& config,
                                   nn::step_state* state) {
  run(q, {"gradient_norm", 0.0, bytes_of(arena.size)}, [&] {
    const device_queue& on = of(q);
    return gpu::gradient_norm(arena, config, state, on.workspace, on.workspace_bytes, on.stream);
  });
}
void device_backend::adamw(nn::queue q, const nn::parameter_arena& arena, const nn::optimizer_config& config,
                           const nn::step_state* state) {
  run(q, {"adamw", 0.0, 7 * bytes_of(arena.size)}, [&] { return gpu::adamw(arena, config, state, of(q).stream); });
}

}  // namespace rotoscale::gpu
