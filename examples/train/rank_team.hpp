// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The ranks of a run with a backend each: threads of this process, of the CPU (train --ranks) or with a GPU (--gpus),
// or processes (--rendezvous).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "gpu/api/ranks.hpp"
#include "rotoscale/nn/process_ranks.hpp"
#include "rotoscale/nn/thread_ranks.hpp"

namespace rotoscale::program {

/// Prints a rank's failure and ends this process at once: threads may still compute, or connect a device. A kill leaves
/// as little.
[[noreturn]] void end(const nn::rank_failure& e);

class rank_team {
 public:
  /// Of a.gpus or a.session.ranks ranks, or of a launcher's, which it meets: sets their number, this process's
  /// communicator for plans, and the device with its threads. Throws io::error if the device has no ranks, and
  /// nn::rank_failure.
  explicit rank_team(arguments& a);

  /// Opens the device of this process's first rank.
  const chosen_backend& open(const device_choice& choice);
  /// Sets the communicator of that rank for training. Throws io::error without NCCL or RCCL.
  void link(arguments& a);
  /// Throws io::error if the run's steps cannot be divided among the ranks with equal bytes.
  void check(const trainer_state& state, const arguments& a) const;
  /// Does this process write the log?
  bool leads() const { return !process_ || process_->rank() == 0; }
  /// Returns body(), an exit code. If it throws, all processes end with its message.
  int run_process(const std::function<int()>& body);
  /// Runs this process's trainer, and those of its other ranks, which begin as it did. Returns the exit code.
  int run(trainer& first, const arguments& a, const trainer_state& state, const std::optional<resume_point>& from = {});

  /// Work of a rank, with its backend and communicator.
  using rank_body = std::function<void(nn::backend&, nn::communicator&)>;
  /// Calls body as each rank of this process: as rank 0 on this thread, as others on one thread each.
  void run_each(const rank_body& body);

  /// A line of plan for each rank but 0: bytes of all categories. `plan_of` gives a rank's plan.
  std::string memory_lines(const std::function<nn::memory_plan(nn::communicator*)>& plan_of);

 private:
  /// A rank's backend, and its communicator if ranks do not share memory. All outlive the last rank's work.
  struct member {
    chosen_backend device;
    std::unique_ptr<nn::thread_rank> host;  ///< that the link uses
    std::unique_ptr<gpu::device_rank> link;
  };

  void join(arguments& a);
  void link(member& own, nn::communicator& host) const;
  void run_first(trainer& first, std::optional<int>& code) const;
  void run_as(nn::thread_rank& rank, const rank_body& body);
  void run_other(nn::thread_rank& rank, const arguments& a, const trainer_state& state,
                 const std::optional<resume_point>& from);

  int size_;
  std::string flag_;  ///< that names the number of ranks
  std::chrono::seconds timeout_;
  bool reduces_;  ///< the library adds gradients
  nn::rank_group group_;
  nn::thread_rank first_;
  std::optional<nn::process_rank> process_;
  device_choice choice_;
  std::vector<member> members_;
};

}  // namespace rotoscale::program
