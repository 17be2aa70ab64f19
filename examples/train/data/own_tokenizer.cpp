// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/own_tokenizer.hpp"

#include "rotoscale/io/json.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;

namespace {

constexpr const char* what_would_do =
    "; --tokenizer FILE takes a SentencePiece model, examples/train/write_tokens.py writes a token file for --data";

bool has(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

}  // namespace

std::string find_own_tokenizer(const fs::path& directory, int vocabulary) {
  const fs::path model = directory / "tokenizer.model";
  if (has(model)) return model.string();
  for (const char* name : {"tokenizer.json", "tiktoken.model", "vocab.json"}) {
    if (!has(directory / name)) continue;
    throw io::error((directory / name).string(), std::string("is a tokenizer that mini-llama does not read") +
                                                     what_would_do + ", --tokenizer bytes takes bytes");
  }
  if (vocabulary == 256) return bytes_name;
  throw io::error(directory.string(), "has no tokenizer.model, and its vocabulary of " + std::to_string(vocabulary) +
                                          " is not the 256 bytes" + what_would_do + ", --tokenizer bytes takes bytes");
}

/// tokenizer_config.json without add_bos_token: transformers' LlamaTokenizer adds the token, in all its names.
bool adds_by_default(const nlohmann::ordered_json& config) {
  const auto name = config.find("tokenizer_class");
  if (name == config.end() || !name->is_string()) return false;
  const auto text = name->get<std::string>();
  return text == "LlamaTokenizer" || text == "LlamaTokenizerFast" || text == "LLaMATokenizer";
}

bool begins_with_token(const std::string& choice, const std::string& tokenizer) {
  if (choice != "auto" || tokenizer.empty() || tokenizer == bytes_name) return choice == "yes";
  const fs::path config = fs::path(tokenizer).parent_path() / "tokenizer_config.json";
  if (!has(config)) return false;
  const auto json = io::read_json(config);
  if (!json.is_object()) return false;
  if (!json.contains("add_bos_token")) return adds_by_default(json);
  if (json["add_bos_token"].is_null()) return false;
  if (json["add_bos_token"].is_boolean()) return json["add_bos_token"].get<bool>();
  throw io::error(config.string(), "add_bos_token: expected true or false (--begin-of-text yes or no decides)");
}

}  // namespace rotoscale::program
