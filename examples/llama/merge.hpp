// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Adapters added to the weights that they stand beside: a model without adapters, in Hugging Face's files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotoscale/llama/lora.hpp"

namespace rotoscale::llama_program {

struct merge_options {
  std::string base, adapter, out;
  std::string dtype = "F32";  ///< or BF16, F16
  std::vector<std::string> passed_keys;  ///< see read_model_config
};

/// The directory of the adapters that `path` is, or whose newest checkpoint it is of; throws io::error.
std::filesystem::path find_adapter(const std::filesystem::path& path);

/// What adapters that find_adapter found were trained as. Those of a run of mini-llama keep their fused targets; of
/// others the files name the parts.
llama::lora_config read_adapter_options(const std::filesystem::path& directory);

/// A sentence that says which field of `wanted` the adapters in a directory do not have, or nothing.
std::optional<std::string> find_difference(const llama::lora_config& wanted, const std::filesystem::path& directory);

/// Writes w + alpha / rank · B·A for each weight, each sum in FP64 and rounded once; returns the exit code.
int merge(const merge_options& options);

}  // namespace rotoscale::llama_program
