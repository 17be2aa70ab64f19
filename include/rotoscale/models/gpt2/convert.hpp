// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Model files of llm.c (gpt2_124M.bin), to and from Hugging Face's directories. A file has 256 integers of 32 bits,
// then the tensors of all layers, kind by kind. Version 3 has FP32, version 5 BF16. Matrices are [out, in], as
// parameters are, where Hugging Face's Conv1D has [in, out]. The embedding has rows of padding. Source:
// karpathy/llm.c, train_gpt2.py, write_model.
#pragma once

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/mapped_file.hpp"
#include "rotoscale/models/gpt2/model.hpp"
#include "rotoscale/train/checkpoint.hpp"

namespace rotoscale::gpt2 {

namespace detail {

inline constexpr std::int32_t llmc_magic = 20240326, llmc_fp32 = 3, llmc_bf16 = 5;
inline constexpr index_t llmc_header_bytes = 1024, llmc_vocabulary_step = 128;

/// A model's parameters in the order of the file. Layers have parameters of the same kinds.
inline std::vector<train::parameter> llmc_parameters(const model_config& c) {
  const train::parameter_list list(c);
  const std::vector<train::parameter>& own = list.all();
  const auto layers = static_cast<std::size_t>(c.n_layer), kinds = (own.size() - 4) / layers;
  std::vector<train::parameter> all{own[0], own[1]};  // the embeddings of tokens and positions
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    for (std::size_t layer = 0; layer < layers; ++layer) all.push_back(own[2 + layer * kinds + kind]);
  }
  all.insert(all.end(), own.end() - 2, own.end());  // the last norm
  return all;
}

}  // namespace detail

/// A checked file, mapped: parameters are read on demand.
class llmc_file {
 public:
  /// Throws io::error if it is not a model file of a known version, or differs from its stated length.
  explicit llmc_file(const std::filesystem::path& path) : file_(path), name_(path.string()) {
    const std::span<const std::byte> bytes = file_.bytes();
    if (bytes.size() < static_cast<std::size_t>(detail::llmc_header_bytes)) {
      throw io::error(name_, std::to_string(bytes.size()) + " bytes are too few for the header's 1024");
    }
    std::int32_t header[8];
    std::memcpy(header, bytes.data(), sizeof header);
    if (header[0] != detail::llmc_magic)
      throw io::error(name_, "not a model of llm.c: it does not begin with 20240326");
    if (header[1] != detail::llmc_fp32 && header[1] != detail::llmc_bf16) {
      throw io::error(name_, "version " + std::to_string(header[1]) + " is neither 3 (FP32) nor 5 (BF16)");
    }
    width_ = header[1] == detail::llmc_fp32 ? 4 : 2;
    config_.n_positions = header[2];
    config_.vocab_size = header[3];
    config_.n_layer = header[4];
    config_.n_head = header[5];
    config_.n_embd = header[6];
    if (const auto fault = find_fault(config_)) throw io::error(name_, *fault);
    if (header[7] < header[3] || header[7] > 1 << 25) {
      throw io::error(name_, "padded vocabulary " + std::to_string(header[7]) + " does not fit vocab_size " +
                                 std::to_string(header[3]));
    }
    parameters_ = detail::llmc_parameters(config_);
    index_t size = detail::llmc_header_bytes, padding = header[7] - header[3];
    for (const train::parameter& p : parameters_) {
      offsets_.push_back(size);
      size += (p.rows + std::exchange(padding, 0)) * p.cols * width_;
    }
    if (static_cast<std::size_t>(size) == bytes.size()) return;
    throw io::error(name_, std::to_string(bytes.size()) + " bytes, the header's tensors have " + std::to_string(size));
  }

  /// Shape of the model, from the header.
  const model_config& config() const { return config_; }
  /// Safetensors' name of the file's dtype.
  const char* dtype() const { return width_ == 4 ? "F32" : "BF16"; }
  /// Parameters in the order of the file.
  const std::vector<train::parameter>& parameters() const { return parameters_; }

  /// Rows of parameter i. Throws io::error if the file has been truncated since.
  std::vector<float> read(std::size_t i, index_t first_row, index_t rows) const {
    file_.require_whole();
    const index_t cols = parameters_[i].cols;
    std::vector<float> values(static_cast<std::size_t>(rows * cols));
    io::detail::decode_elements(*io::detail::find_dtype(dtype()),
                                file_.bytes().data() + offsets_[i] + first_row * cols * width_, values);
    return values;
  }

 private:
  io::mapped_file file_;
  std::string name_;
  model_config config_;
  index_t width_ = 4;
  std::vector<train::parameter> parameters_;
  std::vector<index_t> offsets_;
};

/// Writes a model file of llm.c as a new directory: config.json, and model.safetensors with the file's dtype.
inline void read_llmc(const std::filesystem::path& from, const std::filesystem::path& directory) {
  const llmc_file file(from);
  io::atomic_directory out(directory);
  io::safetensors_writer tensors;
  tensors.metadata["format"] = "pt";  // transformers refuses files without it
  for (std::size_t i = 0; i < file.parameters().size(); ++i) {
    train::detail::add_slices(
        tensors, file.parameters()[i], "",
        [&file, i](index_t first, index_t rows) { return file.read(i, first, rows); }, file.dtype());
  }
  tensors.write(out.path() / "model.safetensors");
  const char* const torch = train::detail::stored_dtype_of(file.dtype()).torch;
  io::write_json(out.path() / "config.json", model_config_json(file.config(), torch));
  out.commit();
}

/// Writes a Hugging Face directory as a model file of llm.c. `dtype`: F32 or BF16. The vocabulary is padded to a
/// multiple of 128 with zeros. Throws io::error for weights of another model, an epsilon that llm.c does not have, and
/// numbers that the dtype does not hold.
inline void write_llmc(const std::filesystem::path& to, const train::weights_location& from, const std::string& dtype) {
  if (dtype != "F32" && dtype != "BF16") throw io::error(to.string(), "dtype '" + dtype + "' is neither F32 nor BF16");
  const std::string path = from.config().string();
  const model_config c = read_model_config(io::read_json(path), path);
  if (static_cast<float>(c.layer_norm_epsilon) != 1e-5f) throw io::error(path, "layer_norm_epsilon: llm.c's is 1e-5");
  train::check_weights(from, c);
  const auto model = io::safetensors_shards::open(from.directory, from.stem);
  const index_t step = detail::llmc_vocabulary_step, padded = (c.vocab_size + step - 1) / step * step;
  io::atomic_file out(to);
  const io::byte_sink write = [&](std::span<const std::byte> bytes) {
    out.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  const std::int32_t header[256] = {detail::llmc_magic, dtype == "F32" ? detail::llmc_fp32 : detail::llmc_bf16,
                                    c.n_positions,      c.vocab_size,
                                    c.n_layer,          c.n_head,
                                    c.n_embd,           static_cast<std::int32_t>(padded)};
  write(std::as_bytes(std::span(header)));
  index_t padding = padded - c.vocab_size;
  for (const train::parameter& p : detail::llmc_parameters(c)) {
    std::vector<float> values = train::detail::rows_of(model, p, 0, p.rows);
    train::detail::require_range(to.string(), p, values, 0, train::detail::stored_dtype_of(dtype));
    values.resize(values.size() + static_cast<std::size_t>(std::exchange(padding, 0) * p.cols));
    train::detail::give_floats(values, dtype, write);
  }
  out.commit();
}

}  // namespace rotoscale::gpt2
