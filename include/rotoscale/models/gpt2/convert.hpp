// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Converts models between llm.c's files and Hugging Face's directories.
#pragma once

#include <filesystem>
#include <string>

#include "rotoscale/models/gpt2/config_json.hpp"
#include "rotoscale/models/gpt2/llmc.hpp"

namespace rotoscale::gpt2 {

/// Writes a model file of llm.c as a new directory: config.json, and model.safetensors with the file's dtype.
inline void read_llmc(const std::filesystem::path& from, const std::filesystem::path& directory) {
  const llmc_file file(from);
  io::atomic_directory out(directory);
  io::safetensors_writer tensors;
  for (std::size_t i = 0; i < file.tensors().size(); ++i) {
    const llmc_tensor& t = file.tensors()[i];
    tensors.add_streamed(t.name, file.dtype(), t.shape(), [&file, i](const io::byte_sink& sink) {
      train::detail::give_floats(file.read(i), file.dtype(), sink);
    });
  }
  tensors.write(out.path() / "model.safetensors");
  const char* const torch = train::detail::stored_dtype_of(file.dtype()).torch;
  io::write_json(out.path() / "config.json", model_config_json(file.config(), torch));
  out.commit();
}

/// Writes a Hugging Face directory as a model file of llm.c. `dtype`: F32 or BF16.
inline void write_llmc(const std::filesystem::path& to, const std::filesystem::path& directory,
                       const std::string& dtype) {
  const std::string path = (directory / "config.json").string();
  const model_config config = read_model_config(io::read_json(path), path);
  const auto model = io::safetensors_shards::open(directory);
  write_llmc(to, config, dtype, [&](const llmc_tensor& t) {
    std::vector<float> values(static_cast<std::size_t>(t.size()));
    train::detail::read_floats(model, t.name, t.shape(), values);
    return values;
  });
}

}  // namespace rotoscale::gpt2
