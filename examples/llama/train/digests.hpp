// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Digests of what each operation of some steps left, in RUN/digests.jsonl, a line a step: {"version": 2, "step": 12,
// "operations": [["gemm 128x64", "9ae16a3b2f90404f"], ...]}. A replay compares its own with them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/nn/digest_backend.hpp"

namespace rotoscale::llama_program {

/// From behind step `first` (0: from the start) to behind step `last`.
struct step_range {
  std::int64_t first = 0, last = 0;
  bool contains(std::int64_t step) const { return step > first && step <= last; }
};
/// "A:B" with A < B; throws io::error naming `where`.
step_range parse_steps(const std::string& text, const std::string& where);

/// Told of each training step by the trainer.
class step_watcher {
 public:
  virtual ~step_watcher() = default;
  /// Step `step` is about to be queued.
  virtual void begin(std::int64_t step) = 0;
  /// It is finished.
  virtual void end() = 0;
};

/// Writes digests.
class digest_recorder final : public step_watcher {
 public:
  digest_recorder(nn::digest_backend& ops, step_range steps, std::filesystem::path file);
  void begin(std::int64_t step) override;
  void end() override;

 private:
  nn::digest_backend* ops_;
  step_range steps_;
  std::filesystem::path file_;
  std::int64_t step_ = 0;
  bool fresh_ = true;
  std::vector<nn::operation_digest> seen_;
};

/// Compares digests with those of a file, as far as it has any.
class digest_comparison final : public step_watcher {
 public:
  digest_comparison(nn::digest_backend& ops, const std::filesystem::path& file);
  void begin(std::int64_t step) override;
  void end() override;
  /// The first operation that differs, in words; nothing: none did.
  const std::optional<std::string>& difference() const { return difference_; }
  std::size_t compared() const { return compared_; }
  /// Has the file none?
  bool is_empty() const { return recorded_.empty(); }

 private:
  nn::digest_backend* ops_;
  struct step_digests {
    int version = 0;
    std::vector<nn::operation_digest> operations;
  };
  std::map<std::int64_t, step_digests> recorded_;
  std::int64_t step_ = 0;
  std::size_t at_ = 0, compared_ = 0;
  std::optional<std::string> difference_;
};

}  // namespace rotoscale::llama_program
