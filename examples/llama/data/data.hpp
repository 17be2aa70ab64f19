// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Byte tokens of a text: a contiguous end is held out, the rest is read in non-overlapping windows whose order is a
// permutation drawn anew each epoch. A batch is a function of (seed, position), so that resuming needs no state.
#pragma once

#include <string>
#include <vector>

#include "data/window_source.hpp"
#include "options.hpp"

namespace rotoscale::llama_program {

class corpus {
 public:
  /// Reads and splits the text. Throws io::error if it is missing, empty or shorter than one window on either side.
  corpus(const std::vector<std::string>& paths, const train_options& options);

  std::int64_t train_tokens() const { return split_; }
  std::int64_t validation_tokens() const { return static_cast<std::int64_t>(text_.size()) - split_; }
  std::int64_t train_windows() const { return (split_ - 1) / sequence_; }
  std::int64_t validation_windows() const { return (validation_tokens() - 1) / sequence_; }
  /// A number that changes with the text: resuming on another one is refused.
  std::uint64_t fingerprint() const { return fingerprint_; }

  /// Throws io::error if `options` ask for more tokens than max_epochs allow.
  void check_budget(const train_options& options) const;

  /// Sequences first .. first + count - 1 of the run.
  token_batch training_batch(std::int64_t first, std::int64_t count);
  /// `count` windows from number `first` of `of` ones spread evenly over the held-out text; windows beyond `of` are
  /// masked.
  token_batch validation_batch(std::int64_t first, std::int64_t count, std::int64_t of) const;

 private:
  void append_window(token_batch& batch, std::int64_t start) const;

  std::string source_;
  std::string text_;
  std::int64_t split_ = 0, sequence_ = 1;
  std::uint64_t seed_ = 0, fingerprint_ = 0;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;  ///< window numbers of epoch_
};

}  // namespace rotoscale::llama_program
