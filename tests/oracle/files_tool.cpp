// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Commands for files_test.py, which compares their output with safetensors, transformers and numpy.
//
//    `files_tool dump DIR`            One JSON line per tensor: name, dtype, shape, hash of its elements as FP32.
//    `files_tool copy DIR OUT LIMIT`  Streams a model's tensors into shards of at most LIMIT bytes.
//    `files_tool config FILE`         Parses config.json and writes it again.
//    `files_tool tokens FILE OUT`     A token file's kind, count and hash; writes the same tokens to OUT.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rotoscale/bits.hpp"
#include "rotoscale/io/safetensors_shards.hpp"
#include "rotoscale/io/token_file.hpp"
#include "rotoscale/models/llama/config_json.hpp"

namespace {

using namespace rotoscale;

/// FNV-1a over 32-bit numbers.
struct number_hash {
  std::uint64_t value = 14695981039346656037u;
  void add(std::uint32_t number) { value = (value ^ number) * 1099511628211u; }
};

std::uint64_t hash_of(const io::safetensors_file& file, const io::tensor_info& info) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : info.shape) count *= static_cast<std::uint64_t>(extent);
  std::vector<float> piece(1000);
  number_hash hash;
  for (std::uint64_t first = 0; first < count; first += piece.size()) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(count - first, piece.size())));
    file.read_floats(info, first, part);
    for (const float x : part) hash.add(fp32_bits(x));
  }
  return hash.value;
}

void dump(const char* directory) {
  const auto model = io::safetensors_shards::open(directory);
  for (const auto& file : model.files()) {
    for (const auto& info : file.tensors()) {
      const nlohmann::ordered_json line = {
          {"name", info.name}, {"dtype", info.dtype}, {"shape", info.shape}, {"hash", hash_of(file, info)}};
      std::puts(line.dump().c_str());
    }
  }
}

void copy(const char* directory, const char* out, std::uint64_t limit) {
  const auto model = io::safetensors_shards::open(directory);
  io::safetensors_writer writer;
  writer.metadata["format"] = "pt";
  for (const auto& file : model.files()) {
    for (const auto& info : file.tensors()) {
      writer.add_streamed(info.name, info.dtype, info.shape, [&file, &info](const io::byte_sink& sink) {
        const auto bytes = file.bytes(info);
        for (std::size_t at = 0; at < bytes.size(); at += 4096)
          sink(bytes.subspan(at, std::min<std::size_t>(4096, bytes.size() - at)));
        file.release(bytes);
      });
    }
  }
  writer.write_shards(out, "model", limit);
}

void show_config(const char* path) {
  std::puts(llama::model_config_json(llama::read_model_config(io::read_json(path), path)).dump().c_str());
}

void copy_tokens(const char* path, const char* out) {
  const auto file = io::token_file::open(path);
  io::token_file_writer writer(out, file.kind());
  number_hash hash;
  file.for_each_chunk([&](std::span<const std::int32_t> piece) {
    for (const std::int32_t token : piece) hash.add(static_cast<std::uint32_t>(token));
    writer.write(piece);
  });
  writer.commit();
  const nlohmann::ordered_json line = {{"kind", file.kind() == io::token_kind::gpt2 ? "gpt-2" : "llama-3"},
                                       {"count", file.size()},
                                       {"hash", hash.value}};
  std::puts(line.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "dump" && argc == 3) {
    dump(argv[2]);
  } else if (command == "copy" && argc == 5) {
    copy(argv[2], argv[3], std::strtoull(argv[4], nullptr, 10));
  } else if (command == "config" && argc == 3) {
    show_config(argv[2]);
  } else if (command == "tokens" && argc == 4) {
    copy_tokens(argv[2], argv[3]);
  } else {
    std::fputs("usage: files_tool dump DIR | copy DIR OUT LIMIT | config FILE | tokens FILE OUT\n", stderr);
    return 2;
  }
  return 0;
} catch (const io::error& e) {
  std::fprintf(stderr, "files_tool: %s\n", e.what());
  return 2;
}
