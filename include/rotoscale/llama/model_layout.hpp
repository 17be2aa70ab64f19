// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where a model's memory lies: the same functions count bytes and give addresses; what lives at other times is shared.
#pragma once

#include <algorithm>
#include <utility>

#include "rotoscale/llama/kernel_refusal.hpp"
#include "rotoscale/llama/model_class.hpp"

namespace rotoscale::llama {

/// Calls f(linear layer, its layer_linear, the decoder layer).
template <class Function>
void model::for_each_adapted(const Function& f) {
  for (layer& l : layers_) {
    f(l.qkv, layer_linear::qkv, l);
    f(l.o, layer_linear::o, l);
    f(l.gate_up, layer_linear::gate_up, l);
    f(l.down, layer_linear::down, l);
  }
}

/// Calls f(linear layer, its weight's number): those of the model, then those that adapters are made of.
template <class Function>
void model::for_each_linear(const Function& f) {
  for_each_adapted([&](nn::linear& own, layer_linear which, const layer& l) { f(own, l.numbers.of(which)); });
  f(head_, parameters_.head());
  for_each_adapted([&](nn::adapted_linear& own, layer_linear which, const layer& l) {
    const std::vector<adapter_parameters>& numbers = l.numbers.adapters[static_cast<std::size_t>(which)];
    for (std::size_t i = 0; i < own.adapters.size(); ++i) {
      f(own.adapters[i].a(), numbers[i].a);
      f(own.adapters[i].b(), numbers[i].b);
    }
  });
}

/// The adapters beside a linear layer that is a target.
inline void model::make_adapters(nn::adapted_linear& beside, std::size_t of_layer, layer_linear linear) {
  for (const adapter_parameters& numbers : parameters_.layers()[of_layer].adapters[static_cast<std::size_t>(linear)]) {
    nn::adapter_shape s;
    s.base = beside.shape();
    s.base.trains = parameters_[numbers.a].trains;
    s.rank = parameters_[numbers.a].rows;
    s.scale = numbers.scale;
    s.dropout = options_.lora->dropout;
    s.part = numbers.target.slice;
    s.first_row = parameters_[numbers.b].base_row;
    s.rows = parameters_[numbers.b].rows;
    beside.adapters.emplace_back(s, adapter_recipe_);
  }
}

inline void model::make_linears(const nn::recipe& r) {
  stored_ = nn::storage_for(r.activations);
  exempt_recipe_ = nn::bf16_layers_of(r);
  adapter_recipe_ = nn::adapters_of(r);
  head_recipe_ = nn::head_of(r);
  head_recipe_.fprop.output = nn::operand_format::fp32;  // logits go straight into the loss
  const auto attention = ops_->contract(r.attention, config_.head_size());
  if (!attention) {
    throw std::invalid_argument("recipe " + r.name + ": " + attention_refusal(*ops_, r.attention, config_.head_size()));
  }
  attention_ = *attention;
  layers_.clear();
  layers_.resize(static_cast<std::size_t>(config_.num_hidden_layers));
  index_t id = 0;
  const auto make = [&](std::size_t number, const nn::linear_recipe& own, index_t tokens) {
    const parameter& p = parameters_[number];
    if (options_.training && !p.trains && redraws_signs_of_weights(own)) {
      throw std::invalid_argument("recipe " + r.name + ": " + p.name() +
                                  " is frozen and quantized once: its signs cannot be drawn anew each step");
    }
    return nn::adapted_linear({id++, p.rows, p.cols, tokens, p.trains, options_.training, stored_, stored_}, own);
  };
  const auto agree = [&](auto& made, std::size_t number) {
    const auto refused = made.take_contracts(*ops_);
    if (!refused) return;
    const bool is_head = number == parameters_.head();
    throw std::invalid_argument("recipe " + r.name + ": " +
                                gemm_refusal(*ops_, *refused, is_head ? "the output head" : parameters_[number].name(),
                                             is_head, config_, options_));
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const layer_parameters& n = parameters_.layers()[i];
    const nn::linear_recipe& own = recipe_of(r, static_cast<int>(i));
    layers_[i].numbers = n;
    layers_[i].qkv = make(n.qkv, own, tokens());
    layers_[i].o = make(n.o, own, tokens());
    layers_[i].gate_up = make(n.gate_up, own, tokens());
    layers_[i].down = make(n.down, own, tokens());
  }
  for_each_adapted([&](nn::adapted_linear& own, layer_linear which, const layer& l) {
    make_adapters(own, static_cast<std::size_t>(&l - layers_.data()), which);
    agree(own, l.numbers.of(which));
  });
  head_ = make(parameters_.head(), head_recipe_, std::min(tokens(), options_.head_chunk));
  agree(head_, parameters_.head());
}

inline void model::lay_out_parameters(nn::memory_cursor& memory) {
  const index_t n = parameters_.arena_size();
  masters_ = memory.array<float>(category::masters, n);
  gradients_ = memory.array<float>(category::gradients, n);
  m_ = memory.array<float>(category::moments, n);
  v_ = memory.array<float>(category::moments, n);
  segments_ = memory.array<nn::parameter_arena::segment>(category::weights,
                                                         static_cast<index_t>(parameters_.segments().size()));
  // A frozen matrix of a linear layer needs no FP32 values, unless an operand is these.
  std::vector<bool> keeps(parameters_.all().size(), true);
  index_t largest = 0;
  for_each_linear([&](const nn::linear& l, std::size_t number) {
    const bool operands_only =
        !parameters_[number].trains && number != parameters_.embedding() && !l.keeps_source(*ops_, nn::tensor_role::w);
    keeps[number] = !operands_only;
    if (operands_only) largest = std::max(largest, parameters_[number].size());
  });
  // What every recipe keeps comes first, so that it stays where it is when the recipe changes.
  std::vector<bool> is_matrix(keeps.size(), false);
  for_each_linear(
      [&](const nn::linear&, std::size_t number) { is_matrix[number] = number != parameters_.embedding(); });
  sources_.assign(keeps.size(), {});
  for (const bool matrices : {false, true}) {
    for (std::size_t i = 0; i < keeps.size(); ++i) {
      const parameter& p = parameters_[i];
      if (is_matrix[i] != matrices) continue;
      float* at = nullptr;
      if (p.trains) {
        at = memory.counts_only() ? nullptr : masters_ + p.offset;
      } else if (keeps[i]) {
        at = memory.array<float>(category::weights, p.size());
      }
      sources_[i] = dense(at, p);
    }
  }
  keeps_source_ = std::move(keeps);
  staging_ = memory.array<float>(category::weights, largest);
}

/// Operands without a source stay where they are if they are the same under both recipes. The head's are, under almost
/// all recipes, so they come first.
inline void model::lay_out_weights(nn::memory_cursor& memory, bool keep, const nn::recipe& r) {
  std::size_t n = 0;
  for_each_linear([&](nn::linear&, std::size_t) { ++n; });
  std::vector<weight_location> before = std::exchange(weights_, std::vector<weight_location>(n));
  before.resize(n);
  prepared_.resize(n);
  const auto place = [&](nn::linear& l, std::size_t number, std::size_t i) {
    const bool base = parameters_[number].kind == parameter_kind::base;
    const category own = base ? category::quantized : category::adapters;
    weight_location& w = weights_[i];
    w.number = number;
    w.layer = l.shape().layer;
    w.trains = l.shape().trains;
    w.has_source = keeps_source_[number];
    w.offset = memory.mark(own);
    w.request = l.request(nn::tensor_role::w);
    w.bytes = ops_->layout_operands(w.request).bytes;
    w.fp8 = r.fp8;
    w.at = l.lay_out(*ops_, memory, own, nn::tensor_role::w, sources_[number]);
    const bool stays = !w.has_source && w.at != nullptr && before[i].at == w.at && before[i].request == w.request;
    if (!keep && !stays) prepared_[i] = {};
  };
  const auto head = static_cast<std::size_t>(linear_count() - 1);
  place(head_, parameters_.head(), head);
  std::size_t i = 0;
  for_each_linear([&](nn::linear& l, std::size_t number) {
    if (i != head) place(l, number, i);
    ++i;
  });
}

/// A tensor that the backward pass reads: the layer's own, or the shared one with an 8-bit copy kept by the layer.
inline nn::tensor_view model::keep(nn::memory_cursor& memory, layer& l, nn::tensor_view shared) {
  if (!packs()) return memory.tensor(category::activations, stored_, tokens(), shared.extent(1));
  nn::operand_request r{nn::tensor_role::x, 0, stored_, tokens(), shared.extent(1), kept_mxfp8, {}};
  void* const at = memory.take(category::activations, ops_->layout_operands(r).bytes);
  l.packed.push_back({memory.counts_only() ? nullptr : ops_->make_operands(r, at, shared), shared});
  return shared;
}

/// A tensor that is made to be quantized is kept only where an operand is the tensor itself.
inline nn::tensor_view model::made_for(nn::memory_cursor& memory, const nn::linear& consumer,
                                       nn::tensor_view shared) const {
  if (!options_.training || !consumer.keeps_source(*ops_, nn::tensor_role::x)) return shared;
  return memory.tensor(category::activations, stored_, tokens(), shared.extent(1));
}

inline void model::lay_out_inputs(nn::memory_cursor& memory, nn::linear& consumer, nn::tensor_view x) {
  const category own = options_.training ? category::activations : category::workspace;
  consumer.lay_out(*ops_, memory, own, nn::tensor_role::x, x);
}
inline void model::lay_out_adapters(nn::memory_cursor& memory, nn::adapted_linear& beside) {
  for (nn::adapter& own : beside.adapters) own.lay_out_forward(*ops_, memory);
}

/// From a layer's normed input to the output projection's.
inline void model::lay_out_attention(nn::memory_cursor& memory, layer& l) {
  const index_t n = tokens();
  lay_out_adapters(memory, l.qkv);
  l.rstd1 = memory.array<float>(category::activations, n);
  l.qkv_out = keep(memory, l, qkv_out_);
  const bool is_operand = options_.training && l.o.keeps_source(*ops_, nn::tensor_role::x);
  l.attended = is_operand ? made_for(memory, l.o, attended_) : keep(memory, l, attended_);
  l.lse = memory.array<float>(category::activations, n * config_.num_attention_heads);
  lay_out_inputs(memory, l.o, l.attended);
  lay_out_adapters(memory, l.o);
}

/// From the normed stream behind attention to the down projection's input.
inline void model::lay_out_mlp(nn::memory_cursor& memory, layer& l) {
  lay_out_adapters(memory, l.gate_up);
  l.rstd2 = memory.array<float>(category::activations, tokens());
  l.gate_up_out = keep(memory, l, gate_up_out_);
  lay_out_adapters(memory, l.down);
}

/// One part of all layers; `shared`: in the same memory, one after the other.
template <class Part>
void model::lay_out_part(nn::memory_cursor& memory, bool shared, const Part& part) {
  constexpr category both[] = {category::activations, category::workspace};
  std::size_t begin[2], end[2];
  for (int c = 0; c < 2; ++c) begin[c] = end[c] = memory.mark(both[c]);
  for (layer& l : layers_) {
    for (int c = 0; c < 2 && shared; ++c) memory.rewind(both[c], begin[c]);
    part(l);
    for (int c = 0; c < 2; ++c) end[c] = std::max(end[c], memory.mark(both[c]));
  }
  for (int c = 0; c < 2; ++c) memory.rewind(both[c], end[c]);
}

/// The residual stream at each layer's input; two alternating buffers if it is not kept.
inline void model::lay_out_streams(nn::memory_cursor& memory) {
  const index_t n = tokens(), d = config_.hidden_size;
  const auto tensor = [&] { return memory.tensor(category::activations, stored_, n, d); };
  const nn::tensor_view streams[2] = {tensor(), tensor()};
  for (std::size_t i = 0; i <= layers_.size(); ++i) {
    const bool alone = options_.training && !packs() && i > 1;
    const nn::tensor_view here = alone ? tensor() : streams[i % 2];
    (i < layers_.size() ? layers_[i].input : last_) = here;
    if (packs() && i < layers_.size()) keep(memory, layers_[i], here);
  }
}

inline void model::lay_out_decoder(nn::memory_cursor& memory) {
  const index_t n = tokens(), d = config_.hidden_size, f = config_.intermediate_size;
  const index_t q = config_.query_size(), qkv = q + 2 * config_.key_value_size();
  // Extents at least; memory where it is shared.
  const auto whole = [&](index_t cols) {
    if (packs()) return memory.tensor(category::workspace, stored_, n, cols);
    return nn::dense_tensor(nullptr, stored_, {n, cols});
  };
  qkv_out_ = whole(qkv);
  attended_ = whole(q);
  middle_ = whole(d);
  gate_up_out_ = whole(2 * f);
  lay_out_streams(memory);
  // Without a backward pass, or where it computes a part again, all layers share that part's memory.
  const bool once = !options_.training;
  const bool made_again = once || recomputes(recompute_part::elementwise);
  const bool attention_again = once || recomputes(recompute_part::attention);
  const bool mlp_again = once || recomputes(recompute_part::mlp);
  // What a norm or SwiGLU makes for the GEMM behind it.
  const auto lay_out_made = [&](bool again, auto consumer, nn::tensor_view layer::*made, nn::tensor_view shared) {
    lay_out_part(memory, made_again || again, [&](layer& l) {
      l.*made = made_for(memory, l.*consumer, shared);
      lay_out_inputs(memory, l.*consumer, l.*made);
    });
  };
  lay_out_made(attention_again, &layer::qkv, &layer::normed1, normed_);
  lay_out_part(memory, attention_again, [&](layer& l) { lay_out_attention(memory, l); });
  lay_out_part(memory, once || options_.recompute == recompute_part::layer,
               [&](layer& l) { l.middle = keep(memory, l, middle_); });
  lay_out_made(mlp_again, &layer::gate_up, &layer::normed2, normed_);
  lay_out_part(memory, mlp_again, [&](layer& l) { lay_out_mlp(memory, l); });
  lay_out_made(mlp_again, &layer::down, &layer::hidden, hidden_);
}

inline void model::lay_out_gradients(nn::memory_cursor& memory) {
  const index_t n = tokens(), f = config_.intermediate_size;
  const index_t q = config_.query_size(), qkv = q + 2 * config_.key_value_size();
  const auto tensor = [&](index_t cols) { return memory.tensor(category::workspace, stored_, n, cols); };
  const auto operands = [&](nn::adapted_linear layer::*which, nn::tensor_view dy) {
    const std::size_t mark = memory.mark(category::workspace);
    for (layer& l : layers_) {
      memory.rewind(category::workspace, mark);
      (l.*which).lay_out(*ops_, memory, category::workspace, nn::tensor_role::dy, dy);
      (l.*which).lay_out_adapters_backward(*ops_, memory, dy);
    }
  };
  const std::size_t mark = memory.mark(category::workspace);
  d_hidden_ = tensor(f);
  d_gate_up_ = tensor(2 * f);
  const std::size_t mlp = memory.mark(category::workspace);
  operands(&layer::down, d_residual_);
  memory.rewind(category::workspace, mlp);
  operands(&layer::gate_up, d_gate_up_);
  memory.rewind(category::workspace, mark);
  d_attended_ = tensor(q);
  d_qkv_ = tensor(qkv);
  const std::size_t attention = memory.mark(category::workspace);
  operands(&layer::o, d_residual_);
  memory.rewind(category::workspace, attention);
  operands(&layer::qkv, d_qkv_);
}

inline void model::lay_out(nn::memory_cursor& memory, const nn::recipe& r, bool same_recipe) {
  const index_t n = tokens(), d = config_.hidden_size, f = config_.intermediate_size;
  make_linears(r);
  lay_out_parameters(memory);
  const auto table = static_cast<index_t>(positions() * config_.head_size() / 2);
  cosine_ = memory.array<float>(category::weights, table);
  sine_ = memory.array<float>(category::weights, table);
  lay_out_weights(memory, same_recipe, r);
  scales_ = nn::delayed_scaling_state(memory, linear_count(), r);

  lay_out_cache(memory);
  loss_ = memory.array<float>(category::workspace, n);
  normed_ = memory.tensor(category::workspace, stored_, n, d);
  branch_ = memory.tensor(category::workspace, stored_, n, d);
  rstd_ = memory.array<float>(category::activations, n);
  const std::size_t forward = memory.mark(category::workspace);
  hidden_ = memory.tensor(category::workspace, stored_, n, f);
  lay_out_decoder(memory);
  // A backward pass that computes layers again needs the forward pass's memory beside its own.
  const bool again = options_.recompute != recompute_part::none || packs();
  if (!(options_.training && again)) memory.rewind(category::workspace, forward);
  if (options_.training) d_residual_ = memory.tensor(category::workspace, stored_, n, d);
  const std::size_t backward = memory.mark(category::workspace);
  std::optional<nn::memory_cursor> lent = borrow_gradients(memory);
  lay_out_head(lent ? *lent : memory);
  lay_out_head_probe(memory);
  memory.rewind(category::workspace, backward);
  if (options_.training) lay_out_gradients(memory);

  // Behind everything: an operation's own memory is in use at any time.
  memory.rewind(category::workspace, memory.plan()[category::workspace]);
  nn::workspace_request room = largest_operations();
  room.gemm_bytes = std::max(room.gemm_bytes, lay_out_statistics(memory));
  workspace_bytes_ = ops_->workspace_bytes(room);
  workspace_ = memory.take(category::workspace, workspace_bytes_);
}

/// The largest extents of the passes.
inline nn::workspace_request model::largest_operations() {
  const index_t n = tokens(), d = config_.hidden_size, f = config_.intermediate_size;
  const index_t q = config_.query_size(), qkv = q + 2 * config_.key_value_size();
  nn::workspace_request room{n, 0, 0, d, config_.num_attention_heads, config_.vocab_size, parameters_.arena_size()};
  room.features = std::max({d, f, qkv});
  room.sequence = positions();
  room.head_dim = config_.head_size();
  room.attention = attention_;
  for_each_linear(
      [&](const nn::linear& l, std::size_t) { room.gemm_bytes = std::max(room.gemm_bytes, l.workspace_bytes(*ops_)); });
  if (options_.training && options_.statistics) {
    room.observed_rows = n;
    for_each_linear([&](const nn::linear& l, std::size_t) {
      room.observed_rows = std::max({room.observed_rows, l.shape().in, l.shape().out});
      room.observed_elements = std::max(room.observed_elements, l.shape().in * l.shape().out);
    });
  }
  if (stored_ == nn::dtype::bf16) {
    room.widest = std::max({2 * f, d, qkv});
  }
  for_each_adapted([&](const nn::adapted_linear& l, layer_linear, const layer&) {
    for (const nn::adapter& own : l.adapters) room.widest = std::max(room.widest, own.shape().rank);  // stored as BF16
  });
  return room;
}

}  // namespace rotoscale::llama
