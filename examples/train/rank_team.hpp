// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of a run with a CPU backend each: threads of this process (train --ranks), or processes (--rendezvous).
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "arguments.hpp"
#include "rotoscale/nn/process_ranks.hpp"
#include "rotoscale/nn/thread_ranks.hpp"

namespace rotoscale::program {

class rank_team {
 public:
  /// Of a.session.ranks ranks, or of a launcher's, which it meets: sets this process's communicator, and the device
  /// with its threads. Throws io::error if the device has no ranks, and nn::rank_failure.
  explicit rank_team(arguments& a);

  /// Throws io::error if the run's steps cannot be divided among the ranks with equal bytes.
  void check(const trainer_state& state, const arguments& a) const;
  /// Does this process write the log?
  bool leads() const { return !process_ || process_->rank() == 0; }
  /// Returns body(), an exit code. If it throws, all processes end with its message.
  int run_process(const std::function<int()>& body);
  /// Runs this process's trainer, and those of its other ranks, which begin as it did. Returns the exit code.
  int run(trainer& first, const arguments& a, const trainer_state& state, const std::optional<resume_point>& from = {});

  /// A line of plan for each rank but 0: bytes of all categories. `plan_of` gives a rank's plan.
  std::string memory_lines(const std::function<nn::memory_plan(nn::communicator*)>& plan_of);

 private:
  void join(arguments& a);

  int size_;
  nn::rank_group group_;
  nn::thread_rank first_;
  std::optional<nn::process_rank> process_;
};

}  // namespace rotoscale::program
