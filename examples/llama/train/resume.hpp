// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where a run can go on from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "field_names.hpp"
#include "rotoscale/io/error.hpp"
#include "rotoscale/llama/checkpoint.hpp"
#include "shell_word.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

/// A checkpoint's files are not what a run has written.
struct damaged_checkpoint : io::error {
  using io::error::error;
};

/// Calls f, whose io::error means a damaged checkpoint.
template <class Function>
auto reading(const Function& f) {
  try {
    return f();
  } catch (const io::error& e) {
    throw damaged_checkpoint(e.what());
  }
}

/// The checkpoint before this one in its run, if there is one: where a message is to point.
std::string older_checkpoint(const std::filesystem::path& checkpoint);

/// Calls f; where that finds the checkpoint damaged, the message names the one before it as `flag` takes it (empty:
/// alone).
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
  std::filesystem::path run;         ///< directory; empty: the checkpoint lies in none
  std::filesystem::path checkpoint;  ///< empty: the beginning

  /// What a message calls it.
  std::string name() const { return checkpoint.empty() ? run.string() : checkpoint.string(); }
};

/// From a run's directory all of its checkpoints, the newest first, and its beginning; from a checkpoint that one and
/// the older ones of its run, however little of it is there. Empty where there is nothing to resume.
std::vector<resume_point> find_resume_points(const std::filesystem::path& path);

/// Has a run of mini-llama written the directory? (Hugging Face's trainer has a trainer_state.json of its own.) Throws
/// io::error for a file that cannot be read.
bool is_own_checkpoint(const std::filesystem::path& directory);

/// Throws io::error where a checkpoint's config.json or adapter_config.json is not what its run says.
void check_config(const std::filesystem::path& checkpoint, const run_options& run);

/// The shape of a model; that of a checkpoint of mini-llama is compared with its state. `passed`: see
/// read_model_config.
llama::model_config read_shape(const llama::weights_location& from, const std::vector<std::string>& passed = {});

/// The state there, compared with the checkpoint's configuration. Throws damaged_checkpoint.
trainer_state read_state(const resume_point& from);

/// Weights, optimizer and scales of a checkpoint. Throws damaged_checkpoint.
void read_tensors(const std::filesystem::path& checkpoint, llama::session& into);

/// The tokenizer of a run at a checkpoint: the given file, or the checkpoint's own where that is gone or another one
/// now.
std::string find_tokenizer(const std::string& given, const std::filesystem::path& checkpoint);

/// What text is to be read with for a model: the tokenizer of its run, the directory's own, or bytes. Throws io::error
/// where none of them is.
std::string tokenizer_of_model(const std::filesystem::path& directory, int vocabulary);

/// Where the files of a run are now, as the command line says (`moved`): `to`, its options or a session's, reads them
/// there. Throws io::error for one that the run does not have.
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

/// Throws io::error naming the first option in which a new run, whose options have these names, differs from the one
/// that is to be resumed.
void require_same_run(const trainer_state& wanted, const field_names& names, const trainer_state& found,
                      const std::string& where);

}  // namespace rotoscale::llama_program
