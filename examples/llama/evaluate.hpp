// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Held-out loss of a model.
#pragma once

#include <optional>
#include <vector>

#include "data/data.hpp"
#include "progress.hpp"
#include "rotoscale/llama/session.hpp"

namespace rotoscale::llama_program {

struct evaluation {
  double loss = 0;                       ///< mean cross-entropy, nats a valid token
  std::vector<double> window_losses;     ///< of each window
  std::optional<double> standard_error;  ///< of `loss`, from the spread of windows; none of one window
  std::optional<double> bits_per_byte;   ///< of text; none where nobody knows the bytes of tokens
  double loader_share = 0;               ///< of the time: reading windows
  double seconds = 0;                    ///< that it took
};

/// Mean over `windows` windows (at most what the corpus holds) spread over the held-out text; masked targets count
/// nowhere. Leaves no trace in scales. `progress` hears of every batch, and may end the evaluation by an exception.
evaluation evaluate(llama::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                    const progress_function& progress = {});

/// Writes a safetensors file: `logits` F32 [windows, sequence, vocabulary] of the windows that evaluate() would take,
/// and beside them I32 [windows, sequence] `tokens`, `targets` (-100: masked) and, of records, `document_starts`
/// (places within the window). No more than a chunk of the head's is in memory. Throws io::error; the file appears
/// whole or not at all.
void write_logits(llama::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                  const std::string& path, const progress_function& progress = {});

}  // namespace rotoscale::llama_program
