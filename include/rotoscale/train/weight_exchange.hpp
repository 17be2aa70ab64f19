// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Division of weights and gradients among ranks: the parts of each rank, and whether a rank has the others' updates.
#pragma once

#include <cmath>
#include <utility>
#include <vector>

#include "rotoscale/nn/schedule.hpp"
#include "rotoscale/train/gradient_sums.hpp"
#include "rotoscale/train/model.hpp"
#include "rotoscale/train/weight_gather.hpp"

namespace rotoscale::train {

/// This rank's parts of weights and gradients, and their exchange. A single rank owns all.
class weight_exchange {
 public:
  /// `m` must outlive it. `micro_batches`: of a step and rank. `ranks` may be null: one rank.
  weight_exchange(nn::backend& ops, model& m, int micro_batches, nn::communicator* ranks, shard_level level,
                  gradient_reduction reduction)
      : ops_(&ops),
        model_(&m),
        ranks_(ranks),
        level_(level),
        sums_(ops, micro_batches, ranks, divides_gradients(), reduction),
        gather_(ops, m.weights(), sums_, ranks) {}
  weight_exchange(const weight_exchange&) = delete;
  weight_exchange& operator=(const weight_exchange&) = delete;

  /// More than one rank?
  bool is_parallel() const { return sums_.is_parallel(); }
  /// Has this rank the gradients of its own parts alone?
  bool divides_gradients() const { return level_ == shard_level::gradients; }
  /// Has this rank the FP32 weights of its own parts alone?
  bool divides_masters() const { return level_ != shard_level::moments; }
  /// Sums over microbatches and ranks.
  const gradient_sums& sums() const { return sums_; }
  /// Operands of divided masters.
  const weight_gather& gather() const { return gather_; }
  /// Queue between ranks.
  nn::queue queue() const { return queue_; }

  /// Divides the arenas among ranks. Rows of masters that a recipe quantizes together stay together.
  void divide(const std::vector<nn::recipe>& recipes) {
    std::vector<nn::arena_range> ranges;
    for (const auto& g : groups()) ranges.insert(ranges.end(), g.begin(), g.end());
    index_t rows = 1;
    for (const nn::recipe& r : recipes) rows = std::max(rows, rows_quantized_together(r));
    if (divides_masters()) {
      sums_.divide(ranges, [&](index_t element) { return nearest_cut(model_->parameters(), element, rows); });
    } else {
      sums_.divide(ranges);
    }
    weights().set_shards(sums_.shards({0, model_->parameters().arena_size()}), level_);
    if (!divides_gradients()) return;
    std::vector<bool> early;
    for (std::size_t g = 0; g < model_->groups(); ++g) early.push_back(model_->has_early_gradients(g));
    weights().set_gradient_places({groups(), early});
  }
  /// Takes memory after the model did, for recipe `r`.
  void lay_out(nn::memory_cursor& memory, const nn::recipe& r) {
    squares_ = memory.array<double>(nn::memory_category::workspace,
                                    static_cast<index_t>(model_->parameters().segments().size()));
    if (model_->options().training) {
      const index_t all = model_->parameters().arena_size();
      sums_.lay_out(memory, divides_gradients() ? weights().owned_count() : all, weights().own_gradients());
    }
    if (divides_masters()) gather_.lay_out(memory, groups(), r);
  }
  /// Makes the queue between ranks. No rank has loaded weights yet.
  void open() {
    if (is_parallel() && model_->options().training) queue_ = {*ops_, "exchange"};
    weights().divided().gather_on(queue_);
    is_complete_ = !divides_masters();
  }

