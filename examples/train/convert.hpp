// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Converts a GPT-2 between llm.c's model files and Hugging Face's directories.
#pragma once

#include <string>

namespace rotoscale::program {

struct convert_options {
  std::string from, out;
  std::string dtype = "F32";  ///< of a model file of llm.c: F32 or BF16
};

/// Writes a directory from a file, or a file from a directory or checkpoint. Returns the exit code.
int convert(const convert_options& options);

}  // namespace rotoscale::program
