// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry over the safetensors reader: any bytes are refused with io::error, or accepted and then survive being
// written and read again. clang++ -fsanitize=fuzzer,address,undefined.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "rotoscale/io/safetensors.hpp"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check_accepted(const rotoscale::io::safetensors_file& file) {
  rotoscale::io::safetensors_writer writer;
  writer.metadata = file.metadata();
  for (const auto& info : file.tensors()) {
    require(file.find(info.name) == &info);
    writer.add(info.name, info.dtype, info.shape, file.bytes(info));
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::optional<rotoscale::io::safetensors_file> file;
  try {
    file = rotoscale::io::safetensors_file::from_bytes("input", std::string(reinterpret_cast<const char*>(data), size));
  } catch (const rotoscale::io::error&) {
    return 0;
  }
  check_accepted(*file);  // outside of the try: what was accepted must not fail later
  return 0;
}
