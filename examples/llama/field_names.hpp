// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// What messages call the fields of a run: the flag, or the key of the file that the value is from.
#pragma once

#include <map>
#include <string>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::llama_program {

/// The flag of a field: "train.learning_rate" has --learning-rate, "lora.rank" --lora-rank.
std::string flag_of(const std::string& field);

/// Where the fields of a run are from. Those that nothing is said of have their flags, which would set them.
class field_names {
 public:
  /// The fields that a file's JSON has are from it; `section` is what the file holds of a run ("model."; empty: a run).
  void from_file(const std::string& file, const nlohmann::ordered_json& json, const std::string& section = "");
  /// A flag was given, which overrides files; `typed` is the name of it that was used ("--no-tie-word-embeddings").
  void from_flag(const std::string& flag, const std::string& typed);

  /// Where the schedule's name was given: "--recipe", or "c.json: schedule".
  std::string schedule() const;

  /// A text with its fields as the user knows them: "train.batch", "num_key_value_heads" and "batch * sequence" become
  /// flags, or keys and their file. Other single words stay, as sentences use such words too. `file`: is named already.
  std::string text(const std::string& fault, const std::string& file = "") const;

  /// A field as the user knows it: "--batch", or "train.batch (c.json)", without the file where that is named already.
  std::string name(const std::string& field, const std::string& file = "") const;

  /// For a fault that begins with a field ("train.batch: ..."): names the flag, or the file and its key.
  io::error error(const std::string& fault) const;

 private:
  struct place {
    std::string file, key;  ///< no file: the key is a flag
  };

  const place* find_file(const std::string& field) const;

  std::map<std::string, place> files_;
  std::string schedule_flag_ = "--schedule";
};

}  // namespace rotoscale::llama_program
