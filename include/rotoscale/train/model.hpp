// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A model is a list of blocks and a loss. Its memory is laid out before the first pass: the same functions count bytes
// and bind addresses, and memory with disjoint lifetimes is shared.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>
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
};

/// Forward and backward pass over memory that a cursor hands out.
class model {
 public:
  using category = nn::memory_category;  ///< shorthand
  /// Called when the gradients of elements [first, first + count) of the arena are complete.
  using gradients_ready = std::function<void(index_t first, index_t count)>;

  /// Throws std::invalid_argument for options that exclude each other.
  model(nn::backend& ops, const architecture& shape, model_options options)
      : ops_(&ops),
        shape_(shape),
        options_(std::move(options)),
        blocks_(shape.blocks()),
        weights_(ops, parameter_list(blocks_, trains(), options_.lora), options_.training) {
    if (const auto fault = shape_.find_fault(options_.recompute, options_.kept)) throw std::invalid_argument(*fault);
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;

  /// Its kind and shape.
  const architecture& shape() const { return shape_; }
  /// Extents that it is laid out for.
  const model_options& options() const { return options_; }
  /// Names and shapes.
  const parameter_list& parameters() const { return weights_.list(); }
  /// Number of linear layers, with the head. Adapters are not counted.
  index_t linear_count() const { return static_cast<index_t>(layers_.size()); }
  /// Tokens of a pass.
  index_t tokens() const { return options_.tokens(); }

  /// Lays out memory for a recipe, which must outlive its use: counts, or binds arenas. FP32 values stay in place.
  /// Quantized weights do too, and are valid if the recipe is the one before. Throws std::invalid_argument if the
  /// backend does not support a GEMM.
  void lay_out(nn::memory_cursor& memory, const nn::recipe& r, bool same_recipe = false);

  /// Changes the extents of passes without a backward pass, within the same arenas.
  void resize(index_t batch, index_t sequence) {
    options_.batch = batch;
    options_.sequence = sequence;
  }
  /// After lay_out over arenas: gives the queue its workspace, and uploads tables.
  void prepare(nn::queue q) {
    ops_->set_workspace(q, workspace_, workspace_bytes_);
    weights_.upload(q);
    for_each_block([&](nn::block& b) { b.upload(*ops_, q); });
    ops_->synchronize(q);
  }
  /// Position in its sequence where each token's document begins, for later passes. No data: sequences are documents.
  /// Throws std::invalid_argument with a cache.
  void use_documents(const nn::token_source& starts) {
    if (starts.data != nullptr && options_.cache != 0) throw std::invalid_argument("a cache keeps one document");
    starts_ = starts;
  }
  /// Granularity of passes that continue a sequence, in tokens: see nn::cache_rows. 0 without a cache.
  index_t cache_rows() const { return cache_rows_; }

  /// FP32 values, gradients, moments and operands.
  class weights& weights() { return weights_; }
  /// FP32 values, gradients, moments and operands.
  const class weights& weights() const { return weights_; }
  /// The parameters that train.
  nn::parameter_arena arena() const { return weights_.arena(); }
  /// Scales of FP8 operands.
  const nn::delayed_scaling_state& scales() const { return weights_.scales; }
  /// Scales of FP8 operands.
  nn::delayed_scaling_state& scales() { return weights_.scales; }
  /// FP32 values of a parameter. Throws std::logic_error if they are not kept.
  std::vector<float> values(nn::queue q, std::size_t number) const {
    return values(q, number, 0, parameters()[number].rows);
  }
  /// The same of rows [first_row, first_row + rows).
  std::vector<float> values(nn::queue q, std::size_t number, index_t first_row, index_t rows) const {
    return weights_.values(q, number, first_row, rows);
  }
  /// A parameter's gradient or moment, from that arena.
  std::vector<float> arena_values(nn::queue q, const float* from, std::size_t number) const {
    return arena_values(q, from, number, 0, parameters()[number].rows);
  }
  /// The same of rows [first_row, first_row + rows).
  std::vector<float> arena_values(nn::queue q, const float* from, std::size_t number, index_t first_row,
                                  index_t rows) const {
    return weights_.arena_values(q, from, number, first_row, rows);
  }

  /// Losses of a microbatch into loss(). With p.training also the gradients of the head and of its input.
  void forward(nn::pass p, const nn::token_source& tokens, const nn::token_source& targets) {
    p.tokens = tokens;
    p.targets = targets;
    p.starts = starts_;
    p.probe = &probe_;
    if (p.observe) probe_.clear(p);
    for_each_block([&](nn::block& b) { b.forward(p); });
    if (p.training) weights_.clear_lent(p.queue);
  }
  /// Adds to every gradient. Follows a forward pass with p.training. Reports each range of complete gradients.
  void backward(nn::pass p, const nn::token_source& tokens, const gradients_ready& ready = nullptr) {
    p.tokens = tokens;
    p.starts = starts_;
    p.probe = &probe_;
    nn::pass again = p;
    again.observe = false;
    for (std::size_t g = blocks_.groups.size(); g-- > 0;) {
      auto& blocks = blocks_.groups[g].blocks;
      for (const auto& b : blocks) b->saved().unpack(again);
      for (const auto& b : blocks) b->recompute(again);
      for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) (*b)->backward(p);
      if (ready) report(g, ready);
    }
  }
  /// Calls use(logits) for the tokens [first, first + count) of a pass in order, a chunk of the head at a time:
  /// (tokens, vocabulary) in backend memory, which the next chunk overwrites. With a cache the pass has the tokens from
  /// p.past on, and earlier tokens have been through such passes.
  template <class Use>
  void logits(nn::pass p, const nn::token_source& tokens, index_t first, index_t count, const Use& use) {
    p.tokens = tokens;
    p.starts = starts_;
    for_each_block([&](nn::block& b) { &b == blocks_.head ? blocks_.head->join(p) : b.forward(p); });
    blocks_.head->logits(p, first, count, use);
  }

