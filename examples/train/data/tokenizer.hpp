// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tokens of text: bytes, or the pieces of a SentencePiece model (with Debian's library). Any bytes can be encoded, and
// decode to the same bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "progress.hpp"

namespace rotoscale::program {

class tokenizer {
 public:
  /// The 256 bytes. 0, which no text has, ends a document.
  tokenizer();
  /// Loads a SentencePiece model. Throws io::error if the file is not one, or if this build has no SentencePiece.
  static tokenizer load(const std::filesystem::path& path);
  /// Loads a model from the content of a file. `name` stands for the file in messages.
  static tokenizer from_bytes(const std::string& name, std::string_view model);
  /// load(path), or bytes if it is empty or "bytes".
  static tokenizer choose(const std::string& path);

  bool is_bytes() const { return model_ == nullptr; }
  std::int32_t vocabulary() const { return static_cast<std::int32_t>(bytes_.size()); }
  /// Length of the first part that encode takes, one or two MiB. The next part starts with a line or word whose tokens
  /// do not depend on the text before it. The whole text if the model has no such place.
  std::size_t first_part(std::string_view text) const;
  /// The token after each document; -1: the model has none.
  std::int32_t end_of_text() const { return end_of_text_; }
  /// The token before a text or record, on request; -1: the model has none.
  std::int32_t begin_of_text() const { return begin_of_text_; }
  /// Bytes of text of each token; 0 for control tokens.
  const std::vector<std::int32_t>& bytes_of_tokens() const { return bytes_; }

  /// Appends the tokens of `text`, part by part. Throws io::error if it is not UTF-8 and the model has no byte pieces.
  /// `progress` receives the bytes done. `after_part` may empty `out`.
  void encode(std::string_view text, std::vector<std::int32_t>& out, const progress_function& progress = {},
              const std::function<void()>& after_part = {}) const;
  /// The text of tokens; all must be below vocabulary().
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  struct model;
  /// `offset` of the part is for messages.
  void encode_part(std::string_view part, std::size_t offset, std::vector<std::int32_t>& out) const;

  std::shared_ptr<const model> model_;
  std::vector<std::int32_t> bytes_;
  std::int32_t end_of_text_ = 0, begin_of_text_ = -1;
};

/// Options for training a SentencePiece model.
struct tokenizer_options {
  std::vector<std::string> data;
  std::string text_format = "auto";
  std::string out;
  std::string type = "bpe";  ///< or unigram
  int vocabulary = 4096;
};

/// Trains a model with a piece for every byte and no normalisation, so that decoding is exact. Writes it to
/// options.out. The same text gives the same bytes. `progress` receives the bytes read; the training after that reports
/// no progress. Throws io::error.
void train_tokenizer(const tokenizer_options& options, const progress_function& progress = {});

/// Options for writing a token file.
struct encode_options {
  std::vector<std::string> data;
  std::string text_format = "auto";
  std::string tokenizer;  ///< empty: bytes
  std::string out;
};

/// Writes the tokens of options.data to a token file (GPT-2's form up to 65536 pieces, else Llama 3's). Returns their
/// number. `progress` receives the bytes encoded.
std::uint64_t encode_to_file(const encode_options& options, const progress_function& progress = {});

}  // namespace rotoscale::program
