// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Names of a run's fields in messages: the flag, or the key of a file.
#pragma once

#include <map>
#include <string>

#include "rotoscale/io/error.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::program {

/// The flag of a field: "train.learning_rate" has --learning-rate, "lora.rank" --lora-rank.
std::string flag_of(const std::string& field);

/// Sources of the fields of a run. A field without one has the name of its flag.
class field_names {
 public:
  /// Records the fields in a file's JSON. `section` is the part of a run that the file holds ("model."; empty: all).
  void from_file(const std::string& file, const nlohmann::ordered_json& json, const std::string& section = "");
  /// Records a flag, which overrides files. `typed` is the name on the command line ("--no-tie-word-embeddings").
  void from_flag(const std::string& flag, const std::string& typed);

  /// Does a file or a flag set the field?
  bool has(const std::string& field) const { return files_.contains(field); }
  /// Name of the schedule's source: "--recipe", or "c.json: schedule".
  std::string schedule() const;

  /// Replaces fields in a text by the user's names: "train.batch", "num_key_value_heads" and "batch * sequence" become
  /// flags, or keys with their file. Other single words stay, because sentences use them. `file` is already named.
  std::string text(const std::string& fault, const std::string& file = "") const;

  /// The user's name of a field: "--batch", or "train.batch (c.json)". `file` is already named.
  std::string name(const std::string& field, const std::string& file = "") const;

  /// Error for a fault that begins with a field ("train.batch: ..."). It names the flag, or the file and its key.
  io::error error(const std::string& fault) const;

 private:
  struct place {
    std::string file, key;  ///< no file: the key is a flag
  };

  const place* find_file(const std::string& field) const;

  std::map<std::string, place> files_;
  std::string schedule_flag_ = "--schedule";
};

}  // namespace rotoscale::program
