// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tokens of text: bytes, which need no file, or the pieces of a SentencePiece model (Debian's library; without it only
// bytes are there). Any bytes can be encoded, and decoding what was encoded gives them again.
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

namespace rotoscale::llama_program {

class tokenizer {
 public:
  /// The 256 bytes; 0, which no text holds, ends a document.
  tokenizer();
  /// A SentencePiece model. Throws io::error for a file that is none, and where this build has no SentencePiece.
  static tokenizer load(const std::filesystem::path& path);
  /// The same of a file's content. `name` stands for the file in messages.
  static tokenizer from_bytes(const std::string& name, std::string_view model);
  /// load(path), or bytes if it is empty or "bytes".
  static tokenizer choose(const std::string& path);

  bool is_bytes() const { return model_ == nullptr; }
  std::int32_t vocabulary() const { return static_cast<std::int32_t>(bytes_.size()); }
  /// Bytes of `text` that encode takes at once: a MiB or two, up to a line or word whose tokens do not depend on what
  /// stands before it. All of the text where the model has no such place.
  std::size_t first_part(std::string_view text) const;
  /// Follows each document; -1 where the model has no such piece.
  std::int32_t end_of_text() const { return end_of_text_; }
  /// Precedes a text or record where that is asked for; -1 where the model has no such piece.
  std::int32_t begin_of_text() const { return begin_of_text_; }
  /// How many bytes of text each token stands for; 0 for control tokens.
  const std::vector<std::int32_t>& bytes_of_tokens() const { return bytes_; }

  /// Appends the tokens of `text`, part by part. Throws io::error where it is not UTF-8 and the model has no pieces for
  /// bytes. `progress` hears of the bytes done; `after_part` may take what `out` holds.
  void encode(std::string_view text, std::vector<std::int32_t>& out, const progress_function& progress = {},
              const std::function<void()>& after_part = {}) const;
  /// The text of tokens; all must be below vocabulary().
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  struct model;
  /// `offset`: of the part, for messages.
  void encode_part(std::string_view part, std::size_t offset, std::vector<std::int32_t>& out) const;

  std::shared_ptr<const model> model_;
  std::vector<std::int32_t> bytes_;
  std::int32_t end_of_text_ = 0, begin_of_text_ = -1;
};

/// How a SentencePiece model is trained.
struct tokenizer_options {
  std::vector<std::string> data;
  std::string text_format = "auto";
  std::string out;
  std::string type = "bpe";  ///< or unigram
  int vocabulary = 4096;
};

/// Trains a model with a piece for every byte and no normalisation, so that decoding is exact, and writes it to
/// options.out. The same text gives the same bytes. `progress` hears of the bytes read; of the work on pieces, which
/// begins when all are, SentencePiece says nothing. Throws io::error.
void train_tokenizer(const tokenizer_options& options, const progress_function& progress = {});

/// What is encoded into a token file.
struct encode_options {
  std::vector<std::string> data;
  std::string text_format = "auto";
  std::string tokenizer;  ///< empty: bytes
  std::string out;
};

/// Writes the tokens of options.data to a token file (GPT-2's form up to 65536 pieces, else Llama 3's); returns how
/// many. `progress` hears of the bytes encoded.
std::uint64_t encode_to_file(const encode_options& options, const progress_function& progress = {});

}  // namespace rotoscale::llama_program
