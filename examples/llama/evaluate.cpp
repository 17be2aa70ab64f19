// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "evaluate.hpp"

#include <algorithm>

namespace rotoscale::llama_program {

evaluation evaluate(llama::model& m, nn::pass_context context, const corpus& text, std::int64_t windows, int batch,
                    int sequence) {
  context.training = false;
  windows = std::min(windows, text.validation_windows());
  m.reserve(batch, sequence);
  evaluation result;
  for (std::int64_t first = 0; first < windows; first += batch) {
    const token_batch data = text.validation_batch(first, batch, windows);
    const std::vector<float> losses = m.forward(context, data.tokens, data.targets, 0.0f);
    for (std::int64_t w = 0; w < std::min<std::int64_t>(batch, windows - first); ++w) {
      double sum = 0;
      for (int t = 0; t < sequence; ++t) sum += static_cast<double>(losses[static_cast<std::size_t>(w * sequence + t)]);
      result.window_losses.push_back(sum / sequence);
    }
  }
  for (const double l : result.window_losses) result.loss += l;
  result.loss /= static_cast<double>(windows);
  return result;
}

}  // namespace rotoscale::llama_program
