// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// A session's copy of what its checkpoints hold and steps change: a checkpoint is written from it while steps go on.
#pragma once

#include <vector>

#include "rotoscale/llama/session_class.hpp"

namespace rotoscale::llama {

namespace detail {

/// What goes on with the same bits (amax is recorded anew).
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

}  // namespace detail

inline void session::lay_out_snapshot(nn::memory_cursor& memory) {
  if (!has_snapshot()) return;
  constexpr nn::memory_category category = nn::memory_category::snapshot;
  const index_t n = model_.parameters().arena_size();
  for (float** arena : {&snapshot_.weights, &snapshot_.first_moments, &snapshot_.second_moments}) {
    *arena = memory.array<float>(category, n);
  }
  std::size_t scales = 0;
  for (const auto& buffer : detail::scaling_buffers(model_.scales())) scales += buffer.count;
  snapshot_.scales = memory.array<float>(category, static_cast<index_t>(scales));
}

/// Last, so that nothing else fails for it; what the backend refuses is done without.
inline void session::try_snapshot() {
  constexpr nn::memory_category c = nn::memory_category::snapshot;
  try {
    memory_.allocate(c, plan_[c]);
  } catch (const std::bad_alloc&) {
    drop_snapshot(plan_);
  }
}

inline void session::finish_snapshot() const {
  if (snapshot_.copied) ops_->synchronize(*snapshot_.copied);
}

inline const session_snapshot& session::take_snapshot() {
  const parameter_list& list = model_.parameters();
  for (std::size_t i = options_.model.lora ? list.base_count() : 0; i < list.all().size(); ++i) {
    ROTOSCALE_ASSERT(has_snapshot() && list[i].trains);  // what does not is in no arena
  }
  // Scales on the queue of the steps: these are few bytes, and a change of recipe lays them out anew.
  float* to = snapshot_.scales;
  for (const auto& [name, memory, count] : detail::scaling_buffers(model_.scales())) {
    ops_->download(queue_, to, memory, count * sizeof(float));
    to += count;
  }
  ops_->order(snapshot_queue_, ops_->record(queue_));
  const nn::parameter_arena a = model_.arena();
  const std::size_t bytes = static_cast<std::size_t>(a.size) * sizeof(float);
  ops_->download(snapshot_queue_, snapshot_.weights, a.weight, bytes);
  ops_->download(snapshot_queue_, snapshot_.first_moments, a.m, bytes);
  ops_->download(snapshot_queue_, snapshot_.second_moments, a.v, bytes);
  snapshot_.copied = ops_->record(snapshot_queue_);
  snapshot_.is_spared = false;
  return snapshot_;
}

/// What comes on the session's queue waits for the copies, of whose sources it changes some.
inline void session::spare_snapshot() {
  if (snapshot_.is_spared) return;
  ops_->order(queue_, *snapshot_.copied);
  snapshot_.is_spared = true;
}

}  // namespace rotoscale::llama
