// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "evaluate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "clock.hpp"
#include "rotoscale/io/safetensors.hpp"

namespace rotoscale::program {

namespace {

/// Standard error of the weighted mean of losses.
std::optional<double> standard_error(const std::vector<double>& losses, const std::vector<double>& weights,
                                     double mean) {
  const auto n = static_cast<double>(losses.size());
  double squares = 0, total = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double d = weights[i] * (losses[i] - mean);
    squares += d * d;
    total += weights[i];
  }
  if (n < 2 || !(total > 0)) return std::nullopt;
  return std::sqrt(squares * n / (n - 1)) / total;
}

}  // namespace

evaluation evaluate(train::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                    const progress_function& progress) {
  const auto batch = static_cast<int>(s.model().options().batch);
  const auto sequence = static_cast<std::size_t>(s.model().options().sequence);
  windows = std::min(windows, text.validation_windows());
  evaluation result;
  double weight = 0;  // of windows; 1 if nothing is masked
  std::vector<double> shares;
  std::int64_t tokens = 0, bytes = 0;
  const double start = now_seconds();
  double loading = 0;
  for (std::int64_t first = 0; first < windows; first += batch) {
    if (progress) progress(first, windows);
    const double before = now_seconds();
    const token_batch data = text.validation_batch(first, batch, windows);
    loading += now_seconds() - before;
    bytes += text.bytes_of(data.targets);
    const std::vector<float> losses = s.evaluate(now, data.tokens, data.targets, data.document_starts);
    for (std::size_t w = 0; w < static_cast<std::size_t>(std::min<std::int64_t>(batch, windows - first)); ++w) {
      double sum = 0;
      std::int64_t valid = 0;
      for (std::size_t t = w * sequence; t < (w + 1) * sequence; ++t) {
        sum += static_cast<double>(losses[t]);
        valid += data.targets[t] != nn::ignored_target;
      }
      tokens += valid;
      const double mean = valid == 0 ? 0.0 : sum / static_cast<double>(valid);
      const double share = static_cast<double>(valid) / static_cast<double>(sequence);
      result.window_losses.push_back(mean);
      shares.push_back(share);
      result.loss += mean * share;
      weight += share;
    }
  }
  if (weight > 0) result.loss /= weight;
  result.standard_error = standard_error(result.window_losses, shares, result.loss);
  if (bytes > 0) {  // the quotient is 1 if tokens are bytes
    const double tokens_per_byte = static_cast<double>(tokens) / static_cast<double>(bytes);
    result.bits_per_byte = result.loss * tokens_per_byte / std::numbers::ln2;
  }
  result.seconds = now_seconds() - start;
  result.loader_share = loading / std::max(result.seconds, 1e-9);
  return result;
}

void write_logits(train::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                  const std::string& path, const progress_function& progress) {
  const std::int64_t batch = s.model().options().batch, sequence = s.model().options().sequence,
                     vocabulary = s.model().shape().vocabulary;
  windows = std::min(windows, text.validation_windows());
  io::safetensors_writer out;
  const auto add = [&](const char* name, std::vector<std::int32_t> token_batch::*numbers) {
    out.add_streamed(name, "I32", {windows, sequence}, [=, &text](const io::byte_sink& sink) {
      for (std::int64_t w = 0; w < windows; ++w) {
        const token_batch data = text.validation_batch(w, 1, windows);
        sink(std::as_bytes(std::span(data.*numbers)));
      }
    });
  };
  add("tokens", &token_batch::tokens);
  add("targets", &token_batch::targets);
  if (text.has_documents()) add("document_starts", &token_batch::document_starts);
  out.add_streamed("logits", "F32", {windows, sequence, vocabulary}, [&](const io::byte_sink& sink) {
    for (std::int64_t first = 0; first < windows; first += batch) {
      if (progress) progress(first, windows);
      const token_batch data = text.validation_batch(first, batch, windows);
      // The last pass may have more sequences than windows are left.
      auto left = static_cast<std::size_t>(std::min(batch, windows - first) * sequence * vocabulary);
      s.for_each_logits(now, data.tokens, data.document_starts, [&](std::span<const float> rows) {
        const auto wanted = rows.first(std::min(left, rows.size()));
        sink(std::as_bytes(wanted));
        left -= wanted.size();
      });
    }
  });
  out.write(path);
}

}  // namespace rotoscale::program
