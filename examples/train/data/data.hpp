// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Batches of a run's data: windows in a random permutation for each epoch. A batch is a function of (seed, position),
// so resuming needs no state.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/epoch_order.hpp"
#include "data/open_windows.hpp"
#include "options.hpp"

namespace rotoscale::program {

/// Data options of a run.
data_options data_of(const run_options& run);

class corpus {
 public:
  /// Reads and splits the data. Throws io::error if it is missing, empty, shorter than one window in either part, or
  /// has tokens outside the vocabulary. `progress` receives the bytes tokenized.
  corpus(const data_options& data, std::uint64_t seed, int vocabulary, const progress_function& progress = {});

  std::int64_t train_tokens() const { return source_->tokens(data_part::training); }
  std::int64_t validation_tokens() const { return source_->tokens(data_part::validation); }
  std::int64_t train_windows() const { return source_->windows(data_part::training); }
  std::int64_t validation_windows() const { return source_->windows(data_part::validation); }
  /// Changes with the data: resuming on other data is refused.
  std::uint64_t fingerprint() const { return source_->fingerprint(); }
  /// "text", "tokens" or "records".
  const char* kind() const { return source_->kind(); }
  /// Number of records cut or left out.
  std::int64_t long_records() const { return source_->long_records(); }
  /// Do batches have document starts?
  bool has_documents() const { return source_->has_documents(); }
  /// Are all tokens bytes of text?
  bool is_bytes() const { return is_bytes_; }

  /// True if max_epochs hold enough tokens for `options`, after the data of `skipped` steps.
  bool has_data_for(const train_options& options, std::int64_t skipped) const;
  /// Throws io::error if they do not.
  void check_budget(const train_options& options, std::int64_t skipped) const;

  /// Prepares training_batch(first, ...), outside of a step's time.
  void prepare(std::int64_t first) { order_.draw(first / train_windows()); }
  /// `batch`, then sequences first .. first + count - 1 of the run.
  token_batch training_batch(std::int64_t first, std::int64_t count, token_batch batch);
  /// Windows first .. first + count - 1 of a selection of `of` held-out windows, spread evenly or the first ones.
  /// Windows beyond `of` are masked.
  token_batch validation_batch(std::int64_t first, std::int64_t count, std::int64_t of) const;

  /// Bytes of text of the unmasked targets; 0 if unknown (token files without a tokenizer).
  std::int64_t bytes_of(std::span<const std::int32_t> targets) const;

 private:
  std::string name_;
  bool is_bytes_ = false;
  std::unique_ptr<window_source> source_;
  std::int64_t sequence_ = 1;
  bool first_windows_ = false;
  epoch_order order_;
};

}  // namespace rotoscale::program
