// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where a run can go on from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotoscale/io/error.hpp"
#include "train/state.hpp"

namespace rotoscale::llama_program {

/// A checkpoint's files are not what a run has written.
struct damaged_checkpoint : io::error {
  using io::error::error;
};

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

/// The state there, compared with config.json of the checkpoint. Throws damaged_checkpoint.
trainer_state read_state(const resume_point& from);

/// Weights, optimizer and scales of a checkpoint. Throws damaged_checkpoint.
void read_tensors(const std::filesystem::path& checkpoint, llama::session& into);

/// The tokenizer of a run at a checkpoint: the given file, or the checkpoint's own where that is gone or another one
/// now.
std::string find_tokenizer(const std::string& given, const std::filesystem::path& checkpoint);

/// Throws io::error naming the first option in which a new run differs from the one that is to be resumed.
void require_same_run(const trainer_state& wanted, const trainer_state& found, const std::string& where);

}  // namespace rotoscale::llama_program
