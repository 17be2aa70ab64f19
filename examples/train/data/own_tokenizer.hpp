// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The tokenizer in a model's directory. Text for that model must be read with it.
#pragma once

#include <filesystem>
#include <string>

namespace rotoscale::program {

/// What --tokenizer takes for the 256 bytes.
inline constexpr const char* bytes_name = "bytes";

/// The SentencePiece model of a directory, `tokenizer.model`; "bytes" if the directory has no tokenizer and
/// `vocabulary` is 256. Throws io::error for any other vocabulary, and for a tokenizer that is no SentencePiece model.
std::string find_own_tokenizer(const std::filesystem::path& directory, int vocabulary);

/// Does a begin-of-text token precede a text? `choice` is --begin-of-text: yes, no or auto. auto reads add_bos_token of
/// the tokenizer_config.json next to the SentencePiece model. Without that key a LlamaTokenizer adds the token, as in
/// transformers, and other classes do not. Throws io::error.
bool begins_with_token(const std::string& choice, const std::string& tokenizer);

/// Tokenizer files of a model's directory. A model made from it copies them.
inline constexpr const char* tokenizer_file_names[] = {
    "tokenizer.model",     "tokenizer.json",          "tokenizer_config.json",
    "tiktoken.model",      "special_tokens_map.json", "added_tokens.json",
    "chat_template.jinja", "chat_template.json",      "vocab.json",
    "merges.txt",          "generation_config.json"};

}  // namespace rotoscale::program
