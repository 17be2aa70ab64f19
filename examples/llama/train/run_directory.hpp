// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The files of a run: log.jsonl, statistics.jsonl, config.json and checkpoints/step-NNNNNNNNN/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace rotoscale::llama_program {

class run_directory {
 public:
  explicit run_directory(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path statistics() const { return path_ / "statistics.jsonl"; }
  std::filesystem::path config() const { return path_ / "config.json"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path checkpoint(std::int64_t step) const;

  /// Makes the directory. Throws io::error.
  void create() const;
  /// Throws io::error naming a run's file that is there already, followed by `advice`.
  void require_unused(const std::string& advice) const;
  /// Removes all checkpoints but the newest `keep` and that of `step`.
  void prune(std::int64_t step, int keep) const;

 private:
  std::filesystem::path path_;
};

}  // namespace rotoscale::llama_program
