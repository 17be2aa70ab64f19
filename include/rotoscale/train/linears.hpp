// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The linear layers of a model under a recipe, with their adapters and contracts.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "rotoscale/train/weights.hpp"

namespace rotoscale::train {

using nn::all_gradients;
using nn::kept_format;
using nn::linear_statistics;
using nn::operand_number;
using nn::operands_per_linear;
using nn::recompute_part;

/// Extents and modes of a model, its adapters, and the parameters that train.
struct model_options : nn::pass_options {
  std::optional<lora_config> lora;               ///< adapters of frozen layers; null: none
  std::function<bool(const parameter&)> trains;  ///< parameters that train; null: all, or with `lora` the adapters
  bool averages = false;                         ///< keep a moving average of the parameters that train
};

/// Number of the statistics of an adapter's matrix, by its parameter. Statistics of linear layers precede them.
inline index_t record_of(const parameter_list& list, std::size_t parameter) {
  return static_cast<index_t>(list.linears()) + 1 + static_cast<index_t>(parameter - list.base_count());
}
/// Number of all statistics.
inline index_t record_count(const parameter_list& list) { return record_of(list, list.all().size()); }

/// Linear layers of a model's blocks.
class model_linears {
 public:
  model_linears() = default;
  model_linears(const model_linears&) = delete;
  model_linears& operator=(const model_linears&) = delete;

  /// Makes all layers under recipe `r`, which must outlive them. Throws std::invalid_argument if the backend does not
  /// support a GEMM.
  void make(nn::backend& ops, const architecture& shape, const block_list& blocks, const model_options& options,
            const parameter_list& list, const nn::recipe& r);

  /// Layers by number, the head last.
  const std::vector<nn::adapted_linear*>& layers() const { return layers_; }
  /// The same, then the matrices of adapters.
  const std::vector<nn::linear*>& all() const { return all_; }
  /// Dtype of activations.
  nn::dtype stored() const { return stored_; }

  /// A layer in the middle of the model, not exempt from the recipe; for logs.
  const nn::linear& middle() const { return *middle_; }
  /// A layer that the recipe leaves in BF16, or null; for logs.
  const nn::linear* exempt() const {
    const auto found = std::find_if(layers_.begin(), layers_.end(), [&](auto* l) { return &l->current() == &exempt_; });
    return found == layers_.end() ? nullptr : *found;
  }
  /// An adapter's first matrix, or null; for logs.
  const nn::linear* adapter() const { return all_.size() == layers_.size() ? nullptr : all_[layers_.size()]; }

 private:
  void make_adapters(nn::adapted_linear& l, const parameter_list& list, double dropout);

  nn::linear_recipe head_, adapters_, exempt_;
  nn::dtype stored_ = nn::dtype::fp32;
  std::vector<nn::adapted_linear*> layers_;
  std::vector<nn::linear*> all_;
  const nn::linear* middle_ = nullptr;
};

inline void model_linears::make_adapters(nn::adapted_linear& l, const parameter_list& list, double dropout) {
  for (const adapter_parameters& own : list.adapters()) {
    if (own.linear != l.shape().layer) continue;
    nn::adapter_shape s;
    s.base = l.shape();
    s.base.trains = list[own.a].trains;
    s.rank = list[own.a].rows;
    s.scale = own.scale;
    s.dropout = dropout;
    s.part = own.target.slice;
    s.first_row = list[own.b].base_row;
    s.rows = list[own.b].rows;
    nn::adapter& made = l.adapters.emplace_back(s, adapters_);
    made.a().w.number = own.a;
    made.b().w.number = own.b;
    made.a().record = record_of(list, own.a);
    made.b().record = record_of(list, own.b);
  }
}

/// Names of extents, for the refusal of a GEMM.
inline std::vector<nn::named_extent> extents_of(const architecture& shape, const model_options& options, bool head) {
  std::vector<nn::named_extent> known;
  if (options.lora) known.push_back({"lora.rank", options.lora->rank});
  if (head) known.push_back(shape.head.out.front());
  known.insert(known.end(), shape.extents.begin(), shape.extents.end());
  return known;
}

inline void model_linears::make(nn::backend& ops, const architecture& shape, const block_list& blocks,
                                const model_options& options, const parameter_list& list, const nn::recipe& r) {
  stored_ = nn::storage_for(r.activations);
  exempt_ = nn::bf16_layers_of(r);
  adapters_ = nn::adapters_of(r);
  head_ = nn::head_of(r);
  head_.fprop.output = nn::operand_format::fp32;  // logits go straight into the loss
  const std::ptrdiff_t layers = blocks.layer_count();
  nn::linear_maker maker{ops, options, list, r, nullptr, &head_, stored_};
  layers_.clear();
  std::ptrdiff_t layer = 0;
  for (const group& g : blocks.groups) {
    const bool is_exempt = layer < r.bf16_first_layers || layer >= layers - r.bf16_last_layers;
    maker.layers = is_exempt ? &exempt_ : &r;
    const std::size_t first = layers_.size();
    for (const auto& b : g.blocks) {
      b->make(maker);
      for (const nn::linear_use& use : b->linears()) layers_.push_back(use.layer);
    }
    if (g.is_layer && layer++ == layers / 2) middle_ = layers_[first];
  }
  all_.assign(layers_.begin(), layers_.end());
  for (nn::adapted_linear* l : layers_) {
    l->record = l->shape().layer;
    make_adapters(*l, list, options.lora ? options.lora->dropout : 0.0);
    for (nn::adapter& a : l->adapters) all_.insert(all_.end(), {&a.a(), &a.b()});
  }
  for (nn::adapted_linear* l : layers_) {
    const auto refused = l->take_contracts(ops);
    if (!refused) continue;
    const bool is_head = l == layers_.back();
    throw std::invalid_argument("recipe " + r.name + ": " +
                                nn::gemm_refusal(ops, *refused, is_head ? "the output head" : list[l->w.number].name(),
                                                 extents_of(shape, options, is_head), options.tokens()));
  }
}

}  // namespace rotoscale::train