  /// Has this rank the updates of all others?
  bool is_complete() const { return is_complete_; }
  /// Notes that passes have gathered all updates, or that there are new ones.
  void note_complete(bool complete) { is_complete_ = complete; }
  /// Notes new values of parameters.
  void note_loaded() { is_complete_ &= !divides_masters(); }
  /// Gathers the FP32 weights that other ranks have updated, unless masters are divided.
  void gather_masters(nn::queue q) {
    if (divides_masters() || std::exchange(is_complete_, true)) return;
    sums_.gather_shards(q, model_->arena().weight);
  }
  /// Quantizes every weight that changed. All ranks call it if masters are divided.
  void requantize(const nn::pass& p) {
    weights().requantize(p);
    if (!divides_masters()) return;
    ops_->follow(queue_, p.queue);
    nn::pass arriving = p;
    arriving.queue = queue_;
    gather_.gather_changed(arriving, !std::exchange(is_complete_, true));
    ops_->follow(p.queue, queue_);
    weights().note_quantized();
  }

  /// First trained parameter that is not finite, or whose squares overflow; null: none. All ranks call it.
  const parameter* find_overflow(nn::queue q);
  /// Gradients of all trained parameters. All ranks call it. Waits.
  std::vector<float> gradients(nn::queue q) const {
    if (divides_gradients()) return gather_gradients(q);
    sums_.gather_shards(q, model_->arena().gradient);
    return download(q, model_->arena().gradient, model_->arena().size);
  }

 private:
  class weights& weights() const {
    return model_->weights();
  }
  std::vector<std::vector<nn::arena_range>> groups() const {
    std::vector<std::vector<nn::arena_range>> all;
    for (std::size_t g = 0; g < model_->groups(); ++g) all.push_back(model_->ranges_of(g));
    return all;
  }
  template <class T>
  std::vector<T> download(nn::queue q, const T* from, index_t count) const {
    std::vector<T> host(static_cast<std::size_t>(count));
    ops_->download(q, host.data(), from, host.size() * sizeof(T));
    ops_->synchronize(q);
    return host;
  }
  std::vector<float> gather_gradients(nn::queue q) const;

  nn::backend* ops_;
  model* model_;
  nn::communicator* ranks_;
  shard_level level_;
  gradient_sums sums_;
  weight_gather gather_;
  nn::owned_queue queue_;
  double* squares_ = nullptr;
  bool is_complete_ = true;
};

inline const parameter* weight_exchange::find_overflow(nn::queue q) {
  gather_masters(q);
  const parameter_list& list = model_->parameters();
  std::vector<double> own(list.all().size());
  for (const nn::parameter_arena& part : weights().shards()) {
    ops_->sum_squares(q, {part.weight, part}, {squares_});
    const std::vector<double> squares = download(q, squares_, static_cast<index_t>(part.segments.size()));
    std::size_t i = 0;
    for (std::size_t n = 0; n < own.size(); ++n) {
      const nn::arena_range r = list[n].trains ? weights().owned(n, {0, list[n].size()}) : nn::arena_range{};
      if (r.count == 0) continue;
      const float* const at = weights().master(n, r.first);
      if (at >= part.weight && at < part.weight + part.size) own[n] = squares[i++];
    }
  }
  const auto all = ranks_ == nullptr ? std::vector<std::vector<double>>{own} : nn::gather_values<double>(*ranks_, own);
  for (std::size_t n = 0; n < own.size(); ++n) {
    double sum = 0;
    for (const std::vector<double>& rank : all) sum += rank[n];
    if (!std::isfinite(sum)) return &list[n];
  }
  return nullptr;
}

/// Gradients of all ranks' parts, through host memory.
inline std::vector<float> weight_exchange::gather_gradients(nn::queue q) const {
  const std::vector<float> own = download(q, weights().own_gradients(), weights().owned_count());
  const auto by_rank = nn::gather_values<float>(*ranks_, own);
  std::vector<float> all(static_cast<std::size_t>(model_->parameters().arena_size()));
  std::vector<std::size_t> taken(by_rank.size());
  for (const auto& ranges : groups()) {
    for (const nn::arena_range& r : ranges) {
      for (std::size_t s = 0; s < by_rank.size(); ++s) {
        const nn::arena_range part = sums_.part_of(r, static_cast<int>(s));
        std::copy_n(by_rank[s].begin() + static_cast<std::ptrdiff_t>(taken[s]), part.count, all.begin() + part.first);
        taken[s] += static_cast<std::size_t>(part.count);
      }
    }
  }
  return all;
}

}  // namespace rotoscale::train
