// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Host memory of the steps in flight: inputs and results.
#pragma once

#include <array>
#include <span>

#include "rotoscale/nn/device.hpp"
#include "rotoscale/nn/memory.hpp"
#include "rotoscale/nn/step_state.hpp"
#include "rotoscale/train/linears.hpp"

namespace rotoscale::train {

/// Pinned memory of one step.
struct step_transfer {
  /// Step state before and after.
  struct states {
    nn::step_inputs inputs;  ///< before
    nn::step_state result;   ///< after
  };
  std::span<std::int32_t> tokens;           ///< of the step
  std::span<std::int32_t> targets;          ///< of the step
  std::span<std::int32_t> starts;           ///< of the step's documents
  states* state = nullptr;                  ///< of the step
  std::span<linear_statistics> statistics;  ///< of its first microbatch
  std::span<float> amaxes;                  ///< of the latest scale update
  nn::event done;                           ///< after the step
  bool in_flight = false;                   ///< `done` was recorded
  bool observed = false;                    ///< has statistics
  bool has_scales = false;                  ///< has amaxes
};

/// Memory of two steps in flight.
class step_transfers {
 public:
  /// Takes memory. Called once: other extents of a pass do not change the steps in flight.
  void lay_out(nn::memory_cursor& memory, index_t tokens, index_t statistics, index_t scales) {
    const auto take = [&]<class T>(std::span<T>& to, index_t n) {
      T* const at = memory.array<T>(nn::memory_category::transfers, n);
      to = {at, at == nullptr ? 0 : static_cast<std::size_t>(n)};
    };
    for (step_transfer& t : all_) {
      t.state = memory.array<step_transfer::states>(nn::memory_category::transfers, 1);
      if (statistics != 0) take(t.statistics, statistics);
      take(t.amaxes, scales);
      take(t.tokens, tokens);
      take(t.targets, tokens);
      take(t.starts, tokens);
    }
  }
  /// Memory of the next step. Waits for the step before the last.
  step_transfer& begin(nn::device& on) {
    step_transfer& t = all_[count_++ % all_.size()];
    if (t.in_flight) on.synchronize(t.done);
    return t;
  }
  /// Steps so far.
  std::uint64_t count() const { return count_; }
  /// One of the last two steps.
  const step_transfer& of(std::uint64_t number) const {
    ROTOSCALE_ASSERT(number < count_ && number + all_.size() >= count_);
    return all_[static_cast<std::size_t>(number) % all_.size()];
  }

 private:
  std::array<step_transfer, 2> all_;
  std::uint64_t count_ = 0;
};

}  // namespace rotoscale::train
