// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Windows of tokens with their targets. Sources: text (bytes, or pieces of a tokenizer), token files of llm.c, and
// records of prompt and answer packed into windows. A source has no state: window i is always the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rotoscale::program {

struct token_batch {
  /// [sequences, sequence]. A target is the next token, or nn::ignored_target.
  std::vector<std::int32_t> tokens, targets;
  /// [sequences, sequence]: position in its sequence at which the token's document begins. Attention within documents
  /// reads from there to the token. Empty: each sequence is one document.
  std::vector<std::int32_t> document_starts;
};

enum class data_part { training, validation };

/// A token and its position.
struct token_place {
  std::int32_t token = 0;
  std::string file;
  std::int64_t position = 0;  ///< in the file, in tokens
};

/// Data of a run.
struct data_options {
  std::vector<std::string> paths;
  std::string text_format = "auto";
  std::string tokenizer;                ///< SentencePiece model; empty: bytes
  bool begin_of_text = false;           ///< a token precedes a text and each record
  int sequence = 128;                   ///< tokens a window
  double validation = 0.05;             ///< held-out fraction of the text, at its end
  std::string chat_template;            ///< of records with messages: chatml or llama3; empty: they are refused
  std::string long_records = "refuse";  ///< records longer than a window: refuse, cut or skip
  bool whole = false;                   ///< all is held out; masked targets fill the last window
  bool first_windows = false;  ///< evaluations read the first held-out windows (MLPerf), not some spread over all
};

class window_source {
 public:
  virtual ~window_source() = default;

  virtual std::int64_t windows(data_part part) const = 0;
  /// Tokens in the windows of a part.
  virtual std::int64_t tokens(data_part part) const = 0;
  /// Appends one window.
  virtual void append(data_part part, std::int64_t window, token_batch& batch) const = 0;
  /// The smallest vocabulary with all tokens.
  virtual std::int64_t least_vocabulary() const = 0;
  /// The largest token of token files (the first of equal ones); null if a tokenizer makes the tokens.
  virtual const token_place* largest_token() const { return nullptr; }
  /// Changes with the tokens.
  virtual std::uint64_t fingerprint() const = 0;
  /// "text", "tokens" or "records".
  virtual const char* kind() const = 0;
  /// Does append write document starts?
  virtual bool has_documents() const { return false; }
  /// Number of records that were too long, and cut or left out.
  virtual std::int64_t long_records() const { return 0; }
  /// Bytes of text of each token; empty if unknown.
  virtual const std::vector<std::int32_t>& bytes_of_tokens() const = 0;
};

}  // namespace rotoscale::program
