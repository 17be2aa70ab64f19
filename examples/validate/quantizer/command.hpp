// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// rotoscale-validate --quantizer: compares a quantizer's dump with the bytes of a preset. Reading dumps is in dump.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rotoscale/io/safetensors.hpp"
#include "rotoscale/parallel.hpp"

namespace CLI {
class App;
}

namespace rotoscale::validate {

/// Quantizer options of the command line. An empty text keeps the preset's value.
struct quantizer_options {
  std::string preset, format, rotation, rule, policy, rounding, source, x_format = "bf16", axis = "row",
                                                                        scale_padding = "any";
  std::string signs;  ///< hexadecimal masks of 32 elements each, separated by commas
  std::string code_order = "row_major", scale_order = "row_major", nibbles = "low";
  std::vector<std::string> details;  ///< names of all_details
  std::optional<float> factor;       ///< replaces the file's tensor
  std::optional<std::uint64_t> seed;
  std::uint64_t stream = 0;
  int random_count = 32, block_rows = 1;
  bool list = false;
  const char* preset_flag = "--quantizer";  ///< flag of `preset`, for messages
  std::vector<std::string> given;           ///< names of all given options
};

void add_quantizer_options(CLI::App& app, quantizer_options& o);

/// Compares a dump; returns 0 if identical, 1 if different. Writes a JSON file if `report` is not empty. Throws
/// io::error for bad input, as do the functions below.
int run_check(const quantizer_options& o, const io::safetensors_file& file, const std::string& report,
              thread_pool& pool);
/// Ranks the candidates for a dump; returns 0 if one explains all of it. `report` as above.
int run_identify(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                 const std::string& report, thread_pool& pool);
/// Makes a source that tells presets apart, with the preset's result if `with_result`.
io::safetensors_writer make_quantizer_case(const quantizer_options& o, index_t rows, index_t cols, std::uint64_t seed,
                                           bool with_result, thread_pool& pool);
void list_quantizers();

}  // namespace rotoscale::validate