  /// Loss of each token, after forward.
  float* loss() const { return blocks_.head->loss(); }
  /// Statistics after an observed step: of each linear layer, then of each matrix of an adapter. Null without
  /// options().statistics.
  const linear_statistics* statistics() const { return probe_.records(); }
  /// Number of statistics.
  index_t observed_count() const { return observed_number(parameters().all().size()); }
  /// Place of the statistics of an adapter's matrix, by the number of its parameter.
  index_t observed_number(std::size_t parameter) const {
    const auto heads = static_cast<index_t>(parameters().linears()) + 1;
    return heads + static_cast<index_t>(parameter - parameters().base_count());
  }
  /// Linear layer i of linear_count().
  const nn::adapted_linear& linear_layer(index_t i) const { return *layers_[static_cast<std::size_t>(i)]; }

  /// For logs: a linear layer in the middle, where the recipe has no exempt layers, and the head.
  const nn::linear& inner_linear() const { return *middle_; }
  /// For logs: a linear layer that the recipe leaves in BF16, or null.
  const nn::linear* bf16_linear() const {
    for (const nn::adapted_linear* l : layers_) {
      if (&l->current() == &exempt_recipe_) return l;
    }
    return nullptr;
  }
  /// For logs: an adapter's first matrix, or null.
  const nn::linear* adapter_linear() const {
    for (const nn::adapted_linear* l : layers_) {
      if (!l->adapters.empty()) return &l->adapters.front().a();
    }
    return nullptr;
  }
  /// The output head.
  const nn::linear& head() const { return blocks_.head->layer(); }
  /// Contract of attention.
  const nn::attention_contract& attention() const { return blocks_.attention->contract(); }

