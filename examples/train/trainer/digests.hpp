// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Digests of the outputs of each operation, in RUN/digests.jsonl. The first line is {"version": 4, "digest_steps":
// "10:12"}. Each step adds {"version": 4, "step": 12, "skipped_steps": 0, "operations": [["gemm 128x64",
// "9ae16a3b2f90404f"], ...]}. A replay compares its digests with these. A run that rolls back repeats a step with other
// data; the number of skipped steps identifies the attempt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/nn/digest.hpp"

namespace rotoscale::program {

/// Steps first + 1 .. last.
struct step_range {
  std::int64_t first = 0, last = 0;
  bool contains(std::int64_t step) const { return step > first && step <= last; }
};
/// "A:B" with A < B; throws io::error naming `where`.
step_range parse_steps(const std::string& text, const std::string& where);
/// Reads the last "digest_steps" of a digests.jsonl; empty if there are none. Throws io::error.
std::string read_digest_steps(const std::filesystem::path& file);

/// The trainer calls it around each training step.
class step_watcher {
 public:
  virtual ~step_watcher() = default;
  /// Before step `step` is queued. Roll-backs left out the data of `skipped_steps` steps before it.
  virtual void begin(std::int64_t step, std::int64_t skipped_steps) = 0;
  /// After the step has finished.
  virtual void end() = 0;
};

/// Appends digests to the file.
class digest_recorder final : public step_watcher {
 public:
  digest_recorder(nn::digest_observer& digests, step_range steps, std::filesystem::path file);
  void begin(std::int64_t step, std::int64_t skipped_steps) override;
  void end() override;

 private:
  void open();

  nn::digest_observer* digests_;
  step_range steps_;
  std::filesystem::path file_;
  std::optional<io::jsonl_writer> out_;  ///< opened at the first step: --overwrite removes the file before
  std::int64_t step_ = 0, skipped_steps_ = 0;
  std::vector<nn::operation_digest> seen_;
};

/// Compares digests with the recorded ones.
class digest_comparison final : public step_watcher {
 public:
  /// Throws io::error naming file and line of an invalid record.
  digest_comparison(nn::digest_observer& digests, const std::filesystem::path& file);
  void begin(std::int64_t step, std::int64_t skipped_steps) override;
  void end() override;
  /// Description of the first operation that differs; nullopt: none.
  const std::optional<std::string>& difference() const { return difference_; }
  /// Amount compared: "512 digests of 2 of 4 steps". Empty if the run has no file.
  std::string summary() const;

 private:
  using step_digests = std::vector<nn::operation_digest>;
  void add(const nlohmann::ordered_json& record);
  void compare(const nn::operation_digest& d);
  std::string place(const std::string& operation) const;

  nn::digest_observer* digests_;
  bool has_file_ = false;
  std::map<std::pair<std::int64_t, std::int64_t>, step_digests> recorded_;  ///< by step and skipped steps
  const step_digests* of_step_ = nullptr;                                   ///< of the step that is computed
  std::int64_t step_ = 0;
  std::size_t at_ = 0, compared_ = 0, steps_ = 0, steps_compared_ = 0;
  std::optional<std::string> difference_;
};

}  // namespace rotoscale::program
