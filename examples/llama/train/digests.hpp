// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Digests of what each operation of some steps left, in RUN/digests.jsonl: {"version": 3, "digest_steps": "10:12"}, and
// a line a step, {"version": 3, "step": 12, "skipped_steps": 0, "operations": [["gemm 128x64", "9ae16a3b2f90404f"],
// ...]}. A replay compares its own with them. A run that rolls back makes a step again, with other data: the steps that
// its data order has skipped tell one attempt from the next.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/nn/digest_backend.hpp"

namespace rotoscale::llama_program {

/// From behind step `first` (0: from the start) to behind step `last`.
struct step_range {
  std::int64_t first = 0, last = 0;
  bool contains(std::int64_t step) const { return step > first && step <= last; }
};
/// "A:B" with A < B; throws io::error naming `where`.
step_range parse_steps(const std::string& text, const std::string& where);
/// The steps that a run had digests of last, by its digests.jsonl; empty: none. Throws io::error.
std::string read_digest_steps(const std::filesystem::path& file);

/// Told of each training step by the trainer.
class step_watcher {
 public:
  virtual ~step_watcher() = default;
  /// Step `step` is about to be queued, whose data come after `skipped_steps` steps' that roll-backs left out.
  virtual void begin(std::int64_t step, std::int64_t skipped_steps) = 0;
  /// It is finished.
  virtual void end() = 0;
};

/// Writes digests, behind those that the file has.
class digest_recorder final : public step_watcher {
 public:
  digest_recorder(nn::digest_backend& ops, step_range steps, std::filesystem::path file);
  void begin(std::int64_t step, std::int64_t skipped_steps) override;
  void end() override;

 private:
  void open();

  nn::digest_backend* ops_;
  step_range steps_;
  std::filesystem::path file_;
  std::optional<io::jsonl_writer>
      out_;  ///< from the first step on: a run that begins anew has removed the file by then
  std::int64_t step_ = 0, skipped_steps_ = 0;
  std::vector<nn::operation_digest> seen_;
};

/// Compares digests with those of a file, as far as it has any.
class digest_comparison final : public step_watcher {
 public:
  /// Throws io::error naming file and line of what is no record.
  digest_comparison(nn::digest_backend& ops, const std::filesystem::path& file);
  void begin(std::int64_t step, std::int64_t skipped_steps) override;
  void end() override;
  /// The first operation that differs, in words; nothing: none did.
  const std::optional<std::string>& difference() const { return difference_; }
  /// How much was compared: "512 digests of 2 of 4 steps"; empty where the run has no file.
  std::string summary() const;
  /// Has the file none?
  bool is_empty() const { return recorded_.empty(); }

 private:
  using step_digests = std::vector<nn::operation_digest>;
  void add(const nlohmann::ordered_json& record);
  void compare(const nn::operation_digest& d);
  std::string place(const std::string& operation) const;

  nn::digest_backend* ops_;
  bool has_file_ = false;
  std::map<std::pair<std::int64_t, std::int64_t>, step_digests> recorded_;  ///< by step and skipped steps
  const step_digests* of_step_ = nullptr;                                   ///< of the step that is computed
  std::int64_t step_ = 0;
  std::size_t at_ = 0, compared_ = 0, steps_ = 0, steps_compared_ = 0;
  std::optional<std::string> difference_;
};

}  // namespace rotoscale::llama_program