 private:
  std::function<bool(const parameter&)> trains() const {
    if (options_.training) return options_.trains;
    return [](const parameter&) { return false; };
  }
  std::ptrdiff_t layer_count() const {
    return std::count_if(blocks_.groups.begin(), blocks_.groups.end(), [](auto& g) { return g.is_layer; });
  }
  template <class Function>
  void for_each_block(const Function& f) {
    for (group& g : blocks_.groups) {
      for (const auto& b : g.blocks) f(*b);
    }
  }
  void report(std::size_t g, const gradients_ready& ready) const;
  void make_linears(const nn::recipe& r);
  void make_adapters(nn::adapted_linear& l);
  void check_contracts(const nn::recipe& r);
  void lay_out_forward(nn::memory_cursor& memory);
  void lay_out_loss(nn::memory_cursor& memory);
  void lay_out_phase(nn::memory_cursor& memory, nn::layout_phase phase);
  std::size_t lay_out_statistics(nn::memory_cursor& memory);
  std::size_t largest_workspace(std::size_t statistics);
  nn::layout layout_of(nn::memory_cursor& memory, nn::layout_phase phase) const {
    return {*ops_, memory, options_, stored_, phase, bound_};
  }

  nn::backend* ops_;
  architecture shape_;
  model_options options_;
  block_list blocks_;
  class weights weights_;
  nn::statistics_probe probe_;

  nn::linear_recipe head_recipe_, adapter_recipe_, exempt_recipe_;
  nn::token_source starts_;
  nn::dtype stored_ = nn::dtype::fp32;       ///< of activations
  std::vector<nn::adapted_linear*> layers_;  ///< by number, the head last
  std::vector<nn::linear*> linears_;         ///< the same, then the matrices of adapters
  const nn::linear* middle_ = nullptr;
  std::function<nn::weight(std::size_t)> bound_ = [this](std::size_t number) { return weights_.of(number); };
  index_t cache_rows_ = 0;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
};

/// Reports the parameters of a group's blocks, then those of its adapters.
inline void model::report(std::size_t g, const gradients_ready& ready) const {
  const parameter_list& list = parameters();
  const auto tell = [&](std::size_t first, std::size_t last) {
    index_t begin = -1, end = 0;
    for (std::size_t i = first; i < last; ++i) {
      if (!list[i].trains) continue;
      begin = begin < 0 ? list[i].offset : begin;
      end = list[i].offset + list[i].size();
    }
    if (begin >= 0) ready(begin, end - begin);
  };
  const std::size_t first = g == 0 ? 0 : list.group_end(g - 1), last = list.group_end(g);
  tell(first, last);
  std::size_t first_adapter = list.all().size(), last_adapter = 0;
  for (const adapter_parameters& a : list.adapters()) {
    if (a.base < first || a.base >= last) continue;
    first_adapter = std::min(first_adapter, a.a);
    last_adapter = a.b + 1;
  }
  tell(first_adapter, last_adapter);
}

inline void model::make_adapters(nn::adapted_linear& l) {
  const parameter_list& list = parameters();
  for (const adapter_parameters& own : list.adapters()) {
    if (own.linear != l.shape().layer) continue;
    nn::adapter_shape s;
    s.base = l.shape();
    s.base.trains = list[own.a].trains;
    s.rank = list[own.a].rows;
    s.scale = own.scale;
    s.dropout = options_.lora->dropout;
    s.part = own.target.slice;
    s.first_row = list[own.b].base_row;
    s.rows = list[own.b].rows;
    nn::adapter& made = l.adapters.emplace_back(s, adapter_recipe_);
    made.a().w.number = own.a;
    made.b().w.number = own.b;
    made.a().record = observed_number(own.a);
    made.b().record = observed_number(own.b);
  }
}

