// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Graphs of a training step: its begin, the gradients of each microbatch with their sums, the update of parameters.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rotoscale/nn/schedule.hpp"
#include "rotoscale/train/model.hpp"
#include "rotoscale/train/pass_inputs.hpp"
#include "rotoscale/train/weight_exchange.hpp"

namespace rotoscale::train {

/// The operations of a step, recorded under one recipe.
class step_graphs {
 public:
  /// All arguments must outlive it. `micro_batches`: of a step and rank.
  step_graphs(model& m, const weight_exchange& exchange, const pass_inputs& inputs,
              const nn::optimizer_config& optimizer, int micro_batches)
      : model_(&m), exchange_(&exchange), inputs_(&inputs), optimizer_(&optimizer), micro_batches_(micro_batches) {}
  step_graphs(const step_graphs&) = delete;
  step_graphs& operator=(const step_graphs&) = delete;

  /// Takes memory after the model did.
  void lay_out(nn::memory_cursor& memory) {
    constexpr nn::memory_category category = nn::memory_category::workspace;
    chunk_squares_ = memory.array<double>(category, model_->options().training ? chunk_count() : 0);
    amaxes_ = memory.array<float>(category, model_->scales().state().count);
  }
  /// Records a step of passes like `p` under `r`, which must outlive its use.
  void capture(const nn::pass& p, const nn::recipe& r);

  /// Queues the gradients of a step. `observe` leaves statistics of the first microbatch.
  void gradients(bool observe = false) {
    ops().launch(queue(), *begin_);
    for (int i = 0; i < micro_batches_; ++i) {
      const bool is_first = i == 0 || !exchange_->is_parallel();
      const std::size_t middle = divides_gradients() && !is_first ? static_cast<std::size_t>(i) - 1 : 0;
      ops().launch(queue(), *(observe && i == 0 ? observed_
                              : is_last(i)      ? last_
                              : is_first        ? first_
                                                : middle_[middle]));
      add(i);
    }
  }
  /// The same without the recorded microbatches and their updates of scales.
  void gradients_with_all_maxima() {
    ops().launch(queue(), *begin_);
    for (int i = 0; i < micro_batches_; ++i) {
      gradients_of(i);
      add(i);
      ops().next_micro_batch(queue(), {}, {pass_.state});
    }
  }
  /// Queues the norm of the gradients, and AdamW.
  void update() const { ops().launch(queue(), *update_); }
  /// Computes the next scales from recorded maxima, of all ranks if the recipe says so. Copies them for the host.
  void update_scales() const;
  /// Maxima of the last update of scales, in backend memory.
  const float* amaxes() const { return amaxes_; }

 private:
  nn::backend& ops() const { return *pass_.ops; }
  nn::queue queue() const { return pass_.queue; }
  nn::queue ranks_queue() const { return exchange_->queue(); }
  bool divides_gradients() const { return exchange_->divides_gradients(); }
  bool is_last(int micro_batch) const { return micro_batch + 1 == micro_batches_; }
  index_t chunk_count() const {
    return (model_->parameters().arena_size() + nn::parameter_alignment - 1) / nn::parameter_alignment;
  }
  /// Adds the gradients of a microbatch that is not the last.
  void add(int i) const {
    if (is_last(i) || divides_gradients()) return;
    exchange_->sums().add(queue(), i, model_->arena().gradient, {0, model_->arena().size});
  }
  void gradients_of(int i, bool observe = false);
  void divided_gradients_of(int i, const nn::pass& p);
  model::before_group weights_arriving_at(int i, const nn::pass& p) const;
  void update_parameters() const;

