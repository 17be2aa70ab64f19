// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds beside tensors so that transformers generates text from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace rotoscale::llama_program {

/// A tokenizer as the files of a model: tokenizer.model and tokenizer_config.json, and generation_config.json.
class tokenizer_files {
 public:
  /// Of a SentencePiece model; an empty path is the byte vocabulary, which has no tokenizer files. Throws io::error.
  static tokenizer_files read(const std::string& path);
  /// Writes them into a directory. `longest` is the longest sequence of the model.
  void write(const std::filesystem::path& directory, int longest) const;

 private:
  std::string model_;
  std::int32_t end_of_text_ = 0;
};

}  // namespace rotoscale::llama_program
