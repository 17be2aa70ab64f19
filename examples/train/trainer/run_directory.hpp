// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The files of a run: trainer_state.json (its beginning), config.json, log.jsonl, statistics.jsonl and
// checkpoints/step-NNNNNNNNN/. The order of their creation keeps a run resumable: a kill at any moment leaves nothing,
// or a run that can be resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "options.hpp"

namespace rotoscale::program {

class run_directory {
 public:
  explicit run_directory(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path statistics() const { return path_ / "statistics.jsonl"; }
  std::filesystem::path digests() const { return path_ / "digests.jsonl"; }
  std::filesystem::path mlperf() const { return path_ / "mlperf.log"; }
  std::filesystem::path tensorboard() const { return path_ / "tensorboard"; }
  std::filesystem::path config() const { return path_ / "config.json"; }
  /// The state before the first step. A run without a checkpoint resumes from here.
  std::filesystem::path start() const { return path_ / "trainer_state.json"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path checkpoint(std::int64_t step) const;
  /// Steps with a checkpoint, newest first.
  std::vector<std::int64_t> steps() const;

  /// Checkpoint for a roll-back: the newest one at a regular interval, so that interruptions do not matter. Empty: the
  /// beginning.
  std::filesystem::path rollback_checkpoint(const train_options& options) const;

  /// Throws io::error if a file of all() exists and is not empty. The message ends with `of_run` if there is a run,
  /// else with `otherwise`, since the file is the user's.
  void require_unused(const std::string& of_run, const std::string& otherwise) const;
  /// All files that a run may have, in the order of their removal. Checkpoints are first: a partly removed run can
  /// still be resumed from its beginning. The log is last: its lock keeps other processes out.
  std::vector<std::filesystem::path> all() const;
  /// The files of all() that are missing or empty.
  std::vector<std::filesystem::path> unused() const;
  /// Removes these files of all(), in their order.
  void remove(const std::vector<std::filesystem::path>& files) const;
  /// Removes all files of a run except the log.
  void clear() const;
  /// Removes temporary files of killed writers.
  void remove_leftovers() const;
  /// Removes checkpoints of later steps. A run that resumes at `step` writes them again.
  void remove_beyond(std::int64_t step) const;
  /// Removes old checkpoints after checkpoint `step`. The newest keep_checkpoints at regular intervals stay. An extra
  /// one (`is_extra`: the run ended early) stays until the next regular one.
  void prune(std::int64_t step, bool is_extra, const train_options& options) const;

 private:
  /// Is a file of all() not empty?
  bool is_used(const std::filesystem::path& file) const;

  std::filesystem::path path_;
};

}  // namespace rotoscale::program
