// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Adds adapters to their base weights: a model without adapters, in Hugging Face's files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotoscale/train/lora.hpp"

namespace rotoscale::program {

struct merge_options {
  std::string base, adapter, out;
  std::string dtype = "F32";             ///< or BF16, F16
  std::vector<std::string> passed_keys;  ///< see read_model_config
};

/// Directory of adapters: `path`, or the newest checkpoint of the run `path`. Throws io::error.
std::filesystem::path find_adapter(const std::filesystem::path& path);

/// Reads the configuration of adapters. A mini-llama run's adapters keep their fused targets; other files name parts.
train::lora_config read_adapter_options(const std::filesystem::path& directory);

/// Describes the first field of `wanted` that differs in the adapters; nullopt: none.
std::optional<std::string> find_difference(const train::lora_config& wanted, const std::filesystem::path& directory);

/// Writes w + alpha / rank · B·A for each weight, summed in FP64 and rounded once. Returns the exit code.
int merge(const merge_options& options);

}  // namespace rotoscale::program
