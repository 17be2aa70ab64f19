// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Batches of a run's data: windows in an order that is a permutation drawn anew each epoch. A batch is a function of
// (seed, position), so that resuming needs no state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/epoch_order.hpp"
#include "data/window_source.hpp"
#include "options.hpp"

namespace rotoscale::llama_program {

/// What a run reads.
data_options data_of(const run_options& run);

class corpus {
 public:
  /// Reads and splits the data. Throws io::error if it is missing, empty, shorter than one window on either side, or
  /// holds tokens that `vocabulary` has not.
  /// `progress` hears of the bytes that are tokenized.
  corpus(const data_options& data, std::uint64_t seed, int vocabulary, const progress_function& progress = {});

  std::int64_t train_tokens() const { return source_->tokens(data_part::training); }
  std::int64_t validation_tokens() const { return source_->tokens(data_part::validation); }
  std::int64_t train_windows() const { return source_->windows(data_part::training); }
  std::int64_t validation_windows() const { return source_->windows(data_part::validation); }
  /// A number that changes with the data: resuming on other data is refused.
  std::uint64_t fingerprint() const { return source_->fingerprint(); }
  /// "text", "tokens" or "records".
  const char* kind() const { return source_->kind(); }
  /// Records that were cut or left out.
  std::int64_t long_records() const { return source_->long_records(); }
  /// Do batches say where documents begin?
  bool has_documents() const { return source_->has_documents(); }
  /// Are the tokens bytes of text, and nothing else?
  bool is_bytes() const { return is_bytes_; }

  /// Are there as many tokens within max_epochs as `options` ask for, behind those of `skipped` steps?
  bool has_data_for(const train_options& options, std::int64_t skipped) const;
  /// Throws io::error if not.
  void check_budget(const train_options& options, std::int64_t skipped) const;

  /// What training_batch(first, ...) needs and would take a step's time.
  void prepare(std::int64_t first) { order_.draw(first / train_windows()); }
  /// Sequences first .. first + count - 1 of the run.
  token_batch training_batch(std::int64_t first, std::int64_t count);
  /// `count` windows from number `first` of `of` ones spread evenly over the held-out data, or of its first ones;
  /// windows beyond `of` are masked.
  token_batch validation_batch(std::int64_t first, std::int64_t count, std::int64_t of) const;

  /// Bytes of text that targets stand for, masked ones not; 0 where nobody knows (token files without a tokenizer).
  std::int64_t bytes_of(std::span<const std::int32_t> targets) const;

 private:
  std::string name_;
  bool is_bytes_ = false;
  std::unique_ptr<window_source> source_;
  std::int64_t sequence_ = 1;
  bool first_windows_ = false;
  epoch_order order_;
};

}  // namespace rotoscale::llama_program
