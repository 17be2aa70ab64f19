// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arithmetic that a model needs, and the rate at which this machine could do it.
#pragma once

#include <optional>
#include <string>

#include "rotoscale/train/model.hpp"

namespace rotoscale::program {

/// Floating-point operations of a training step per token. Trained weights count 6 (an addition and a product in fprop,
/// dgrad and wgrad), frozen ones 4. Causal attention counts 6 layers · query size · sequence. Embedding look-ups,
/// recomputed and emulated operations do not count.
double model_flops_per_token(const train::model& m, int sequence);

/// A rate in FLOP/s to compare with, and its source.
struct roof {
  double flops_per_s = 0;
  std::string source;
};

/// Reads --roof. "" gives none. "measure" measures FP32 fused multiply-adds in registers on `threads` threads. Anything
/// else is a rate. Throws io::error for an invalid rate, or if the threads cannot be started.
std::optional<roof> make_roof(const std::string& option, int threads);

}  // namespace rotoscale::program
