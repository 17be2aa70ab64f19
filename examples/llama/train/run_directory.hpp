// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The files of a run: trainer_state.json (its beginning), config.json, log.jsonl, statistics.jsonl and
// checkpoints/step-NNNNNNNNN/. They are made in an order in which a run that is killed at any moment either has left
// nothing or can be resumed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "options.hpp"

namespace rotoscale::llama_program {

class run_directory {
 public:
  explicit run_directory(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path statistics() const { return path_ / "statistics.jsonl"; }
  std::filesystem::path digests() const { return path_ / "digests.jsonl"; }
  std::filesystem::path metrics() const { return path_ / "metrics.csv"; }
  std::filesystem::path mlperf() const { return path_ / "mlperf.log"; }
  std::filesystem::path tensorboard() const { return path_ / "tensorboard"; }
  std::filesystem::path config() const { return path_ / "config.json"; }
  /// The state before the first step: a run without a checkpoint goes on from here.
  std::filesystem::path start() const { return path_ / "trainer_state.json"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path checkpoint(std::int64_t step) const;
  /// Steps that have one, the newest first.
  std::vector<std::int64_t> steps() const;

  /// What a run goes back to after it has diverged: the newest checkpoint at an interval, which is there whether or not
  /// the run was ever interrupted; empty: the beginning.
  std::filesystem::path rollback_checkpoint(const train_options& options) const;

  /// Throws io::error naming one of all() that is there already and holds something: followed by `of_run` where there
  /// is a run, else, as the file is the user's own, by `otherwise`.
  void require_unused(const std::string& of_run, const std::string& otherwise) const;
  /// Whatever of a run may be there. The checkpoints first: what is left of a run while its files are removed in this
  /// order can still be resumed from its beginning. The log, whose lock keeps other processes out, last.
  std::vector<std::filesystem::path> all() const;
  /// Those of all() that are not there, or empty.
  std::vector<std::filesystem::path> unused() const;
  /// Removes these of all(), in their order.
  void remove(const std::vector<std::filesystem::path>& files) const;
  /// Removes a run's files but the log.
  void clear() const;
  /// Removes what killed writers have left.
  void remove_leftovers() const;
  /// Removes checkpoints of steps beyond `step`: a run that goes on from there makes them again.
  void remove_beyond(std::int64_t step) const;
  /// After the checkpoint of `step`: keeps the newest keep_checkpoints of those that an unbroken run writes. One that
  /// was written because a run ended early (`is_extra`) is kept beside them until the next that is none.
  void prune(std::int64_t step, bool is_extra, const train_options& options) const;

 private:
  /// Does one of all() hold something that would be lost?
  bool is_used(const std::filesystem::path& file) const;

  std::filesystem::path path_;
};

}  // namespace rotoscale::llama_program
