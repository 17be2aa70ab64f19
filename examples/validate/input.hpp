// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Where tensors come from: a safetensors file, .npy files of one tensor each, or a pipe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/npy.hpp"
#include "rotoscale/io/safetensors.hpp"

namespace rotoscale::validate {

/// Most bytes that are read from a pipe, which no mapping bounds: 1 GiB.
inline constexpr std::size_t largest_pipe = std::size_t{1} << 30;

/// A tensor's shape, as messages have it.
inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string s = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) s += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return s + "]";
}

using named_array = std::pair<std::string, io::npy_file>;

/// Arrays of NumPy in C order, by the tensors' names, and the tensors of a file. u1, V1 and i1 become U8, u2 and V2
/// become BF16 (ml_dtypes writes V2), f2, f4 and f8 become F16, F32 and F64, u4 becomes U32. Throws io::error naming
/// the array, or a tensor that there are two of.
io::safetensors_file merge_tensors(const std::vector<named_array>& arrays, const io::safetensors_file* file);

/// `input` is a safetensors file, or "-": one on standard input, of at most largest_pipe bytes. `named` are further
/// tensors, NAME=FILE.npy each; with them `input` may be empty. Throws io::error naming the file or the option.
io::safetensors_file read_tensors(const std::string& input, const std::vector<std::string>& named);

}  // namespace rotoscale::validate
