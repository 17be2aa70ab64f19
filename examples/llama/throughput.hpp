// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Arithmetic that a model needs, and the rate at which this machine could do it.
#pragma once

#include <optional>
#include <string>

#include "rotoscale/llama/model.hpp"

namespace rotoscale::llama_program {

/// Floating-point operations of a training step by token: 6 for each weight of a matrix that trains (fprop, dgrad,
/// wgrad; an addition and a product each), 4 for a frozen one, none for looking up an embedding, and causal attention's
/// 6 layers · query size · sequence. What is recomputed or emulated does not count.
double model_flops_per_token(const llama::model& m, int sequence);

/// A rate in FLOP/s that a share can be of, and where it is from.
struct roof {
  double flops_per_s = 0;
  std::string source;
};

/// "" gives none, "measure" FP32 fused multiply-adds in registers by `threads` threads, anything else is the rate.
/// Throws io::error for what is none, and where so many threads cannot be started.
std::optional<roof> make_roof(const std::string& option, int threads);

}  // namespace rotoscale::llama_program