inline void model::make_linears(const nn::recipe& r) {
  stored_ = nn::storage_for(r.activations);
  exempt_recipe_ = nn::bf16_layers_of(r);
  adapter_recipe_ = nn::adapters_of(r);
  head_recipe_ = nn::head_of(r);
  head_recipe_.fprop.output = nn::operand_format::fp32;  // logits go straight into the loss
  const std::ptrdiff_t layers = layer_count();
  nn::linear_maker maker{*ops_, options_, parameters(), r, nullptr, &head_recipe_, stored_};
  layers_.clear();
  std::ptrdiff_t layer = 0;
  for (group& g : blocks_.groups) {
    const bool exempt = layer < r.bf16_first_layers || layer >= layers - r.bf16_last_layers;
    maker.layers = exempt ? &exempt_recipe_ : &r;
    const std::size_t first = layers_.size();
    for (const auto& b : g.blocks) {
      b->make(maker);
      for (const nn::linear_use& use : b->linears()) layers_.push_back(use.layer);
    }
    if (g.is_layer && layer++ == layers / 2) middle_ = layers_[first];
  }
  linears_.assign(layers_.begin(), layers_.end());
  for (nn::adapted_linear* l : layers_) {
    l->record = l->shape().layer;
    make_adapters(*l);
    for (nn::adapter& a : l->adapters) linears_.insert(linears_.end(), {&a.a(), &a.b()});
  }
  check_contracts(r);
}

inline void model::check_contracts(const nn::recipe& r) {
  for (nn::adapted_linear* l : layers_) {
    const auto refused = l->take_contracts(*ops_);
    if (!refused) continue;
    const bool is_head = l == &blocks_.head->layer();
    std::vector<nn::named_extent> known;
    if (options_.lora) {
      if (options_.lora->patterns) {
        for (const lora_pattern& p : options_.lora->patterns->rank) {
          known.push_back({"lora.patterns.rank", static_cast<index_t>(p.value)});
        }
      }
      known.push_back({"lora.rank", options_.lora->rank});
    }
    if (is_head) known.push_back(shape_.head.out.front());
    known.insert(known.end(), shape_.extents.begin(), shape_.extents.end());
    throw std::invalid_argument("recipe " + r.name + ": " +
                                nn::gemm_refusal(*ops_, *refused,
                                                 is_head ? "the output head" : parameters()[l->w.number].name(), known,
                                                 tokens()));
  }
}

/// One phase of all blocks, one after the other. Groups share memory in the scratch phase, blocks in the backward
/// phase.
inline void model::lay_out_phase(nn::memory_cursor& memory, nn::layout_phase phase) {
  constexpr category both[] = {category::activations, category::workspace};
  const std::size_t begin[] = {memory.mark(both[0]), memory.mark(both[1])};
  std::size_t end[] = {begin[0], begin[1]};
  const auto share = [&] {
    for (int c = 0; c < 2; ++c) {
      end[c] = std::max(end[c], memory.mark(both[c]));
      memory.rewind(both[c], begin[c]);
    }
  };
  for (group& g : blocks_.groups) {
    for (const auto& b : g.blocks) {
      b->lay_out(layout_of(memory, phase));
      if (phase == nn::layout_phase::backward) share();
    }
    if (phase == nn::layout_phase::scratch) share();
  }
  for (int c = 0; c < 2; ++c) memory.rewind(both[c], std::max(end[c], memory.mark(both[c])));
}

inline void model::lay_out_forward(nn::memory_cursor& memory) {
  lay_out_phase(memory, nn::layout_phase::fixed);
  blocks_.stream->lay_out(layout_of(memory, nn::layout_phase::fixed), static_cast<std::size_t>(layer_count()) + 1);
  const std::size_t forward = memory.mark(category::workspace);
  lay_out_phase(memory, nn::layout_phase::scratch);
  lay_out_phase(memory, nn::layout_phase::saved);
  // A backward pass that recomputes layers needs the forward pass's scratch memory beside its own.
  const bool again = options_.recompute != recompute_part::none || options_.kept != kept_format::as_computed;
  if (!(options_.training && again)) memory.rewind(category::workspace, forward);
}

/// Logits and their gradients are the largest memory of a pass after activations. If a step is one pass, they alias
/// gradients that are written later.
inline void model::lay_out_loss(nn::memory_cursor& memory) {
  weights_.lend_nothing();
  std::optional<nn::memory_cursor> lent;
  if (options_.training && options_.lends_gradients) {
    nn::memory_cursor counting;
    blocks_.head->lay_out(layout_of(counting, nn::layout_phase::loss));
    lent = weights_.lend(memory, counting.plan()[category::workspace], head().w.number);
  }
  blocks_.head->lay_out(layout_of(lent ? *lent : memory, nn::layout_phase::loss));
}

