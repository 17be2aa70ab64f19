// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Operations that only an observed pass has. They write records and scratch memory only, so an observed step has the
// bits of any other step.
#pragma once

#include "rotoscale/llama/model_layout.hpp"

namespace rotoscale::llama {

/// Lays out the FP32 GEMMs that weight gradients are compared with. They read sources in place if the backend can.
/// Returns their workspace in bytes.
inline std::size_t model::lay_out_statistics(nn::memory_cursor& memory) {
  probes_.clear();
  if (!options_.training || !options_.statistics) return 0;
  static const nn::recipe exact = nn::presets::uniform("fp32", nn::operand_format::fp32, nn::operand_format::fp32);
  statistics_ = memory.array<linear_statistics>(category::workspace, observed_count());
  probes_.resize(static_cast<std::size_t>(observed_count()));
  index_t largest = 0;
  std::size_t gemm_bytes = 0;
  const auto probe = [&](const nn::linear& l, index_t observed, nn::const_tensor_view x, nn::const_tensor_view dy) {
    if (!l.shape().trains) return;
    const bool of_head = &l == &head_;
    gradient_probe& p = probes_[static_cast<std::size_t>(observed)];
    p.contract = ops_->contract(exact.wgrad, l.shape().out, l.shape().in, x.extent(0));
    if (!p.contract) return;  // this device adds no FP32 products
    if (!of_head) largest = std::max(largest, l.shape().out * l.shape().in);
    gemm_bytes = std::max(gemm_bytes, ops_->gemm_workspace_bytes(*p.contract, exact.wgrad, nn::gemm_kind::wgrad,
                                                                 l.shape().out, l.shape().in, x.extent(0)));
    const auto make = [&](nn::tensor_role tensor, nn::const_tensor_view source) {
      nn::operand_request r = l.request(tensor);
      r.source = source.type;
      r.rows = source.extent(0);
      r.row.reset();
      r.column = exact.wgrad.left;
      void* const at = memory.take(category::workspace, ops_->layout_operands(r).bytes);
      return memory.counts_only() ? nullptr : ops_->make_operands(r, at, source);
    };
    p.x = make(nn::tensor_role::x, x);
    p.dy = make(nn::tensor_role::dy, dy);
  };
  for_each_adapted([&](const nn::adapted_linear& own, layer_linear which, const layer& l) {
    const nn::const_tensor_view inputs[] = {l.normed1, l.attended, l.normed2, hidden_again(l)},
                                outputs[] = {d_qkv_, d_residual_, d_gate_up_, d_residual_};
    const auto at = static_cast<std::size_t>(which);
    probe(own, own.shape().layer, inputs[at], outputs[at]);
    for (std::size_t i = 0; i < own.adapters.size(); ++i) {
      const nn::adapter& beside = own.adapters[i];
      const adapter_parameters& numbers = l.numbers.adapters[at][i];
      probe(beside.a(), observed_number(numbers.a), beside.dropped(), beside.low_gradient());
      probe(beside.b(), observed_number(numbers.b), beside.low(), beside.rows_of(outputs[at]));
    }
  });
  const nn::head_chunk& chunk = head_chunks_.front();
  probe(head_, head_.shape().layer, normed_.part(0, chunk.first, chunk.count), logits_.part(0, 0, chunk.count));
  float* const shared = memory.array<float>(category::workspace, largest);
  for (gradient_probe& p : probes_) p.gradient = shared;
  probes_[static_cast<std::size_t>(head_.shape().layer)].gradient = head_probe_gradient_;
  return gemm_bytes;
}

/// The head's weight gradient in FP32. It is the largest, and shares memory with the backward pass of the layers, which
/// begins later.
inline void model::lay_out_head_probe(nn::memory_cursor& memory) {
  head_probe_gradient_ = nullptr;
  if (!options_.training || !options_.statistics || !head_.shape().trains) return;
  head_probe_gradient_ = memory.array<float>(category::workspace, head_.shape().out * head_.shape().in);
}

/// Memory for the recomputed input of `down`, whose own memory has other tensors by then.
inline nn::tensor_view model::hidden_again(const layer& l) const {
  return l.hidden.data == hidden_.data ? d_hidden_ : l.hidden;
}

/// Observes the forms of a tensor that exist.
inline void model::observe(const nn::pass& p, const nn::linear& l, nn::tensor_role tensor, nn::operand_set* set,
                           nn::const_tensor_view source) const {
  if (!p.observe || source.empty() || set == nullptr) return;
  for (const nn::operand_form form : {nn::operand_form::row, nn::operand_form::column}) {
    if (!set->request().recipe(form)) continue;
    nn::operand_statistics* const to = &statistics_[l.shape().layer].operands[operand_number(tensor, form)];
    ops_->observe(p.queue, {source, {set, form}, p.state}, {to});
  }
}

/// Observes the operands of a linear layer's forward GEMM.
inline void model::observe_inputs(const nn::pass& p, const nn::linear& l, std::size_t number,
                                  nn::const_tensor_view x) const {
  if (!p.observe) return;
  observe(p, l, nn::tensor_role::x, l.operands(nn::tensor_role::x), x);
  observe(p, l, nn::tensor_role::w, l.weights(), sources_[number]);
}

/// Computes the weight gradient in FP32. Call before dx is written, since dx may share memory with x.
inline void model::probe_gradient(const nn::pass& p, const nn::linear& l, index_t observed, nn::const_tensor_view x,
                                  nn::const_tensor_view dy) const {
  const gradient_probe& probe = probes_[static_cast<std::size_t>(observed)];
  if (!probe.contract) return;
  ops_->quantize(p.queue, {x, p.state}, {{probe.x.get(), false, true, {}}});
  ops_->quantize(p.queue, {dy, p.state}, {{probe.dy.get(), false, true, {}}});
  ops_->gemm(p.queue,
             {{probe.dy.get(), nn::operand_form::column},
              {probe.x.get(), nn::operand_form::column},
              *probe.contract,
              nn::operand_format::fp32,
              false},
             {nn::dense_tensor(probe.gradient, nn::dtype::fp32, {l.shape().out, l.shape().in})});
}

/// Compares the gradient, which was zero before this microbatch, with that of probe_gradient.
inline void model::compare_gradient(const nn::pass& p, const nn::linear& l, index_t observed,
                                    std::size_t number) const {
  const nn::tensor_view got = gradient(number);
  const gradient_probe& probe = probes_[static_cast<std::size_t>(observed)];
  if (got.empty() || !probe.contract) return;
  ops_->compare(p.queue, {static_cast<const float*>(got.data), probe.gradient, l.shape().out * l.shape().in},
                {&statistics_[observed].gradient});
}

/// Compares the gradients of A and B. Call right after the adapter's backward pass, while its low-rank tensors exist.
inline void model::observe_adapter(const nn::pass& p, const nn::adapter& beside, const adapter_parameters& numbers,
                                   nn::const_tensor_view dy) const {
  const index_t a = observed_number(numbers.a), b = observed_number(numbers.b);
  probe_gradient(p, beside.b(), b, beside.low(), beside.rows_of(dy));
  compare_gradient(p, beside.b(), b, numbers.b);
  probe_gradient(p, beside.a(), a, beside.dropped(), beside.low_gradient());
  compare_gradient(p, beside.a(), a, numbers.a);
}

/// Backward pass of a linear layer and its adapters. In an observed pass, `x` is the layer's input.
inline void model::backward_linear(const nn::pass& p, const layer& l, layer_linear which, nn::const_tensor_view x,
                                   nn::const_tensor_view dy, nn::tensor_view dx) const {
  const nn::adapted_linear* const linears[] = {&l.qkv, &l.o, &l.gate_up, &l.down};
  const std::size_t numbers[] = {l.numbers.qkv, l.numbers.o, l.numbers.gate_up, l.numbers.down};
  const nn::adapted_linear& own = *linears[static_cast<int>(which)];
  const std::size_t number = numbers[static_cast<int>(which)];
  if (p.observe) {
    observe(p, own, nn::tensor_role::dy, own.operands(nn::tensor_role::dy), dy);
    probe_gradient(p, own, own.shape().layer, x, dy);
  }
  own.backward(p, dx, gradient(number));
  if (p.observe) compare_gradient(p, own, own.shape().layer, number);
  const std::vector<adapter_parameters>& beside = l.numbers.adapters[static_cast<std::size_t>(which)];
  for (std::size_t i = 0; i < own.adapters.size(); ++i) {
    own.adapters[i].backward(p, dy, dx, gradients_of(beside[i]));
    if (p.observe) observe_adapter(p, own.adapters[i], beside[i], dy);
  }
}

/// head_loss with the first chunk observed.
inline void model::observe_head_loss(const nn::pass& p, const nn::head_args& a) const {
  for (std::size_t i = 0; i < a.chunks.size(); ++i) {
    nn::head_chunk_loss(*ops_, p.queue, a, i, p.state);
    if (i != 0) continue;
    const nn::head_chunk& chunk = a.chunks[0];
    const nn::const_tensor_view x = a.x.part(0, chunk.first, chunk.count), dy = a.logits.part(0, 0, chunk.count);
    observe(p, head_, nn::tensor_role::x, chunk.x, x);
    observe(p, head_, nn::tensor_role::w, a.w, sources_[parameters_.head()]);
    observe(p, head_, nn::tensor_role::dy, a.dlogits[0].get(), dy);
    probe_gradient(p, head_, head_.shape().layer, x, dy);
    compare_gradient(p, head_, head_.shape().layer, parameters_.head());
  }
  ops_->sum_losses(p.queue, {a.loss, tokens()}, {p.state});
}

}  // namespace rotoscale::llama
