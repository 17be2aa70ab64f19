// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Tokenizer files of a checkpoint, so that transformers generates text from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace rotoscale::program {

/// A tokenizer as the files of a model: tokenizer.model and tokenizer_config.json, and generation_config.json.
class tokenizer_files {
 public:
  /// Of a SentencePiece model; an empty path is the byte vocabulary, which has no tokenizer files. Throws io::error.
  static tokenizer_files read(const std::string& path);
  /// Copies a directory's files unchanged, instead of writing new ones.
  void carry(const std::filesystem::path& directory);
  /// Writes the files into a directory. `longest` is the model's longest sequence.
  void write(const std::filesystem::path& directory, int longest) const;

 private:
  std::string model_;
  std::map<std::string, std::string> carried_;  ///< by name
  std::int32_t end_of_text_ = 0;
};

/// The files of tokenizer_file_names that a directory has, by name.
std::map<std::string, std::string> read_tokenizer_files(const std::filesystem::path& directory);

}  // namespace rotoscale::program