inline void model::lay_out(nn::memory_cursor& memory, const nn::recipe& r, bool same_recipe) {
  make_linears(r);
  weights_.lay_out(memory, linears_);
  lay_out_phase(memory, nn::layout_phase::weights);
  for (std::size_t i = layers_.size(); i < linears_.size(); ++i) linears_[i]->w = weights_.of(linears_[i]->w.number);
  weights_.lay_out_operands(memory, linears_, layers_.size() - 1, same_recipe, r.fp8);
  weights_.scales = nn::delayed_scaling_state(memory, linear_count(), r);
  cache_rows_ = options_.cache == 0 ? 0 : nn::cache_rows(*ops_, linears_);

  lay_out_forward(memory);
  if (options_.training) blocks_.stream->lay_out_backward(layout_of(memory, nn::layout_phase::backward));
  const std::size_t backward = memory.mark(category::workspace);
  lay_out_loss(memory);
  probe_ = {};
  const bool observes = options_.training && options_.statistics;
  // The head's FP32 gradient shares memory with the backward pass of the layers, which begins later.
  if (observes && head().shape().trains) probe_.own_gradient(memory, head());
  memory.rewind(category::workspace, backward);
  if (options_.training) lay_out_phase(memory, nn::layout_phase::backward);

  // After everything else: an operation's workspace is in use at any time.
  memory.rewind(category::workspace, memory.plan()[category::workspace]);
  workspace_bytes_ = largest_workspace(observes ? lay_out_statistics(memory) : 0);
  workspace_ = memory.take(category::workspace, workspace_bytes_);
}

/// Returns the workspace of the FP32 GEMMs in bytes.
inline std::size_t model::lay_out_statistics(nn::memory_cursor& memory) {
  std::size_t bytes = 0;
  const auto add = [&](const nn::linear& l, nn::const_tensor_view x, nn::const_tensor_view dy) {
    bytes = std::max(bytes, probe_.add(*ops_, memory, l, x, dy));
  };
  probe_.lay_out(memory, observed_count());
  for_each_block([&](nn::block& b) {
    for (const nn::linear_use& use : b.linears()) {
      add(*use.layer, use.x, use.dy);
      for (const nn::adapter& a : use.layer->adapters) {
        add(a.a(), a.dropped(), a.low_gradient());
        add(a.b(), a.low(), a.rows_of(use.dy));
      }
    }
  });
  probe_.share_gradient(memory);
  return bytes;
}

inline std::size_t model::largest_workspace(std::size_t statistics) {
  nn::workspace_bound room(*ops_, tokens(), options_.positions());
  room.add_rows(tokens());
  room.add_gemm(statistics);
  nn::parameter_arena all;
  all.size = parameters().arena_size();
  room.add<nn::op::sum_squares>({nullptr, all}, {nullptr});
  for_each_block([&](nn::block& b) { b.require(room); });
  for (const nn::linear* l : linears_) {
    const nn::linear_shape& s = l->shape();
    const index_t widest = l == &head() ? s.in : std::max(s.in, s.out);  // logits are FP32
    room.add_gemm(l->workspace_bytes(*ops_), stored_ == nn::dtype::bf16 ? widest : 0);
    if (!options_.training || !options_.statistics) continue;
    room.add<nn::op::observe>({room.extents(std::max({tokens(), s.in, s.out}), 1), {}, nullptr}, {nullptr});
    room.add<nn::op::compare>({nullptr, nullptr, s.in * s.out}, {nullptr});
  }
  for (const nn::adapted_linear* l : layers_) {
    for (const nn::adapter& a : l->adapters) room.add_gemm(0, a.shape().rank);  // stored as BF16
  }
  return room.bytes();
}

}  // namespace rotoscale::train
