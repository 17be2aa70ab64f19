// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rotoscale/io/error.hpp"
#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::program {

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

/// Logits after a text. The last `longest` tokens go through the model. With a cache of keys and values, only new
/// tokens do.
class text_logits {
 public:
  text_logits(train::session& s, const nn::step_inputs& now) : session_(&s), now_(now) {}

  std::vector<float> logits_after(const std::vector<std::int32_t>& text) {
    const auto longest = static_cast<index_t>(session_->model().shape().positions);
    const auto n = static_cast<index_t>(text.size()), last = n - 1, first = std::max<index_t>(0, n - longest);
    if (first == 0 && kept_ && session_->model().cache_rows() > 0) {
      const index_t rows = session_->model().cache_rows(), begin = last / rows * rows;
      return pass(text, begin, std::min(rows, session_->model().options().cache - begin), begin);
    }
    // A text that is longer begins elsewhere each time, so that all its tokens have other places.
    kept_ = first == 0;
    return pass(text, first, std::min(longest, (n - first + 31) / 32 * 32), 0);
  }

 private:
  /// A pass over `count` tokens from `begin`, with padding after the text. Attention is causal, so finite padding
  /// changes nothing.
  std::vector<float> pass(const std::vector<std::int32_t>& text, index_t begin, index_t count, index_t past) {
    std::vector<std::int32_t> window(text.begin() + begin, text.end());
    window.resize(static_cast<std::size_t>(count), 0);
    session_->resize(1, count);
    return session_->logits(now_, window, static_cast<index_t>(text.size()) - 1 - begin, past);
  }

  train::session* session_;
  nn::step_inputs now_;
  bool kept_ = false;
};

}  // namespace

void sample(train::session& s, const nn::step_inputs& now, const sample_options& o, const tokenizer& t,
            const std::function<void(std::string_view)>& emit) {
  const random_stream random = nn::stream_for(o.seed, nn::random_purpose::sampling, 0);
  text_logits model(s, now);
  std::vector<std::int32_t> text;
  if (o.begins) text.push_back(t.begin_of_text());
  t.encode(o.prompt.empty() ? "\n" : o.prompt, text);
  for (int i = 0; i < o.tokens; ++i) {
    const auto logits = model.logits_after(text);
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

}  // namespace rotoscale::program
