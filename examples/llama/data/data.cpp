// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/data.hpp"

#include <cmath>
#include <cstdio>
#include <numeric>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/text.hpp"
#include "rotoscale/nn/backend.hpp"
#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::llama_program {

namespace {

/// FNV-1a.
std::uint64_t hash(const std::string& text) {
  std::uint64_t h = 14695981039346656037u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return h;
}

}  // namespace

corpus::corpus(const std::vector<std::string>& paths, const train_options& options)
    : sequence_(options.sequence), seed_(options.seed) {
  if (paths.empty()) throw io::error("--data", "no text given");
  for (const std::string& path : paths) {
    source_ += (source_.empty() ? "" : ", ") + path;
    text_ += io::read_text(path);
  }
  const auto size = static_cast<std::int64_t>(text_.size());
  split_ = size - std::llround(static_cast<double>(size) * options.validation);
  fingerprint_ = hash(text_);
  const std::int64_t least = sequence_ + 1;
  if (split_ < least || validation_tokens() < least) {
    throw io::error(source_, "too short: " + std::to_string(split_) + " training and " +
                                 std::to_string(validation_tokens()) + " validation bytes, a sequence needs " +
                                 std::to_string(least) + " of each");
  }
}

void corpus::check_budget(const train_options& o) const {
  const double wanted = static_cast<double>(o.steps) * o.batch * o.accumulate;
  const double available = static_cast<double>(train_windows()) * static_cast<double>(o.max_epochs);
  if (wanted <= available) return;
  const auto count = [&](double windows) {  // in FP64: the product may not fit 64 bits
    char text[64];
    std::snprintf(text, sizeof text, "%.0f", windows * static_cast<double>(sequence_));
    return std::string(text);
  };
  throw io::error(source_, "too short: " + std::to_string(o.steps) + " steps read " + count(wanted) + " tokens, " +
                               std::to_string(o.max_epochs) + " epoch(s) have " + count(available) +
                               " (train.steps, train.max_epochs)");
}

void corpus::append_window(token_batch& batch, std::int64_t start) const {
  for (std::int64_t i = start; i < start + sequence_; ++i) {
    batch.tokens.push_back(static_cast<unsigned char>(text_[static_cast<std::size_t>(i)]));
    batch.targets.push_back(static_cast<unsigned char>(text_[static_cast<std::size_t>(i + 1)]));
  }
}

token_batch corpus::training_batch(std::int64_t first, std::int64_t count) {
  token_batch batch;
  const std::int64_t windows = train_windows();
  for (std::int64_t i = first; i < first + count; ++i) {
    if (i / windows != epoch_) {  // Fisher and Yates, with a stream of its own for each epoch
      epoch_ = i / windows;
      order_.resize(static_cast<std::size_t>(windows));
      std::iota(order_.begin(), order_.end(), 0);
      const random_stream random =
          nn::stream_for(seed_, nn::random_purpose::data_order, static_cast<std::uint64_t>(epoch_));
      for (std::uint64_t j = static_cast<std::uint64_t>(windows) - 1; j > 0; --j) {
        const philox_block words = random.block(j);
        const std::uint64_t draw = std::uint64_t{words.word[0]} << 32 | words.word[1];
        std::swap(order_[j], order_[draw % (j + 1)]);
      }
    }
    append_window(batch, order_[static_cast<std::size_t>(i % windows)] * sequence_);
  }
  return batch;
}

token_batch corpus::validation_batch(std::int64_t first, std::int64_t count, std::int64_t of) const {
  token_batch batch;
  for (std::int64_t i = first; i < first + count; ++i) {
    if (i < of) {
      append_window(batch, split_ + i * validation_windows() / of * sequence_);
    } else {
      batch.tokens.insert(batch.tokens.end(), static_cast<std::size_t>(sequence_), 0);
      batch.targets.insert(batch.targets.end(), static_cast<std::size_t>(sequence_), nn::ignored_target);
    }
  }
  return batch;
}

}  // namespace rotoscale::llama_program
