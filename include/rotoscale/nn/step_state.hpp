// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Values that change between steps, in backend memory. Operations read them there; none is an argument by value. A
// recorded graph therefore fits every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rotoscale/nn/microbatch_tree.hpp"

namespace rotoscale::nn {

/// Inputs that the host decides before a step: one upload.
struct step_inputs {
  std::uint64_t seed = 0;                ///< of all random words
  std::uint64_t step = 0;                ///< optimizer step, counted from 0
  float learning_rate = 0.0f;            ///< of this step
  float bias_correction1 = 1.0f;         ///< 1 - beta1^(step + 1)
  float bias_correction2 = 1.0f;         ///< 1 - beta2^(step + 1)
  std::uint32_t first_micro_batch = 0;   ///< first number of this rank among the microbatches of all ranks
  std::uint32_t micro_batch_stride = 1;  ///< distance of this rank's numbers
  std::uint32_t last_micro_batch = 0;    ///< last number over all ranks
};

/// The block of backend memory: the host's upload, and results of operations.
struct step_state {
  step_inputs inputs;                     ///< uploaded values
  std::uint32_t micro_batch = 0;          ///< of this rank, counted from 0 in each step
  std::uint32_t nonfinite = 0;            ///< gradients that are NaN or Inf
  std::int64_t valid_tokens = 0;          ///< unmasked targets of the step, over all microbatches and ranks
  double loss_sum = 0.0;                  ///< nats over valid tokens so far, by the tree after next_micro_batch
  double squares = 0.0;                   ///< sum of squares of all gradients
  double gradient_norm = 0.0;             ///< root of squares
  float gradient_scale = 0.0f;            ///< 1 / valid_tokens, 0 where there are none
  float clip_factor = 1.0f;               ///< factor of gradients
  double losses[most_microbatches] = {};  ///< nats of each microbatch of all ranks

  /// The micro-batch's number over all ranks: a leaf of the tree, and the counter of random streams.
  ROTOSCALE_HD constexpr std::uint64_t global_micro_batch() const {
    return inputs.first_micro_batch + std::uint64_t{micro_batch} * inputs.micro_batch_stride;
  }
  /// Takes the nats of the current microbatch.
  ROTOSCALE_HD void add_loss(double nats) {
    losses[global_micro_batch() % most_microbatches] = nats;
    loss_sum += nats;
  }
  /// Adds losses by the tree, with 0 for later microbatches. Goes to the next microbatch.
  ROTOSCALE_HD void end_micro_batch() {
    loss_sum = add_leaves(losses, inputs.last_micro_batch % most_microbatches + 1);
    ++micro_batch;
  }
  /// Nats a token; 0 where all targets are masked.
  double mean_loss() const { return valid_tokens == 0 ? 0.0 : loss_sum / static_cast<double>(valid_tokens); }
};
static_assert(std::is_trivially_copyable_v<step_state> && std::is_standard_layout_v<step_state>);

/// AdamW's constants of a run (Loshchilov and Hutter, as PyTorch computes it).
struct optimizer_config {
  float beta1 = 0.9f;          ///< decay of the first moments
  float beta2 = 0.95f;         ///< decay of the second moments
  float epsilon = 1e-8f;       ///< added to the denominator
  float weight_decay = 0.0f;   ///< of matrices; vectors have none
  double clip = 0.0;           ///< largest norm of all gradients; 0: no clipping
  float average_decay = 0.0f;  ///< of the moving average of weights, where the arena has one
};

}  // namespace rotoscale::nn
