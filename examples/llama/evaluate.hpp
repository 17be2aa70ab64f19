// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Held-out loss of a model.
#pragma once

#include "data/data.hpp"
#include "rotoscale/llama/model.hpp"

namespace rotoscale::llama_program {

struct evaluation {
  double loss = 0;                    ///< mean cross-entropy, nats a token
  std::vector<double> window_losses;  ///< of each window
};

/// Mean over `windows` windows (at most what the corpus holds) spread over the held-out text. Leaves no trace in
/// scales.
evaluation evaluate(llama::model& m, nn::pass_context context, const corpus& text, std::int64_t windows, int batch,
                    int sequence);

}  // namespace rotoscale::llama_program
