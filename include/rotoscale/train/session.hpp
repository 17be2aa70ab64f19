// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A session: a model with its memory, queue, step state and graphs, to train, evaluate and sample. A training step is
// a few graphs that are launched again and again. Its only wait is for its result, on request.
#pragma once

#include <cstring>
#include <functional>

#include "rotoscale/nn/arena_memory.hpp"
#include "rotoscale/nn/schedule.hpp"
#include "rotoscale/train/frozen_weights.hpp"
#include "rotoscale/train/memory_errors.hpp"
#include "rotoscale/train/snapshot.hpp"
#include "rotoscale/train/step_graphs.hpp"
#include "rotoscale/train/step_transfers.hpp"

namespace rotoscale::train {

/// Options of a session.
struct session_options {
  model_options model;                                   ///< extents of a pass
  int micro_batches = 1;                                 ///< of a step and rank
  nn::optimizer_config optimizer;                        ///< AdamW's constants
  std::size_t memory_limit = 0;                          ///< bytes of all categories; 0: none
  bool documents = false;                                ///< attention stays within the documents that passes are given
  snapshot_use snapshot = snapshot_use::none;            ///< for asynchronous checkpoints
  std::size_t host_memory = 0;                           ///< bytes that the host has; 0: unknown
  bool divides_frozen = false;                           ///< each rank stores a part of frozen layers' operands
  shard_level shard = shard_level::moments;              ///< what ranks divide
  gradient_reduction reduce = gradient_reduction::tree;  ///< who adds the gradients of ranks
};

/// A model with its memory, queue, step state and graphs.
class session {
 public:
  /// `recipes`: all that will be used, in the order of use. Memory is for the largest of each category, and frozen
  /// weights are kept for all but the first. Throws over_budget before any allocation, and out_of_memory with nothing
  /// kept. Throws invalid_argument for more than 256 microbatches over all ranks, or for documents with a cache.
  session(nn::backend& ops, const train::architecture& shape, session_options options,
          const std::vector<nn::recipe>& recipes, nn::communicator* ranks = nullptr)
      : session(ops, shape, std::move(options), ranks, only_count{}) {
    if (exchange_.sums().leaves() > nn::most_microbatches) {
      throw std::invalid_argument("micro_batches: " + std::to_string(exchange_.sums().leaves()) +
                                  " over all ranks, random words repeat after 256");
    }
    plan_ = count_within_limits(recipes);
    if (options_.memory_limit != 0 && plan_.total() > options_.memory_limit) {
      throw over_budget(plan_, options_.memory_limit);
    }
    allocate();
    queue_ = {ops, "session"};
    if (!stash_.empty()) stash_queue_ = {ops, "stash"};
    exchange_.open();
    if (has_snapshot()) snapshot_.open(ops);
    recipe_ = recipes.front();
    bind(false);
    model_.scales().reset(ops, queue_);
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  /// The model.
  train::model& model() { return model_; }
  /// The model.
  const train::model& model() const { return model_; }
  /// Where everything runs.
  nn::queue queue() const { return queue_; }
  /// Backend of this session.
  nn::backend& ops() const { return *ops_; }
  /// Allocated, and in use under the current recipe.
  const nn::memory_plan& plan() const { return plan_; }
  /// In use under the current recipe.
  const nn::memory_plan& in_use() const { return in_use_; }
  /// Recipe of the next passes.
  const nn::recipe& current() const { return recipe_; }
  /// Tokens of a micro-batch.
  index_t pass_tokens() const { return inputs_.pass_tokens(); }
  /// Index of this rank's microbatch i over all ranks.
  int microbatch(int i) const { return static_cast<int>(exchange_.sums().leaf(static_cast<std::uint32_t>(i))); }
  /// Tokens of a step and rank.
  index_t step_tokens() const { return inputs_.step_tokens(); }

  /// Switches to recipe r, one of those the session was made for: releases quantized weights, uploads frozen ones from
  /// the stash on a queue of their own, and requantizes the others from their masters before the next step. `maxima`
  /// are those of observe_maxima, for scales that are seeded. Where one direction's GEMMs alone are `switched`, tensors
  /// that these do not read in FP8 keep their scales in any case.
  void use(const nn::recipe& r, nn::scale_handover how = nn::scale_handover::reset,
           const std::vector<float>& maxima = {}, nn::gemm_scope switched = nn::gemm_scope::all);
  /// Bytes before, during and after the last use().
  const switch_memory& last_switch() const { return last_switch_; }
  /// Largest magnitude of each tensor of all linear layers, in the order of delayed scaling. Taken in one step's passes
  /// of this rank under the current recipe; use() reduces them over ranks if the new recipe says so. Changes only
  /// gradients. Waits.
  std::vector<float> observe_maxima(nn::step_inputs inputs, token_ids tokens, token_ids targets, token_ids starts = {});
  /// Gradients of all trained parameters (the arena's elements), in one step's passes under recipe `r`. Changes only
  /// gradients. Waits.
  std::vector<float> gradients_under(const nn::recipe& r, nn::step_inputs inputs, token_ids tokens, token_ids targets,
                                     token_ids starts = {});
  /// Gradients of the step queued last, until another pass is queued. All ranks call it. Waits.
  std::vector<float> gradients() const { return exchange_.gradients(queue_); }
  /// Resets to a new session under `r`: no gradients, moments or history, scales of 1, nothing quantized. Every
  /// parameter must be loaded again.
  void reset(const nn::recipe& r) {
    snapshot_.order(*ops_, queue_);
    model_.weights().clear(queue_);
    exchange_.note_complete(!exchange_.divides_masters());
    use(r);
  }
  /// Sets other extents within the same memory, for evaluations and samples.
  void resize(index_t batch, index_t sequence) {
    if (batch == model_.options().batch && sequence == model_.options().sequence) return;
    model_.resize(batch, sequence);
    bind(true);
  }

  /// Sets seed and step for what follows, until a step or an evaluation sets its own. Frozen weights are quantized when
  /// they are loaded, with the signs and random words of these.
  void set_inputs(const nn::step_inputs& inputs) {
    ops_->upload(queue_, &inputs_.evaluation_state()->inputs, &inputs, sizeof inputs);
    ops_->synchronize(queue_);
  }
  /// Sets values of a parameter from element `first` on. They take effect once its last element is set.
  void load(std::size_t number, std::span<const float> values, index_t first = 0) {
    snapshot_.order(*ops_, queue_);
    exchange_.note_loaded();
    model_.weights().load(evaluation_pass(), number, first, values);
    if (first + static_cast<index_t>(values.size()) < model_.parameters()[number].size()) return;
    stash_.keep(evaluation_pass(), number, model_.weights().loaded(number));
  }
  /// Initial values from a seed.
  void initialize(std::uint64_t seed) { initialize(seed, 0); }
  /// Values of the base from a seed, made in backend memory: a matrix at a time, straight into its operands.
  /// initialize() gives other values.
  void draw_base(std::uint64_t seed) {
    const parameter_list& list = model_.parameters();
    for (std::size_t i = 0; i < list.base_count(); ++i) {
      const nn::initial_distribution& d = list[i].initial;
      if (d.what != nn::initial_distribution::kind::normal) {
        load(i, initial_values(list[i], seed));
        continue;
      }
      const auto words = nn::stream_for(seed, nn::random_purpose::initial_weights, list[i].stream);
      model_.weights().draw(evaluation_pass(), i, nn::normal_draw::of(words, d.scale));
      stash_.keep(evaluation_pass(), i, model_.weights().loaded(i));
    }
  }
  /// Draws the adapters alone. The base weights are given.
  void initialize_adapters(std::uint64_t seed) { initialize(seed, model_.parameters().base_count()); }

  /// Queues one optimizer step over this rank's micro_batches × batch × sequence tokens. `starts`, if the options ask
  /// for documents: position in its sequence where each token's document begins; empty: a sequence is a document.
  /// `observe` leaves statistics of the first microbatch, which needs options.model.statistics, and changes no bit.
  void train_step(const nn::step_inputs& inputs, token_ids tokens, token_ids targets, token_ids starts = {},
                  bool observe = false);
  /// Number of queued steps. The last two may be in flight. Steps are numbered from 0.
  std::uint64_t queued_steps() const { return transfers_.count(); }
  /// The state after step `number`. Waits for that step, not for later ones.
  nn::step_state finish_step(std::uint64_t number) {
    const step_transfer& t = transfers_.of(number);
    ops_->synchronize(t.done);
    return t.state->result;
  }
  /// The state after the step queued last. Waits for it.
  nn::step_state finish_step() { return finish_step(queued_steps() - 1); }
  /// After finish_step of step `number`: amax per tensor used for the latest scale update, over all ranks if the recipe
  /// says so. Empty if no GEMM reads FP8.
  std::span<const float> amaxes(std::uint64_t number) const {
    const step_transfer& t = transfers_.of(number);
    return t.has_scales ? t.amaxes : std::span<float>();
  }
  /// As model::statistics(), after finish_step; empty unless that step was observed.
  std::span<const linear_statistics> statistics() const {
    const step_transfer& t = transfers_.of(queued_steps() - 1);
    return t.observed ? t.statistics : std::span<linear_statistics>();
  }

  /// Gathers the weights that other ranks have updated. All ranks call it after steps, before other uses of the
  /// weights. `inputs` are those of the next passes.
  void complete_weights(const nn::step_inputs& inputs) {
    exchange_.gather_masters(queue_);
    if (!exchange_.divides_masters()) return;
    ops_->upload(queue_, &inputs_.evaluation_state()->inputs, &inputs, sizeof inputs);
    exchange_.requantize(evaluation_pass());
    ops_->synchronize(queue_);
  }
  /// Losses of each token. Changes neither parameters nor scales.
  std::vector<float> evaluate(const nn::step_inputs& inputs, token_ids tokens, token_ids targets,
                              token_ids starts = {}) {
    ROTOSCALE_ASSERT(exchange_.is_complete());
    inputs_.upload(queue_, inputs_.evaluation_state(), inputs, tokens, targets, starts);
    model_.weights().requantize(evaluation_pass());
    if (!evaluation_) {
      evaluation_ =
          ops_->capture(queue_, [this] { model_.forward(evaluation_pass(), inputs_.tokens(), inputs_.targets()); });
    }
    ops_->launch(queue_, *evaluation_);
    std::vector<float> losses(tokens.size());
    ops_->download(queue_, losses.data(), model_.loss(), losses.size() * sizeof(float));
    ops_->synchronize(queue_);
    return losses;
  }
  /// True if ranks exchange operands in each pass. All ranks must then call evaluate() equally often.
  bool has_joint_passes() const { return model_.weights().divided().is_divided(); }
  /// True if the session keeps a moving average of the weights.
  bool has_average() const { return options_.model.averages; }
  /// Calls f() while the trained weights are replaced by their moving average, for evaluations. Overwrites gradients.
  template <class Function>
  void with_average(const Function& f) {
    ROTOSCALE_ASSERT(has_average());
    nn::delayed_scaling_state& scales = model_.scales();
    const nn::scaling_snapshot before = scales.save(*ops_, queue_);
    const auto restore = [&] {
      exchange_average();
      scales.restore(*ops_, queue_, before);
    };
    exchange_average();
    try {
      f();
    } catch (...) {
      restore();
      throw;
    }
    restore();
  }
  /// Logits of one token of a pass. `tokens` follow `past` earlier tokens of their sequence, whose keys and values the
  /// cache has (options.model.cache). model().cache_rows() says which passes have equal bytes.
  std::vector<float> logits(const nn::step_inputs& inputs, token_ids tokens, index_t token, index_t past = 0) {
    ROTOSCALE_ASSERT(past >= 0 && (past == 0 || past + model_.tokens() <= options_.model.cache));
    std::vector<float> found;
    nn::pass p = evaluation_pass();
    p.past = past;
    inputs_.upload(queue_, inputs_.evaluation_state(), inputs, tokens, {}, {});
    run_logits(p, token, 1, [&](std::span<const float> row) { found.assign(row.begin(), row.end()); });
    return found;
  }
  /// Calls use(logits) for all tokens of a pass in order, [tokens, vocabulary] of at most options.model.head_chunk
  /// tokens at a time.
  void for_each_logits(const nn::step_inputs& inputs, token_ids tokens, token_ids starts,
                       const std::function<void(std::span<const float>)>& use) {
    inputs_.upload(queue_, inputs_.evaluation_state(), inputs, tokens, {}, starts);
    run_logits(evaluation_pass(), 0, model_.tokens(), use);
  }

  /// True if there is memory for take_snapshot().
  bool has_snapshot() const { return options_.snapshot != snapshot_use::none; }
  /// Copies the state that checkpoints hold and steps change, on a separate queue, after all steps queued so far. Later
  /// steps run meanwhile; only their update waits for the copies. Overwrites the previous snapshot.
  const snapshot& take_snapshot() {
    const parameter_list& list = model_.parameters();
    for (std::size_t i = options_.model.lora ? list.base_count() : 0; i < list.all().size(); ++i) {
      ROTOSCALE_ASSERT(has_snapshot() && list[i].trains);  // other state is in no arena
    }
    snapshot_.take(*ops_, queue_, model_);
    return snapshot_;
  }
  /// Waits until the snapshot taken last is in host memory.
  void finish_snapshot() const { snapshot_.finish(*ops_); }

  /// First trained parameter that is not finite, or whose squares overflow; null: none. All ranks call it.
  const parameter* find_overflow() { return exchange_.find_overflow(queue_); }

  /// A pass that a backward pass follows.
  nn::pass training_pass() {
    return {.ops = ops_,
            .queue = queue_,
            .state = inputs_.state(),
            .scales = &model_.scales(),
            .training = true,
            .ranks = ranks_};
  }
  /// A pass that leaves no trace.
  nn::pass evaluation_pass() {
    return {
        .ops = ops_, .queue = queue_, .state = inputs_.evaluation_state(), .scales = &model_.scales(), .ranks = ranks_};
  }

 private:
  friend nn::memory_plan plan_session(nn::backend&, const train::architecture&, session_options,
                                      const std::vector<nn::recipe>&, nn::communicator*);
  static session_options settled(session_options o, const nn::communicator* ranks) {
    o.model.averages = o.model.training && o.optimizer.average_decay > 0;
    if (ranks == nullptr || ranks->size() == 1 || !o.model.training) o.shard = shard_level::moments;
    o.model.codes_of_weights |= o.shard != shard_level::moments;
    o.model.lends_gradients &= o.shard != shard_level::gradients;
    return o;
  }
  struct only_count {};
  session(nn::backend& ops, const train::architecture& shape, session_options options, nn::communicator* ranks,
          only_count)
      : ops_(&ops),
        ranks_(ranks),
        options_(settled(std::move(options), ranks)),
        memory_(ops),
        model_(ops, shape, options_.model),
        inputs_(ops, options_.model.tokens(), options_.model.tokens() * options_.micro_batches, options_.documents),
        exchange_(ops, model_, options_.micro_batches, ranks, options_.shard, options_.reduce),
        graphs_(model_, exchange_, inputs_, options_.optimizer, options_.micro_batches) {
    if (options_.divides_frozen && options_.model.training) model_.weights().divided().divide(ops, ranks);
    if (exchange_.is_parallel()) options_.snapshot = snapshot_use::none;  // each rank writes its part of a checkpoint
  }

  nn::memory_plan count(const std::vector<nn::recipe>& recipes) {
    exchange_.divide(recipes);
    const bool tracks =
        std::any_of(recipes.begin(), recipes.end(), [](auto& r) { return r.deoscillation.has_value(); });
    if (tracks && exchange_.is_parallel()) throw std::invalid_argument("deoscillation: needs one rank");
    model_.weights().track_oscillation(tracks && options_.model.training);
    std::vector<std::vector<weight_location>> places;
    for (const nn::recipe& r : recipes) {
      nn::memory_cursor counting;
      lay_out(counting, r);
      places.push_back(model_.weights().locations());
    }
    stash_.plan(recipes, places);
    nn::memory_plan most;
    for (const nn::recipe& r : recipes) {
      nn::memory_cursor counting;
      lay_out(counting, r);
      lay_out_transfers(counting);
      most.cover(counting.plan());
    }
    return most;
  }
  /// Drops an optional snapshot if there is no room for it.
  nn::memory_plan count_within_limits(const std::vector<nn::recipe>& recipes) {
    nn::memory_plan plan = count(recipes);
    if (options_.snapshot != snapshot_use::if_it_fits) return plan;
    const bool fits = options_.memory_limit == 0 || plan.total() <= options_.memory_limit;
    const bool fits_host = options_.host_memory == 0 || plan[nn::memory_category::snapshot] <= options_.host_memory / 2;
    if (fits && fits_host) return plan;
    drop_snapshot(plan);
    return plan;
  }
  void drop_snapshot(nn::memory_plan& plan) {
    options_.snapshot = snapshot_use::none;
    plan[nn::memory_category::snapshot] = 0;
  }
  void allocate() {
    for (const auto& [c, name] : enum_names<nn::memory_category>::table) {
      if (plan_[c] == 0) continue;
      if (c == nn::memory_category::snapshot && options_.snapshot == snapshot_use::if_it_fits) continue;
      try {
        memory_.allocate(c, plan_[c]);
      } catch (const std::bad_alloc&) {
        throw out_of_memory(plan_, std::string(name), plan_[c]);
      }
    }
    nn::memory_cursor memory(memory_.bases());
    lay_out_transfers(memory);
    if (options_.snapshot != snapshot_use::if_it_fits) return;
    try {  // last, so that nothing else fails for it
      memory_.allocate(nn::memory_category::snapshot, plan_[nn::memory_category::snapshot]);
    } catch (const std::bad_alloc&) {
      drop_snapshot(plan_);
    }
  }
  void lay_out_transfers(nn::memory_cursor& memory) {
    transfers_.lay_out(memory, step_tokens(), options_.model.statistics ? record_count(model_.parameters()) : 0,
                       model_.scales().state().count);
  }
  void lay_out(nn::memory_cursor& memory, const nn::recipe& r, bool same_recipe = false) {
    inputs_.lay_out(memory);
    model_.lay_out(memory, r, same_recipe);
    exchange_.lay_out(memory, r);
    graphs_.lay_out(memory);
    stash_.lay_out(memory);
    if (has_snapshot()) snapshot_.lay_out(memory, model_);
  }
  void bind(bool same_recipe) {
    nn::memory_cursor memory(memory_.bases(), &ledger_);
    lay_out(memory, recipe_, same_recipe);
    in_use_ = memory.plan();
    in_use_[nn::memory_category::transfers] = plan_[nn::memory_category::transfers];
    if (!in_use_.fits(plan_)) throw std::logic_error("a session has no room for what it was not planned for");
    model_.prepare(queue_);
    model_.use_documents(inputs_.starts());
    evaluation_.reset();  // captured when there is something to evaluate
    graphs_.capture(training_pass(), recipe_);
  }
  /// Queues the gradients of a step.
  void launch_gradients(bool observe = false) {
    model_.weights().requantize(training_pass(), exchange_.is_parallel());
    graphs_.gradients(observe);
    model_.weights().note_quantized();
    exchange_.note_complete(true);
  }
  template <class Use>
  void run_logits(const nn::pass& p, index_t first, index_t count, const Use& use) {
    std::vector<float> host;
    model_.weights().requantize(p);
    model_.logits(p, inputs_.tokens(), first, count, [&](const nn::const_tensor_view& rows) {
      host.resize(static_cast<std::size_t>(rows.size()));
      ops_->download(queue_, host.data(), rows.data, host.size() * sizeof(float));
      ops_->synchronize(queue_);
      use(std::span<const float>(host));
    });
  }
  /// Swaps the trained weights with their moving average.
  void exchange_average() {
    snapshot_.order(*ops_, queue_);
    model_.weights().exchange_average(queue_);
    exchange_.note_complete(false);
    exchange_.gather_masters(queue_);
  }
  void initialize(std::uint64_t seed, std::size_t first) {
    for (std::size_t i = first; i < model_.parameters().all().size(); ++i) {
      const parameter& p = model_.parameters()[i];
      const bool divided = p.trains && exchange_.divides_masters();
      const nn::arena_range own = divided ? model_.weights().owned(i, {0, p.size()}) : nn::arena_range{0, p.size()};
      load(i, initial_values(p, seed, own), own.first);
      if (own.first + own.count < p.size()) load(i, {}, p.size());
    }
  }

  nn::backend* ops_;
  nn::communicator* ranks_ = nullptr;
  session_options options_;
  nn::memory_ledger ledger_;
  nn::arena_memory memory_;  // outlives all queues
  train::model model_;
  pass_inputs inputs_;
  weight_exchange exchange_;
  step_graphs graphs_;
  frozen_weights stash_;
  switch_memory last_switch_;
  nn::recipe recipe_;
  nn::memory_plan plan_, in_use_;
  nn::owned_queue queue_, stash_queue_;
  snapshot snapshot_;
  std::unique_ptr<nn::graph> evaluation_;
  step_transfers transfers_;
};

/// Bytes that a session of each rank would allocate. Allocates nothing.
inline nn::memory_plan plan_session(nn::backend& ops, const train::architecture& shape, session_options options,
                                    const std::vector<nn::recipe>& recipes, nn::communicator* ranks = nullptr) {
  return session(ops, shape, std::move(options), ranks, session::only_count{}).count_within_limits(recipes);
}

inline void session::train_step(const nn::step_inputs& inputs, token_ids tokens, token_ids targets, token_ids starts,
                                bool observe) {
  ROTOSCALE_ASSERT(options_.model.training && (options_.model.statistics || !observe) &&
                   static_cast<index_t>(tokens.size()) == step_tokens() && tokens.size() == targets.size() &&
                   (starts.empty() || starts.size() == tokens.size()));
  step_transfer& t = transfers_.begin(*ops_);
  std::copy(tokens.begin(), tokens.end(), t.tokens.begin());
  std::copy(targets.begin(), targets.end(), t.targets.begin());
  std::copy(starts.begin(), starts.end(), t.starts.begin());
  t.state->inputs = inputs;
  exchange_.sums().number(t.state->inputs);
  inputs_.upload(queue_, inputs_.state(), t.state->inputs, t.tokens, t.targets, t.starts.first(starts.size()));
  if (model_.weights().tracks_oscillation()) snapshot_.order(*ops_, queue_);
  model_.weights().deoscillate(training_pass(), inputs.step, recipe_.deoscillation);
  launch_gradients(observe);
  snapshot_.order(*ops_, queue_);
  graphs_.update();
  ops_->download(queue_, &t.state->result, inputs_.state(), sizeof(nn::step_state));
  t.has_scales = nn::has_delayed(recipe_);
  if (t.has_scales) ops_->download(queue_, t.amaxes.data(), graphs_.amaxes(), t.amaxes.size_bytes());
  t.observed = observe;
  if (observe) ops_->download(queue_, t.statistics.data(), model_.statistics(), t.statistics.size_bytes());
  t.done = ops_->record(queue_);
  t.in_flight = true;
  model_.weights().note_update();
  exchange_.note_complete(!exchange_.is_parallel());
}

inline void session::use(const nn::recipe& r, nn::scale_handover how, const std::vector<float>& maxima,
                         nn::gemm_scope switched) {
  constexpr nn::memory_category quantized = nn::memory_category::quantized;
  ops_->synchronize(queue_);  // the released operands have been read
  const bool keeps_all = how == nn::scale_handover::keep, keeps = keeps_all || switched != nn::gemm_scope::all;
  const bool has_scales = keeps && model_.scales().state().scale != nullptr;
  const nn::scaling_snapshot scales = has_scales ? model_.scales().save(*ops_, queue_) : nn::scaling_snapshot{};
  ledger_.restart_peak();
  last_switch_ = {ledger_.now()[quantized]};
  model_.weights().release();
  last_switch_.between = ledger_.now()[quantized];

  recipe_ = r;
  bind(false);
  exchange_.note_loaded();
  if (how == nn::scale_handover::seed) {
    model_.scales().record(*ops_, queue_, maxima);
    graphs_.update_scales();
  } else {
    model_.scales().reset(*ops_, queue_);
  }
  if (has_scales) model_.scales().keep(*ops_, queue_, scales, keeps_all ? nn::gemm_scope::all : switched);
  if (!stash_.empty()) {
    ops_->order(stash_queue_, ops_->record(queue_));
    last_switch_.streamed = stash_.stream(*ops_, stash_queue_, recipe_, model_.weights());
    ops_->order(queue_, ops_->record(stash_queue_));
  }
  last_switch_.after = ledger_.now()[quantized];
  last_switch_.peak = ledger_.peak()[quantized];
}

inline std::vector<float> session::observe_maxima(nn::step_inputs inputs, token_ids tokens, token_ids targets,
                                                  token_ids starts) {
  nn::delayed_scaling_state& scales = model_.scales();
  const nn::scaling_snapshot before = scales.save(*ops_, queue_);
  ops_->fill_zero(queue_, scales.state().amax, before.amax.size() * sizeof(float));
  scales.observe_all(true);
  exchange_.gather_masters(queue_);
  model_.weights().invalidate();
  exchange_.sums().number(inputs);
  inputs_.upload(queue_, inputs_.state(), inputs, tokens, targets, starts);
  exchange_.requantize(training_pass());
  graphs_.gradients_with_all_maxima();
  const std::vector<float> maxima = scales.save(*ops_, queue_).amax;
  scales.observe_all(false);
  scales.restore(*ops_, queue_, before);
  return maxima;
}

inline std::vector<float> session::gradients_under(const nn::recipe& r, nn::step_inputs inputs, token_ids tokens,
                                                   token_ids targets, token_ids starts) {
  const nn::recipe own = recipe_;
  const nn::scaling_snapshot before = model_.scales().save(*ops_, queue_);
  use(r);
  exchange_.sums().number(inputs);
  inputs_.upload(queue_, inputs_.state(), inputs, tokens, targets, starts);
  launch_gradients();
  std::vector<float> found = gradients();
  use(own);
  model_.scales().restore(*ops_, queue_, before);
  return found;
}

}  // namespace rotoscale::train
