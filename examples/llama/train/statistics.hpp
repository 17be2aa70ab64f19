// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// statistics.jsonl of a run: what quantization did to each operand and each weight gradient (docs/statistics.md).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/llama/model.hpp"

namespace rotoscale::llama_program {

/// Raised when a field changes its meaning or goes; new fields and events do not raise it.
inline constexpr int statistics_schema = 1;

/// The interval that a run was last observed at, by its statistics.jsonl; 0: it was not.
std::int64_t statistics_interval(const std::filesystem::path& file);

/// Writes the records of observed steps.
class statistics_log {
 public:
  /// A new file, or behind what a resumed run left there.
  statistics_log(const std::filesystem::path& file, const std::string& name, std::int64_t every, std::int64_t step,
                 bool resumed);

  /// Of a finished step, counted from 1.
  void write(std::int64_t step, const std::string& recipe, const llama::model& model,
             std::span<const llama::linear_statistics> observed);

 private:
  void write_adapters(std::int64_t step, const llama::model& model, std::span<const llama::linear_statistics> observed);

  std::unique_ptr<io::jsonl_writer> log_;
};

}  // namespace rotoscale::llama_program
