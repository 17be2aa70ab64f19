// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Windows of tokens with their targets, whatever they come from: text (bytes, or pieces of a tokenizer), token files of
// llm.c, or records of prompt and answer packed into windows. A source has no state: window i is always the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"

namespace rotoscale::llama_program {

struct token_batch {
  /// [sequences, sequence]; a target is the token that follows, or nn::ignored_target.
  std::vector<std::int32_t> tokens, targets;
  /// [sequences, sequence], the place within its sequence where the token's document begins; empty where each sequence
  /// is one document. Attention within documents goes from there to the token.
  std::vector<std::int32_t> document_starts;
};

enum class data_part { training, validation };

/// A token and where it stands.
struct token_place {
  std::int32_t token = 0;
  std::string file;
  std::int64_t position = 0;  ///< in the file, in tokens
};

/// Throws io::error where the token is not below `vocabulary`; `whose` and `flag` say what has that one.
void require_token(const token_place& largest, std::int64_t vocabulary, const std::string& whose, const char* flag);

/// What is read, and how.
struct data_options {
  std::vector<std::string> paths;
  std::string text_format = "auto";
  std::string tokenizer;                ///< SentencePiece model; empty: bytes
  bool begin_of_text = false;           ///< does a token precede a text and each record?
  int sequence = 128;                   ///< tokens a window
  double validation = 0.05;             ///< contiguous end held out, as a fraction
  std::string chat_template;            ///< of records with messages: chatml or llama3; empty: they are refused
  std::string long_records = "refuse";  ///< those that no window holds: refuse, cut or skip
  bool whole = false;                   ///< all is held out, and the last window is filled up with masked targets
  bool first_windows = false;  ///< evaluations read the first held-out windows (MLPerf), not some spread over all
};

class window_source {
 public:
  virtual ~window_source() = default;

  virtual std::int64_t windows(data_part part) const = 0;
  /// Tokens that the windows of a part are made of.
  virtual std::int64_t tokens(data_part part) const = 0;
  /// Appends one window.
  virtual void append(data_part part, std::int64_t window, token_batch& batch) const = 0;
  /// The least vocabulary that has all tokens.
  virtual std::int64_t least_vocabulary() const = 0;
  /// The largest token where files hold tokens, the first of equal ones; null where a tokenizer makes them.
  virtual const token_place* largest_token() const { return nullptr; }
  /// A number that changes with the tokens.
  virtual std::uint64_t fingerprint() const = 0;
  /// "text", "tokens" or "records".
  virtual const char* kind() const = 0;
  /// Does append say where documents begin?
  virtual bool has_documents() const { return false; }
  /// How many records were too long, and cut or left out.
  virtual std::int64_t long_records() const { return 0; }
  /// How many bytes of text each token stands for, by token; empty where nobody knows.
  virtual const std::vector<std::int32_t>& bytes_of_tokens() const = 0;
};

/// Do the files hold tokens, so that no tokenizer is needed?
bool are_token_files(const data_options& options);

/// Chooses by content: files that begin as llm.c's token files do; JSON lines with "prompt" and "answer", or "text";
/// anything else is text. All paths must be of one kind. Throws io::error naming what cannot be read, is too short for
/// one window in each part, is a record longer than a window, or a token that the tokenizer has not. `progress` hears
/// of the bytes that are tokenized.
std::unique_ptr<window_source> open_windows(const data_options& options, const progress_function& progress = {});

}  // namespace rotoscale::llama_program