  model* model_;
  const weight_exchange* exchange_;
  const pass_inputs* inputs_;
  const nn::optimizer_config* optimizer_;
  int micro_batches_;
  nn::pass pass_;
  const nn::recipe* recipe_ = nullptr;
  double* chunk_squares_ = nullptr;
  float* amaxes_ = nullptr;
  std::unique_ptr<nn::graph> begin_, first_, last_, observed_, update_;
  std::vector<std::unique_ptr<nn::graph>> middle_;  ///< of other microbatches; one if all are equal
};

/// Gradients of microbatch i. Ranges of the last microbatch are added to all others as soon as they are complete, under
/// the backward pass of earlier layers.
inline void step_graphs::gradients_of(int i, bool observe) {
  nn::pass p = pass_;
  p.observe = observe;
  if (divides_gradients()) return divided_gradients_of(i, p);
  const bool exchanges = exchange_->is_parallel();
  model_->weights().clear_gradients(queue());
  model_->forward(p, inputs_->tokens(), inputs_->targets(), weights_arriving_at(i, p));
  if (!is_last(i)) return model_->backward(p, inputs_->tokens());
  model_->backward(p, inputs_->tokens(), [&](index_t first, index_t count) {
    if (exchanges) ops().follow(ranks_queue(), queue());
    exchange_->sums().add(exchanges ? ranks_queue() : queue(), i, model_->arena().gradient, {first, count});
  });
  if (exchanges) ops().follow(queue(), ranks_queue());
}

/// The same for divided gradients: every microbatch is added, a group at a time, under the backward pass of the group
/// before it. A group's gradients reuse the place of those after it.
inline void step_graphs::divided_gradients_of(int i, const nn::pass& p) {
  const class weights& w = model_->weights();
  const auto clear = [&](std::size_t g, bool early) {
    if (model_->has_early_gradients(g) == early) w.clear_group(queue(), g);
  };
  ops().follow(ranks_queue(), queue());  // a graph has both
  for (std::size_t g = 0; g < model_->groups(); ++g) clear(g, true);
  model_->forward(p, inputs_->tokens(), inputs_->targets(), weights_arriving_at(i, p));
  const auto ready = [&](index_t first, index_t count) {
    ops().follow(queue(), ranks_queue());  // waits for the sums of earlier groups, whose place is reused next
    ops().follow(ranks_queue(), queue());
    exchange_->sums().add_divided(ranks_queue(), i, w.gradient_at(w.places().of(first)), {first, count});
  };
  model_->backward(p, inputs_->tokens(), ready, [&](std::size_t g) { clear(g, false); });
  ops().follow(queue(), ranks_queue());
}

/// The first microbatch gathers the weights that ranks have updated, a group at a time, under the forward pass of the
/// groups before it.
inline model::before_group step_graphs::weights_arriving_at(int i, const nn::pass& p) const {
  if (i != 0 || !exchange_->is_parallel()) return nullptr;
  ops().follow(ranks_queue(), queue());
  return [this, p](std::size_t group) {
    class weights& w = model_->weights();
    if (exchange_->divides_masters()) {
      nn::pass arriving = p;
      arriving.queue = ranks_queue();
      exchange_->gather().gather(arriving, group);
      return ops().follow(queue(), ranks_queue());
    }
    const std::vector<nn::arena_range> ranges = model_->ranges_of(group);
    for (const nn::arena_range& r : ranges) exchange_->sums().gather_range(ranks_queue(), model_->arena().weight, r);
    ops().follow(queue(), ranks_queue());
    w.quantize_ranges(p, ranges);
  };
}

inline void step_graphs::update_scales() const {
  const nn::scaling_state& s = model_->scales().state();
  if (exchange_->is_parallel() && recipe_->fp8.reduce_amax) {
    pass_.ranks->max(queue(), nn::dense_tensor(s.amax, nn::dtype::fp32, {s.count}));
  }
  ops().copy(queue(), amaxes_, s.amax, static_cast<std::size_t>(s.count) * sizeof(float));
  model_->scales().update(ops(), queue());
}

inline void step_graphs::capture(const nn::pass& p, const nn::recipe& r) {
  pass_ = p;
  recipe_ = &r;
  if (!model_->options().training) return;
  const bool is_parallel = exchange_->is_parallel();
  // Ranks exchange while they record, so they record at the first launch, together.
  const auto record = [&](std::function<void()> operations) {
    if (is_parallel) return std::make_unique<nn::graph>(std::move(operations));
    return ops().capture(queue(), std::move(operations));
  };
  begin_ = record([this] {
    nn::step_state* const state = pass_.state;
    ops().begin_step(queue(), {inputs_->targets().data, inputs_->step_tokens()}, {state});
    if (exchange_->is_parallel())
      pass_.ranks->sum(queue(), nn::dense_tensor(&state->valid_tokens, nn::dtype::i64, {1}));
    ops().set_gradient_scale(queue(), {}, {state});
  });
  const auto micro_batch = [this](int i, bool observe) {
    gradients_of(i, observe);
    const bool updates = is_last(i) || recipe_->fp8.update == nn::scale_update::micro_batch;
    if (nn::has_delayed(*recipe_) && updates) update_scales();
    if (is_last(i)) exchange_->sums().gather_losses(queue(), pass_.state);
    ops().next_micro_batch(queue(), {}, {pass_.state});
  };
  const int last = micro_batches_ - 1;
  if (last > 0) first_ = record([=] { micro_batch(0, false); });
  middle_.clear();
  for (int i = 1; i < last && (i == 1 || divides_gradients()) && is_parallel; ++i) {
    middle_.push_back(record([=] { micro_batch(i, false); }));
  }
  last_ = record([=] { micro_batch(last, false); });
  if (model_->options().statistics) observed_ = record([=] { micro_batch(0, true); });
  update_ = record([this] { update_parameters(); });
}

/// Norm of all gradients, and AdamW on this rank's shards of the parameters.
inline void step_graphs::update_parameters() const {
  const class weights& w = model_->weights();
  const std::vector<nn::parameter_arena> shards = w.shards();
  const bool is_parallel = exchange_->is_parallel();
  const index_t chunks = chunk_count();
  if (is_parallel) ops().fill_zero(queue(), chunk_squares_, static_cast<std::size_t>(chunks) * sizeof(double));
  const std::vector<index_t> begins = w.shard_begins();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    double* const squares = chunk_squares_ + begins[i] / nn::parameter_alignment;
    ops().square_chunks(queue(), {shards[i].gradient, shards[i].size}, {squares});
  }
  // One rank has the bits of a number, all others 0. A sum of integers therefore gathers them.
  if (is_parallel) pass_.ranks->sum(queue(), nn::dense_tensor(chunk_squares_, nn::dtype::i64, {chunks}));
  const float* const gradients = divides_gradients() ? w.own_gradients() : model_->arena().gradient;
  const index_t count = divides_gradients() ? w.owned_count() : model_->arena().size;
  ops().gradient_norm(queue(), {gradients, count, chunks, *optimizer_}, {chunk_squares_, pass_.state});
  for (const nn::parameter_arena& own : shards) ops().adamw(queue(), {*optimizer_, pass_.state}, {own});
}

}  // namespace rotoscale::train
