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

#include "rotoscale/train/linears.hpp"

namespace rotoscale::train {

/// Forward and backward pass over memory that a cursor hands out.
class model {
 public:
  using category = nn::memory_category;  ///< shorthand
  /// Called when the gradients of elements [first, first + count) of the arena are complete: whole chunks of the norm.
  using gradients_ready = std::function<void(index_t first, index_t count)>;

  /// Throws std::invalid_argument for options that exclude each other, or adapters of layers that the model lacks.
  model(nn::backend& ops, const architecture& shape, model_options options)
      : ops_(&ops),
        shape_(shape),
        options_(std::move(options)),
        blocks_(shape.blocks()),
        weights_(ops, parameter_list(blocks_, trains(), options_.lora), options_.training, options_.averages) {
    auto fault = shape_.find_fault(options_.recompute, options_.kept);
    if (!fault && options_.lora) fault = find_target_fault(shape_, *options_.lora);
    if (fault) throw std::invalid_argument(*fault);
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;

  /// Its kind and shape.
  const architecture& shape() const { return shape_; }
  /// Extents that it is laid out for.
  const model_options& options() const { return options_; }
  /// Names and shapes.
  const parameter_list& parameters() const { return weights_.list(); }
  /// Linear layers under the recipe of the layout.
  const model_linears& linears() const { return linears_; }
  /// Tokens of a pass.
  index_t tokens() const { return options_.tokens(); }

  /// Lays out memory for a recipe, which must outlive its use: counts bytes, or binds arenas. FP32 values stay in
  /// place. Quantized weights stay too, and are valid if the recipe is unchanged. Throws std::invalid_argument if the
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
  /// Sets, for later passes, the position in its sequence where each token's document begins. No data: a sequence is a
  /// document. Throws std::invalid_argument with a cache.
  void use_documents(const nn::token_source& starts) {
    if (starts.data != nullptr && options_.cache != 0) throw std::invalid_argument("a cache keeps one document");
    starts_ = starts;
  }
  /// Granularity of passes that continue a sequence, in tokens: see nn::cache_rows. 0 without a cache.
  index_t cache_rows() const { return cache_rows_; }

  /// FP32 values, gradients, moments and operands.
  class weights& weights() {
    return weights_;
  }
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
    return weights_.values(q, number, 0, parameters()[number].rows);
  }
  /// A parameter's gradient or moment, from that arena.
  std::vector<float> arena_values(nn::queue q, const float* from, std::size_t number) const {
    return weights_.arena_values(q, from, number, 0, parameters()[number].rows);
  }

  /// Called before the blocks of a group read its weights.
  using before_group = std::function<void(std::size_t group)>;
  /// Losses of a microbatch into loss(). With p.training also the gradients of the head and of its input.
  void forward(nn::pass p, const nn::token_source& tokens, const nn::token_source& targets,
               const before_group& before = nullptr) {
    p.tokens = tokens;
    p.targets = targets;
    p.starts = starts_;
    p.probe = &probe_;
    if (p.observe) probe_.clear(p);
    forward_blocks(p, before, [&](nn::block& b) { b.forward(p); });
    if (p.training) weights_.clear_lent(p.queue);
  }
  /// Backward pass after a forward pass with p.training. Adds to every gradient, and reports each range of complete
  /// gradients. Calls before(g) before the gradients of group g.
  void backward(nn::pass p, const nn::token_source& tokens, const gradients_ready& ready = nullptr,
                const before_group& before = nullptr) {
    p.tokens = tokens;
    p.starts = starts_;
    p.probe = &probe_;
    nn::pass again = p;
    again.observe = false;
    for (std::size_t g = blocks_.groups.size(); g-- > 0;) {
      auto& blocks = blocks_.groups[g].blocks;
      if (before) before(g);
      for (const auto& b : blocks) b->saved().unpack(again);
      for (const auto& b : blocks) b->recompute(again);
      for (auto b = blocks.rbegin(); b != blocks.rend(); ++b) (*b)->backward(p);
      if (g > 0) weights_.divided().arrive(p.queue, g - 1, false);  // before the exchange of gradients
      if (ready) report(g, ready);
    }
  }
  /// Ranges that backward passes report for group `g`. The ranges of all groups cover the arenas.
  std::vector<nn::arena_range> ranges_of(std::size_t g) const {
    std::vector<nn::arena_range> all;
    report(g, [&](index_t first, index_t count) { all.push_back({first, count}); });
    return all;
  }
  /// True for groups whose gradients begin in the forward pass: those of the head.
  bool has_early_gradients(std::size_t g) const {
    const std::size_t w = blocks_.head->number(), first = g == 0 ? 0 : parameters().group_end(g - 1);
    return g + 1 == groups() || (w >= first && w < parameters().group_end(g));
  }
  /// Number of groups.
  std::size_t groups() const { return blocks_.groups.size(); }
  /// Calls use(logits) for the tokens [first, first + count) of a pass in order, a chunk of the head at a time:
  /// (tokens, vocabulary) in backend memory, which the next chunk overwrites. With a cache the pass has the tokens from
  /// p.past on, and earlier tokens have been through such passes.
  template <class Use>
  void logits(nn::pass p, const nn::token_source& tokens, index_t first, index_t count, const Use& use) {
    p.tokens = tokens;
    p.starts = starts_;
    forward_blocks(p, nullptr, [&](nn::block& b) { &b == blocks_.head ? blocks_.head->join(p) : b.forward(p); });
    blocks_.head->logits(p, first, count, use);
  }

