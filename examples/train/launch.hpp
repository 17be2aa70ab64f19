// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Processes that torchrun, srun, mpirun or a user starts as ranks of one run: their variables, and where they meet.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rotoscale/nn/rank_meeting.hpp"

namespace rotoscale::program {

/// Place of this process among the processes of its start.
struct launch_place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  ///< on this host; size 0: unknown
  std::string start;                   ///< the launcher's name of this start; empty: unknown

  /// Are all ranks on this host?
  bool is_local() const { return local_size == size; }
};

/// Reads the launcher's variables. Throws io::error if there are none, or they contradict each other.
launch_place find_launch();

/// Connects all ranks. `where` is a file that rank 0 writes for the others, or "env": MASTER_ADDR and MASTER_PORT.
/// Throws io::error, and nn::rank_failure also if a rank does not come before the timeout.
std::vector<nn::rank_socket> meet_ranks(const launch_place& place, const std::string& where,
                                        std::chrono::milliseconds timeout);

}  // namespace rotoscale::program
