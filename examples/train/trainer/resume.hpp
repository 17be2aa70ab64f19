// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Checkpoints from which a run continues.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "field_names.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/train/checkpoint.hpp"
#include "shell_word.hpp"
#include "trainer/state.hpp"

namespace rotoscale::program {

/// The files of a checkpoint are damaged.
struct damaged_checkpoint : io::error {
  using io::error::error;
};

/// Calls f. An io::error of f becomes damaged_checkpoint.
template <class Function>
auto reading(const Function& f) {
  try {
    return f();
  } catch (const io::error& e) {
    throw damaged_checkpoint(e.what());
  }
}

/// The previous checkpoint of the same run, for messages; empty: none.
std::string older_checkpoint(const std::filesystem::path& checkpoint);

/// Calls f. If f finds the checkpoint damaged, the message ends with the previous one as an argument of `flag` (empty:
/// the path alone).
template <class Function>
auto naming_older(const std::filesystem::path& checkpoint, const std::string& flag, const Function& f) {
  try {
    return f();
  } catch (const damaged_checkpoint& e) {
    const std::string older = older_checkpoint(checkpoint);
    if (older.empty()) throw;
    throw damaged_checkpoint(std::string(e.what()) + "; the one before it: " + flag + (flag.empty() ? "" : " ") +
                             shell_word(older));
  }
}

/// A checkpoint, or the beginning of a run.
struct resume_point {
  std::filesystem::path run;         ///< directory; empty: the checkpoint is in none
  std::filesystem::path checkpoint;  ///< empty: the beginning

  /// Name in messages.
  std::string name() const { return checkpoint.empty() ? run.string() : checkpoint.string(); }
};

/// Resume points in order of preference. A run's directory gives all of its checkpoints, newest first, then its
/// beginning. A checkpoint gives itself, then older ones of its run, even if the run's other files are missing. May be
/// empty.
std::vector<resume_point> find_resume_points(const std::filesystem::path& path);

/// Did mini-llama write the directory? Hugging Face's trainer also writes a trainer_state.json. Throws io::error for a
/// file that cannot be read.
bool is_own_checkpoint(const std::filesystem::path& directory);

/// Throws io::error if a checkpoint's config.json or adapter_config.json contradicts its run.
void check_config(const std::filesystem::path& checkpoint, const run_options& run);

/// Reads the shape of a model. For a checkpoint of mini-llama it is compared with the state. `passed`: see
/// models::read_config.
models::config read_shape(const train::weights_location& from, const std::vector<std::string>& passed = {});

/// Reads the state and compares it with the checkpoint's configuration. Throws damaged_checkpoint.
trainer_state read_state(const resume_point& from);

/// Reads weights, optimizer and scales of a checkpoint. Throws damaged_checkpoint.
void read_tensors(const std::filesystem::path& checkpoint, train::session& into);

/// Tokenizer of a run that continues: the given file, or the checkpoint's copy if the given one is missing or has
/// changed.
std::string find_tokenizer(const std::string& given, const std::filesystem::path& checkpoint);

/// Tokenizer for a model: its run's, the directory's, or bytes. Throws io::error if none fits the vocabulary.
std::string tokenizer_of_model(const std::filesystem::path& directory, int vocabulary);

/// Replaces paths in `to` (options of a run or of a session) by the command line's (`moved`). Throws io::error for a
/// file that the run does not use.
template <class Files>
void take_new_places(const run_options& moved, const run_options& run, Files& to) {
  const auto take = [](const char* flag, const std::string& place, const std::string& old, std::string& at) {
    if (place.empty()) return;
    if (old.empty()) throw io::error(std::string(flag) + " " + place, "the run has none that could have moved");
    at = place;
  };
  if (!moved.data.empty()) to.data = moved.data;
  take("--tokenizer", moved.tokenizer, run.tokenizer, to.tokenizer);
  take("--init", moved.init, run.init, to.init);
  take("--adapter", moved.adapter, run.adapter, to.adapter);
}

/// Throws io::error naming the first option in which a new run differs from the run to resume. `names`: how its user
/// gave these options.
void require_same_run(const trainer_state& wanted, const field_names& names, const trainer_state& found,
                      const std::string& where);

}  // namespace rotoscale::program
