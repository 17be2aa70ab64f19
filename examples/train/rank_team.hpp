// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of a run, threads of this process with a CPU backend each: train --ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "arguments.hpp"
#include "rotoscale/nn/thread_ranks.hpp"

namespace rotoscale::program {

class rank_team {
 public:
  /// Of a.session.ranks ranks: sets the communicator of rank 0, and the device with its threads. Throws io::error if
  /// the device has no ranks.
  explicit rank_team(arguments& a);

  /// Throws io::error if the run's steps cannot be divided among the ranks with equal bytes.
  void check(const trainer_state& state, const arguments& a) const;
  /// Runs the trainer of rank 0 on this thread, and those of other ranks, which begin as it did. Returns the exit code.
  int run(trainer& first, const arguments& a, const trainer_state& state, const std::optional<resume_point>& from = {});

  /// A line of plan for each rank but 0: bytes of all categories. `plan_of` gives a rank's plan.
  std::string memory_lines(const std::function<nn::memory_plan(nn::communicator*)>& plan_of);

 private:
  int size_;
  nn::rank_group group_;
  nn::thread_rank first_;
};

}  // namespace rotoscale::program
