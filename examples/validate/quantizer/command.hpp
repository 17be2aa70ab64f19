// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// rotoscale-validate --quantizer: does a quantizer's dump have the bytes that its preset gives?
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

/// What the command line says of a quantizer; an empty text leaves the preset's value.
struct quantizer_options {
  std::string preset, format, rotation, rule, policy, rounding, source, x_format = "bf16", axis = "row",
                                                                        scale_padding = "any";
  std::string signs;  ///< bit masks of 32 elements, in hexadecimal, separated by commas
  std::string code_order = "row_major", scale_order = "row_major", nibbles = "low";
  std::optional<float> factor;  ///< instead of the file's tensor
  std::optional<std::uint64_t> seed;
  std::uint64_t stream = 0;
  int random_count = 32, block_rows = 1;
  bool list = false;
  std::vector<std::string> given;  ///< names of all options on the command line
};

void add_quantizer_options(CLI::App& app, quantizer_options& o);

/// Compares; 0 identical, 1 different. `report`: also as JSON, unless empty. Throws io::error for bad input, here as
/// below.
int check_quantizer(const quantizer_options& o, const io::safetensors_file& file, const std::string& report,
                    thread_pool& pool);
/// Ranks what may have made the dump; 0 if something explains all of it. `report` as above.
int identify_quantizer(const quantizer_options& o, const io::safetensors_file& file, index_t sample,
                       const std::string& report, thread_pool& pool);
/// Makes a source that tells presets apart, with the preset's own result if `with_result`.
io::safetensors_writer make_quantizer_case(const quantizer_options& o, index_t rows, index_t cols, std::uint64_t seed,
                                           bool with_result, thread_pool& pool);
void list_quantizers();

}  // namespace rotoscale::validate
