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

/// Loss of one held-out window.
struct window_loss {
  double mean = 0;         ///< nats a valid token
  std::int64_t valid = 0;  ///< tokens
  std::int64_t bytes = 0;  ///< of text; of a whole batch in its first window
};

/// Appends the losses of the first `count` windows of a batch.
void add_windows(const std::vector<float>& losses, const std::vector<std::int32_t>& targets, std::size_t sequence,
                 std::int64_t count, std::int64_t bytes, std::vector<window_loss>& to) {
  for (std::size_t w = 0; w < static_cast<std::size_t>(count); ++w) {
    double sum = 0;
    window_loss window;
    for (std::size_t t = w * sequence; t < (w + 1) * sequence; ++t) {
      sum += static_cast<double>(losses[t]);
      window.valid += targets[t] != nn::ignored_target;
    }
    if (window.valid > 0) window.mean = sum / static_cast<double>(window.valid);
    if (w == 0) window.bytes = bytes;
    to.push_back(window);
  }
}

/// Windows of all ranks in order. Rank r of R had the batches r, r + R, ...
std::vector<window_loss> in_order(const std::vector<std::vector<window_loss>>& by_rank, std::size_t batch,
                                  std::size_t windows) {
  std::vector<window_loss> all;
  std::vector<std::size_t> next(by_rank.size());
  for (std::size_t b = 0; all.size() < windows; ++b) {
    const std::size_t r = b % by_rank.size(), count = std::min(batch, windows - all.size());
    for (std::size_t i = 0; i < count; ++i) all.push_back(by_rank[r].at(next[r]++));
  }
  return all;
}

/// The figures of an evaluation but its times.
evaluation summary_of(const std::vector<window_loss>& windows, std::size_t sequence) {
  evaluation result;
  double weight = 0;  // of windows; 1 if nothing is masked
  std::vector<double> shares;
  std::int64_t tokens = 0, bytes = 0;
  for (const window_loss& w : windows) {
    const double share = static_cast<double>(w.valid) / static_cast<double>(sequence);
    result.window_losses.push_back(w.mean);
    shares.push_back(share);
    result.loss += w.mean * share;
    weight += share;
    tokens += w.valid;
    bytes += w.bytes;
  }
  if (weight > 0) result.loss /= weight;
  result.standard_error = standard_error(result.window_losses, shares, result.loss);
  if (bytes > 0) {  // the quotient is 1 if tokens are bytes
    const double tokens_per_byte = static_cast<double>(tokens) / static_cast<double>(bytes);
    result.bits_per_byte = result.loss * tokens_per_byte / std::numbers::ln2;
  }
  return result;
}

}  // namespace

evaluation evaluate(train::session& s, const nn::step_inputs& now, const corpus& text, std::int64_t windows,
                    const progress_function& progress, nn::communicator* ranks) {
  nn::communicator alone;
  if (ranks == nullptr) ranks = &alone;
  const auto batch = static_cast<int>(s.model().options().batch);
  const auto sequence = static_cast<std::size_t>(s.model().options().sequence);
  windows = std::min(windows, text.validation_windows());
  s.complete_weights(now);
  std::vector<window_loss> own;
  const double start = now_seconds();
  double loading = 0;
  const std::int64_t round = std::int64_t{batch} * ranks->size();
  for (std::int64_t done = 0; done < windows; done += round) {
    const std::int64_t first = done + std::int64_t{batch} * ranks->rank();
    const bool is_idle = first >= windows;
    if (is_idle && !s.has_joint_passes()) break;
    if (progress) progress(first, windows);
    const double before = now_seconds();
    const token_batch data = text.validation_batch(is_idle ? 0 : first, batch, windows);
    loading += now_seconds() - before;
    const std::vector<float> losses = s.evaluate(now, data.tokens, data.targets, data.document_starts);
    if (is_idle) break;  // other ranks needed this one's operands
    add_windows(losses, data.targets, sequence, std::min<std::int64_t>(batch, windows - first),
                text.bytes_of(data.targets), own);
  }
  const auto all = nn::gather_values<window_loss>(*ranks, own);
  evaluation result =
      summary_of(in_order(all, static_cast<std::size_t>(batch), static_cast<std::size_t>(windows)), sequence);
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
