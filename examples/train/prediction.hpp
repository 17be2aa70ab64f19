// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Predicts a step on many GPUs from the profile of one and the rates of links: plan --profile.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "options.hpp"
#include "rotoscale/nn/communicator.hpp"
#include "rotoscale/nn/memory.hpp"

namespace rotoscale::program {

/// GPUs and their links.
struct cluster {
  std::string profile;  ///< what `profile` printed, on one GPU; empty: no prediction
  int gpus = 1;         ///< of a node
  int nodes = 1;
  double link = 0;       ///< GB/s of a GPU, each way, to GPUs of its node
  double node_link = 0;  ///< GB/s of a GPU, each way, to other nodes
};

/// Options that the prediction needs.
struct predicted_run {
  double flops_per_token = 0;
  double trained = 0;         ///< parameters in the arena
  double gathered = 0;        ///< bytes of updated weights or operands, of all ranks
  bool reduces_each = false;  ///< gradients of each microbatch are reduced, else their sums
  bool reduces_once = false;  ///< one sum of a rank is reduced, else nodes of the tree
  double frozen = 0;          ///< bytes of operands that ranks divide
  double backward = 0;        ///< share of a microbatch that is its backward pass
  int groups = 1;             ///< of gradients that are reduced one after the other
  int tokens = 0;             ///< of a microbatch
  int microbatches = 1;
  std::function<nn::memory_plan(nn::communicator&, int microbatches)> memory;  ///< of a rank
};

/// Prints the times of a step, its efficiency, and the memory of ranks. Throws io::error.
void predict(const cluster& c, const predicted_run& run, std::ostream& out);

}  // namespace rotoscale::program
