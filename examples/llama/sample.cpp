// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rotoscale/io/error.hpp"
#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::llama_program {

namespace {

/// Draws from softmax(logits / temperature) over the top_k likeliest of `count` tokens; `u` is uniform in [0, 1).
int draw(const float* logits, int count, const sample_options& o, double u) {
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (o.temperature <= 0.0) return order[0];
  const int kept = o.top_k > 0 ? std::min(o.top_k, count) : count;
  std::vector<double> weights;
  double total = 0;
  for (int i = 0; i < kept; ++i) {
    weights.push_back(std::exp(
        (static_cast<double>(logits[order[static_cast<std::size_t>(i)]]) - static_cast<double>(logits[order[0]])) /
        o.temperature));
    total += weights.back();
  }
  double left = u * total;
  int i = 0;
  while (i + 1 < kept && left >= weights[static_cast<std::size_t>(i)]) left -= weights[static_cast<std::size_t>(i++)];
  return order[static_cast<std::size_t>(i)];
}

}  // namespace

void sample(llama::session& s, const nn::step_inputs& now, const sample_options& o, const tokenizer& t,
            const std::function<void(std::string_view)>& emit) {
  const random_stream random = nn::stream_for(o.seed, nn::random_purpose::sampling, 0);
  const auto longest = static_cast<std::size_t>(s.model().config().max_position_embeddings);
  std::vector<std::int32_t> text;
  t.encode(o.prompt.empty() ? "\n" : o.prompt, text);
  for (int i = 0; i < o.tokens; ++i) {
    // The last `longest` tokens, padded at the end to whole blocks: attention is causal, so padding changes nothing (of
    // finite values).
    const std::size_t first = text.size() > longest ? text.size() - longest : 0;
    std::vector<std::int32_t> window(text.begin() + static_cast<std::ptrdiff_t>(first), text.end());
    const std::size_t last = window.size() - 1;
    window.resize(std::min(longest, (window.size() + 31) / 32 * 32), 0);
    s.resize(1, static_cast<index_t>(window.size()));
    const auto logits = s.logits(now, window, static_cast<index_t>(last));
    for (const float z : logits) {
      if (!std::isfinite(z)) throw io::error("checkpoint", "the model's output is not finite");
    }
    const double u = random.word(static_cast<std::uint64_t>(i)) * 0x1p-32;
    // A model's vocabulary may be larger; other tokens are no text.
    const std::int32_t token[] = {draw(logits.data(), t.vocabulary(), o, u)};
    text.push_back(token[0]);
    emit(t.decode(token));
  }
}

}  // namespace rotoscale::llama_program
