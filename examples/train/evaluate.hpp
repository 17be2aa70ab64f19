// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Held-out loss of a model.
#pragma once

#include <optional>
#include <vector>

#include "data/data.hpp"
#include "progress.hpp"
#include "rotoscale/train/session.hpp"

namespace rotoscale::program {

struct evaluation {
  double loss = 0;                       ///< mean cross-entropy, nats a valid token
  std::vector<double> window_losses;     ///< of each window
  std::optional<double> standard_error;  ///< of `loss`, over windows; none for one window
  std::optional<double> bits_per_byte;   ///< of text; none if the bytes of tokens are unknown
  double loader_share = 0;               ///< of the time: reading windows
  double seconds = 0;                    ///< of the evaluation
};

/// Mean loss over at most `windows` windows, spread over the held-out text. Masked targets do not count. Scales stay
/// unchanged. `progress` receives every batch, and may end the evaluation by an exception. `ranks` share the batches,
/// and all of them return the figures of one rank.
evaluation evaluate(train::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                    const progress_function& progress = {}, nn::communicator* ranks = nullptr);

/// Writes a safetensors file. `logits` is F32 [windows, sequence, vocabulary] of the windows of evaluate(). `tokens`
/// and `targets` (-100: masked) are I32 [windows, sequence]. Records add `document_starts` (positions in the window).
/// Memory holds one chunk of the head's logits. Throws io::error; a file appears whole or not at all.
void write_logits(train::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                  const std::string& path, const progress_function& progress = {});

}  // namespace rotoscale::program
