// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Sources of tensors: a safetensors file, .npy files with one tensor each, or a pipe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/npy.hpp"
#include "rotoscale/io/safetensors.hpp"

namespace rotoscale::validate {

/// Limit on bytes read from a pipe (1 GiB), which cannot be mapped.
inline constexpr std::size_t largest_pipe = std::size_t{1} << 30;

/// A tensor's shape as text, for messages.
inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return s + "]";
}

using named_array = std::pair<std::string, io::npy_file>;

/// Merges NumPy arrays in C order, given by tensor name, with the tensors of a file. Throws io::error naming the array,
/// or a tensor that occurs twice. Types become:
/// - u1, V1, i1: U8
/// - u2, V2: BF16 (ml_dtypes writes V2)
/// - f2, f4, f8, u4: F16, F32, F64, U32
io::safetensors_file merge_tensors(const std::vector<named_array>& arrays, const io::safetensors_file* file);

/// Reads `input`, a safetensors file or "-" (standard input, at most largest_pipe bytes), and the tensors `named`
/// NAME=FILE.npy. With these `input` may be empty. Throws io::error naming the file or the option.
io::safetensors_file read_tensors(const std::string& input, const std::vector<std::string>& named);

}  // namespace rotoscale::validate
