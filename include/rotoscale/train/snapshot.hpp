// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Copy in host memory of the state that checkpoints hold and steps change. A checkpoint is written from it while
// training continues.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "rotoscale/train/model.hpp"

namespace rotoscale::train {

namespace detail {

/// State of delayed scaling that a resumed run needs, without the recorded maxima.
struct scaling_memory {
  const char* name;
  float* memory;
  std::size_t count;
};
inline std::vector<scaling_memory> scaling_buffers(const nn::delayed_scaling_state& s) {
  const auto count = static_cast<std::size_t>(s.state().count);
  return {{"fp8.scale", s.state().scale, count},
          {"fp8.scale_inverse", s.state().scale_inverse, count},
          {"fp8.amax_history", s.state().history, s.history_size()}};
}

/// An arena of the optimizer's state: the prefix of its tensors' names in files, and its memory.
struct optimizer_arena {
  const char* prefix;
  float* nn::parameter_arena::*memory;
  bool may_lack = false;  ///< a file without it, as of a fork's parent, means zeros
};
/// Arenas of a model.
inline std::vector<optimizer_arena> optimizer_arenas_of(const model& m) {
  using arena = nn::parameter_arena;
  std::vector<optimizer_arena> all = {{"exp_avg.", &arena::m}, {"exp_avg_sq.", &arena::v}};
  if (m.options().averages) all.push_back({"weight_avg.", &arena::average});
  if (!m.weights().tracks_oscillation()) return all;
  all.insert(all.end(), {{"weight_last.", &arena::last, true},
                         {"quantized_last.", &arena::last_quantized, true},
                         {"weight_moved.", &arena::moved, true},
                         {"quantized_moved.", &arena::moved_quantized, true}});
  return all;
}

}  // namespace detail

/// Use of a snapshot: with one, steps continue while a checkpoint is written.
enum class snapshot_use {
  none,        ///< steps wait for checkpoints
  if_it_fits,  ///< within the limit of all memory and half of the host's
  required     ///< or the session is refused
};

/// The copy. It is made on a separate queue; only operations that change its sources wait for it.
class snapshot {
 public:
  float* weights = nullptr;           ///< trained parameters, in the order of their arena
  std::array<float*, 7> optimizer{};  ///< by detail::optimizer_arenas_of; null: none
  float* scales = nullptr;            ///< of delayed scaling: scales, inverses, histories

  /// Takes memory for a model's state.
  void lay_out(nn::memory_cursor& memory, const model& m) {
    constexpr nn::memory_category category = nn::memory_category::snapshot;
    weights = memory.array<float>(category, m.parameters().arena_size());
    for (std::size_t k = 0; k < detail::optimizer_arenas_of(m).size(); ++k) {
      optimizer[k] = memory.array<float>(category, m.parameters().arena_size());
    }
    std::size_t n = 0;
    for (const auto& buffer : detail::scaling_buffers(m.scales())) n += buffer.count;
    scales = memory.array<float>(category, static_cast<index_t>(n));
  }
  /// Makes the queue of the copies.
  void open(nn::backend& ops) { queue_ = {ops, "snapshot"}; }
  /// Queues copies of the state after the operations on `q` so far. Overwrites the previous snapshot.
  void take(nn::backend& ops, nn::queue q, const model& m) {
    // Scales are copied on `q`: they are few bytes, and a change of recipe lays them out again.
    float* to = scales;
    for (const auto& [name, memory, count] : detail::scaling_buffers(m.scales())) {
      ops.download(q, to, memory, count * sizeof(float));
      to += count;
    }
    ops.order(queue_, ops.record(q));
    const nn::parameter_arena a = m.arena();
    const std::size_t bytes = static_cast<std::size_t>(a.size) * sizeof(float);
    ops.download(queue_, weights, a.weight, bytes);
    float* const* copy = optimizer.data();
    for (const auto& arena : detail::optimizer_arenas_of(m)) ops.download(queue_, *copy++, a.*arena.memory, bytes);
    copied_ = ops.record(queue_);
    is_ordered_ = false;
  }
  /// Makes later operations on `q`, which change the sources, wait for the copies.
  void order(nn::backend& ops, nn::queue q) {
    if (is_ordered_) return;
    ops.order(q, *copied_);
    is_ordered_ = true;
  }
  /// Waits for the copies.
  void finish(nn::backend& ops) const {
    if (copied_) ops.synchronize(*copied_);
  }

 private:
  nn::owned_queue queue_;
  std::optional<nn::event> copied_;  ///< after the last copy
  bool is_ordered_ = true;
};

}  // namespace rotoscale::train
