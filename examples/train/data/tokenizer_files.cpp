// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer_files.hpp"

#include "data/own_tokenizer.hpp"
#include "data/tokenizer.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::program {

using nlohmann::ordered_json;

tokenizer_files tokenizer_files::read(const std::string& path) {
  tokenizer_files files;
  const tokenizer t = tokenizer::choose(path);
  files.end_of_text_ = t.end_of_text();
  if (!t.is_bytes()) files.model_ = io::read_raw_file(path);
  return files;
}

std::map<std::string, std::string> read_tokenizer_files(const std::filesystem::path& directory) {
  std::map<std::string, std::string> files;
  for (const char* name : tokenizer_file_names) {
    std::error_code failed;
    const std::filesystem::path file = directory / name;
    if (std::filesystem::exists(file, failed)) files[name] = io::read_raw_file(file, io::json_max_bytes);
  }
  if (files.size() == 1 && files.contains("generation_config.json")) files.clear();  // useless without the others
  return files;
}

void tokenizer_files::carry(const std::filesystem::path& directory) { carried_ = read_tokenizer_files(directory); }

void tokenizer_files::write(const std::filesystem::path& directory, int longest) const {
  ordered_json generation = {{"do_sample", true}, {"max_length", longest}};
  if (end_of_text_ >= 0) generation["eos_token_id"] = generation["pad_token_id"] = end_of_text_;
  if (!carried_.contains("generation_config.json")) io::write_json(directory / "generation_config.json", generation);
  for (const auto& [name, bytes] : carried_) io::write_file_atomically(directory / name, bytes);
  if (model_.empty() || carried_.contains("tokenizer.model")) return;
  io::write_file_atomically(directory / "tokenizer.model", model_);
  // mini-llama adds no tokens to a text.
  io::write_json(directory / "tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizer"},
                                                       {"add_bos_token", false},
                                                       {"add_eos_token", false},
                                                       {"add_prefix_space", false},
                                                       {"legacy", false},
                                                       {"model_max_length", longest}});
}

}  // namespace rotoscale::program
