// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "input.hpp"

#include <iostream>
#include <set>

namespace rotoscale::validate {

namespace {

/// Reads all of standard input, with bounded memory.
std::string read_pipe() {
  std::string bytes;
  std::vector<char> chunk(std::size_t{1} << 20);
  for (;;) {
    std::cin.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    const auto count = static_cast<std::size_t>(std::cin.gcount());
    if (count > largest_pipe - bytes.size()) {
      throw io::error("standard input", "more than " + std::to_string(largest_pipe) + " bytes; give --input a file");
    }
    bytes.append(chunk.data(), count);
    if (!std::cin) return bytes;
  }
}

/// The safetensors dtype for an array's elements. ml_dtypes' types arrive as raw bytes.
const char* dtype_of(const io::npy_header& h) {
  constexpr std::pair<std::string_view, const char*> types[] = {{"f4", "F32"},  {"f2", "F16"},  {"f8", "F64"},
                                                                {"u1", "U8"},   {"V1", "U8"},   {"i1", "U8"},
                                                                {"u2", "BF16"}, {"V2", "BF16"}, {"u4", "U32"}};
  for (const auto& [npy, safetensors] : types) {
    if (h.dtype == npy) return safetensors;
  }
  return nullptr;
}

}  // namespace

io::safetensors_file merge_tensors(const std::vector<named_array>& arrays, const io::safetensors_file* file) {
  io::safetensors_writer writer;
  std::set<std::string> names;
  for (const auto& [name, array] : arrays) {
    if (!names.insert(name).second) throw io::error("--tensor", "'" + name + "' is given twice");
    if (file != nullptr && file->find(name) != nullptr)
      throw io::error("--tensor", "'" + name + "' is in " + file->name() + " as well");
    const char* dtype = dtype_of(array.header());
    if (dtype == nullptr)
      throw io::error(array.name(), "elements of type '" + array.header().dtype + "' are no tensor's");
    if (array.header().fortran_order && array.shape().size() > 1)
      throw io::error(array.name(), "is in Fortran order; write numpy.ascontiguousarray(x)");
    writer.add(name, dtype, array.shape(), array.bytes());
  }
  if (file != nullptr) {
    for (const io::tensor_info& t : file->tensors()) writer.add(t.name, t.dtype, t.shape, file->bytes(t));
  }
  return io::safetensors_file::from_bytes("--tensor", writer.bytes("--tensor"));
}

io::safetensors_file read_tensors(const std::string& input, const std::vector<std::string>& named) {
  if (named.empty()) {
    if (input.empty()) throw io::error("--input", "needed (or --tensor, --make-case, --list-models)");
    return input == "-" ? io::safetensors_file::from_bytes("standard input", read_pipe())
                        : io::safetensors_file::open(input);
  }
  std::vector<named_array> arrays;
  for (const std::string& argument : named) {
    const std::size_t equals = argument.find('=');
    if (equals == 0 || equals == argument.npos) throw io::error("--tensor", "'" + argument + "' is not NAME=FILE.npy");
    arrays.emplace_back(argument.substr(0, equals), io::npy_file::open(argument.substr(equals + 1)));
  }
  if (input.empty()) return merge_tensors(arrays, nullptr);
  const io::safetensors_file file = read_tensors(input, {});
  return merge_tensors(arrays, &file);
}

}  // namespace rotoscale::validate
