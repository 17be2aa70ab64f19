// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// statistics.jsonl of a run: quantization errors of each operand and each weight gradient (docs/reference/logs.md).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/train/model.hpp"

namespace rotoscale::program {

/// Raised when a field is removed or changes its meaning. New fields and events do not raise it.
inline constexpr int statistics_schema = 1;

/// Observation of a run.
struct statistics_choice {
  std::int64_t every = 0;  ///< interval of observed steps; 0: none
  bool noise = false;      ///< compare gradients with a backward pass in BF16
};
/// Reads the last choice in a statistics.jsonl.
statistics_choice read_statistics_choice(const std::filesystem::path& file);

/// Compares gradients of all trained parameters with a reference, by parameter number. Both are laid out as in the
/// arena.
std::vector<nn::comparison_statistics> compare_gradients(const train::parameter_list& parameters,
                                                         std::span<const float> gradients,
                                                         std::span<const float> reference);
/// Statistics of all parameters as one vector.
nn::comparison_statistics sum_of(std::span<const nn::comparison_statistics> each);

/// Writes the records of observed steps.
class statistics_log {
 public:
  /// Creates the file, or appends to a resumed run's.
  statistics_log(const std::filesystem::path& file, const std::string& name, const statistics_choice& choice,
                 std::int64_t step, bool resumed);

  /// Records a finished step, counted from 1.
  void write(std::int64_t step, const std::string& recipe, const train::model& model,
             std::span<const train::linear_statistics> observed);
  /// Records the noise of the same step. `each` comes from compare_gradients.
  void write_noise(std::int64_t step, const std::string& recipe, const train::model& model,
                   std::span<const nn::comparison_statistics> each);

 private:
  void write_gradient(const char* event, std::int64_t step, index_t linear, index_t count, const std::string& tensor,
                      const nn::comparison_statistics& s);
  void write_sum(const char* event, std::int64_t step, const std::string& recipe, const nn::comparison_statistics& s);

  std::unique_ptr<io::jsonl_writer> log_;
};

}  // namespace rotoscale::program
