// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// statistics.jsonl of a run: what quantization did to each operand and each weight gradient (docs/reference/logs.md).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rotoscale/io/jsonl.hpp"
#include "rotoscale/llama/model.hpp"

namespace rotoscale::llama_program {

/// Raised when a field changes its meaning or goes; new fields and events do not raise it.
inline constexpr int statistics_schema = 1;

/// How a run is observed.
struct statistics_choice {
  std::int64_t every = 0;  ///< steps from an observed one to the next; 0: none is
  bool noise = false;      ///< are gradients compared with those of a backward pass in BF16?
};
/// How a run was observed last, by its statistics.jsonl.
statistics_choice read_statistics_choice(const std::filesystem::path& file);

/// Gradients of all parameters that train against a reference of them, by the parameters' numbers; both as they lie in
/// the arena.
std::vector<nn::comparison_statistics> compare_gradients(const llama::parameter_list& parameters,
                                                         std::span<const float> gradients,
                                                         std::span<const float> reference);
/// As if all were one vector.
nn::comparison_statistics sum_of(std::span<const nn::comparison_statistics> each);

/// Writes the records of observed steps.
class statistics_log {
 public:
  /// A new file, or behind what a resumed run left there.
  statistics_log(const std::filesystem::path& file, const std::string& name, const statistics_choice& choice,
                 std::int64_t step, bool resumed);

  /// Of a finished step, counted from 1.
  void write(std::int64_t step, const std::string& recipe, const llama::model& model,
             std::span<const llama::linear_statistics> observed);
  /// Of the same step: `each` is of compare_gradients.
  void write_noise(std::int64_t step, const std::string& recipe, const llama::model& model,
                   std::span<const nn::comparison_statistics> each);

 private:
  void write_gradient(const char* event, std::int64_t step, index_t linear, index_t count, const std::string& tensor,
                      const nn::comparison_statistics& s);
  void write_sum(const char* event, std::int64_t step, const std::string& recipe, const nn::comparison_statistics& s);

  std::unique_ptr<io::jsonl_writer> log_;
};

}  // namespace rotoscale::llama_program