  /// Loss of each token, after forward.
  float* loss() const { return blocks_.head->loss(); }
  /// Statistics after an observed step: of each linear layer, then of each matrix of an adapter. Null without
  /// options().statistics.
  const linear_statistics* statistics() const { return probe_.records(); }
  /// The output head.
  const nn::linear& head() const { return blocks_.head->layer(); }
  /// Contract of attention.
  const nn::attention_contract& attention() const { return blocks_.attention->contract(); }

 private:
  std::function<bool(const parameter&)> trains() const {
    if (options_.training) return options_.trains;
    return [](const parameter&) { return false; };
  }
  template <class Function>
  void for_each_block(const Function& f) {
    for (group& g : blocks_.groups) {
      for (const auto& b : g.blocks) f(*b);
    }
  }
  /// Calls f(block) for all blocks in the order of a forward pass, once a group's operands are gathered.
  template <class Function>
  void forward_blocks(const nn::pass& p, const before_group& before, const Function& f) {
    weights_.divided().begin(p.queue);
    for (std::size_t g = 0; g < groups(); ++g) {
      if (before) before(g);
      weights_.divided().arrive(p.queue, g, true);
      for (const auto& b : blocks_.groups[g].blocks) f(*b);
    }
  }
  void report(std::size_t g, const gradients_ready& ready) const;
  void lay_out_forward(nn::memory_cursor& memory);
  void lay_out_loss(nn::memory_cursor& memory);
  void lay_out_phase(nn::memory_cursor& memory, nn::layout_phase phase);
  std::size_t lay_out_statistics(nn::memory_cursor& memory);
  std::size_t largest_workspace(std::size_t statistics);
  nn::layout layout_of(nn::memory_cursor& memory, nn::layout_phase phase) const {
    return {*ops_, memory, options_, linears_.stored(), phase, bound_};
  }

  nn::backend* ops_;
  architecture shape_;
  model_options options_;
  block_list blocks_;
  class weights weights_;
  model_linears linears_;
  nn::statistics_probe probe_;

  nn::token_source starts_;
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
      end = (list[i].offset + list[i].size() + nn::parameter_alignment - 1) / nn::parameter_alignment *
            nn::parameter_alignment;
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
  blocks_.stream->lay_out(layout_of(memory, nn::layout_phase::fixed),
                          static_cast<std::size_t>(blocks_.layer_count()) + 1);
  const std::size_t forward = memory.mark(category::workspace);
  lay_out_phase(memory, nn::layout_phase::scratch);
  lay_out_phase(memory, nn::layout_phase::saved);
  // A backward pass that recomputes layers also needs the forward pass's scratch memory.
  const bool again = options_.recompute != recompute_part::none || options_.kept != kept_format::as_computed;
  if (!(options_.training && again)) memory.rewind(category::workspace, forward);
}

/// Logits and their gradients are the largest memory of a pass after activations. They alias gradients that are
/// written later.
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
  linears_.make(*ops_, shape_, blocks_, options_, parameters(), r);
  const std::vector<nn::linear*>& all = linears_.all();
  weights_.lay_out(memory, all);
  lay_out_phase(memory, nn::layout_phase::weights);
  const std::size_t layers = linears_.layers().size();
  for (std::size_t i = layers; i < all.size(); ++i) all[i]->w = weights_.of(all[i]->w.number);
  weights_.lay_out_operands(memory, all, layers - 1, same_recipe, r.fp8);
  weights_.scales = nn::delayed_scaling_state(memory, static_cast<index_t>(layers), r);
  cache_rows_ = options_.cache == 0 ? 0 : nn::cache_rows(*ops_, all);

  lay_out_forward(memory);
  if (options_.training) blocks_.stream->lay_out_backward(layout_of(memory, nn::layout_phase::backward));
  const std::size_t backward = memory.mark(category::workspace);
  lay_out_loss(memory);
  probe_ = {};
  const bool observes = options_.training && options_.statistics;
  // The head's FP32 gradient shares memory with the layers' backward pass, which begins later.
  if (observes && head().shape().trains) probe_.own_gradient(memory, head());
  memory.rewind(category::workspace, backward);
  if (options_.training) lay_out_phase(memory, nn::layout_phase::backward);

  // Laid out last: an operation's workspace may be in use at any time.
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
  probe_.lay_out(memory, record_count(parameters()));
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
  for (const nn::linear* l : linears_.all()) {
    const nn::linear_shape& s = l->shape();
    const index_t widest = l == &head() ? s.in : std::max(s.in, s.out);  // logits are FP32
    room.add_gemm(l->workspace_bytes(*ops_), linears_.stored() == nn::dtype::bf16 ? widest : 0);
    if (!options_.training || !options_.statistics) continue;
    for (const nn::tensor_role tensor : {nn::tensor_role::x, nn::tensor_role::dy, nn::tensor_role::w}) {
      const nn::operand_request r = l->request(tensor);
      // Only codes of blocks that are stored as BF16 are made again.
      const bool has_codes =
          (r.row_in_bf16 && nn::has_blocks(r.row->format)) || (r.column_in_bf16 && nn::has_blocks(r.column->format));
      const nn::tensor_view source =
          has_codes ? room.extents(r.rows, r.cols) : room.extents(std::max(r.rows, r.cols), 1);
      room.add<nn::op::observe>({source, {}, nullptr}, {nullptr});
    }
    room.add<nn::op::compare>({nullptr, nullptr, s.in * s.out}, {nullptr});
  }
  for (const nn::adapted_linear* l : linears_.layers()) {
    for (const nn::adapter& a : l->adapters) room.add_gemm(0, a.shape().rank);  // stored as BF16
  }
  return room.bytes();
}

}  // namespace rotoscale::train
