// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Fuzz target for the safetensors reader. Any bytes are refused with io::error, or accepted and then written and read
// again with the same tensors.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/io/safetensors.hpp"
#include "target.hpp"

namespace safetensors_fuzz {

using rotoscale::fuzz::require;

/// Numeric tensors convert, from the first element and from a later one. All others are refused.
void check_floats(const rotoscale::io::safetensors_file& file, const rotoscale::io::tensor_info& info) {
  const auto* type = rotoscale::io::detail::find_dtype(info.dtype);
  const std::uint64_t count = (info.end - info.begin) * 8 / type->bits;
  std::vector<float> all(static_cast<std::size_t>(count)), rest(static_cast<std::size_t>(count - count / 2));
  bool refused = false;
  try {
    file.read_floats(info, 0, all);
    file.read_floats(info, count / 2, rest);
  } catch (const rotoscale::io::error&) {
    refused = true;
  }
  require(refused == (!type->number || type->bits % 8 != 0));
  if (refused || rest.empty()) return;
  require(std::memcmp(rest.data(), all.data() + count / 2, rest.size() * sizeof(float)) == 0);
}

void check_accepted(const rotoscale::io::safetensors_file& file) {
  rotoscale::io::safetensors_writer writer;
  writer.metadata = file.metadata();
  for (const auto& info : file.tensors()) {
    require(file.find(info.name) == &info);
    check_floats(file, info);
    // Every second tensor is read from a source that returns one byte at a time.
    const auto bytes = file.bytes(info);
    if (info.begin % 2 == 0) {
      writer.add(info.name, info.dtype, info.shape, bytes);
    } else {
      writer.add_streamed(info.name, info.dtype, info.shape, [bytes](const rotoscale::io::byte_sink& sink) {
        for (const std::byte& b : bytes) sink({&b, 1});
      });
    }
  }
  const auto again = rotoscale::io::safetensors_file::from_bytes("again", writer.bytes("again"));
  require(again.metadata() == file.metadata());
  require(again.tensors().size() == file.tensors().size());
  for (const auto& info : file.tensors()) {
    const auto* same = again.find(info.name);
    require(same != nullptr && same->dtype == info.dtype && same->shape == info.shape);
    require(same->begin == info.begin && same->end == info.end);
  }
}

void one_input(const std::uint8_t* data, std::size_t size) {
  std::optional<rotoscale::io::safetensors_file> file;
  try {
    file = rotoscale::io::safetensors_file::from_bytes("input", std::string(reinterpret_cast<const char*>(data), size));
  } catch (const rotoscale::io::error&) {
    return;
  }
  check_accepted(*file);  // outside the try block: an accepted file must not fail later
}

const rotoscale::fuzz::target here("safetensors", one_input);

}  // namespace safetensors_fuzz
