// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Model files of llm.c (gpt2_124M.bin), to and from Hugging Face's directories. A file has 256 integers of 32 bits,
// then the tensors of all layers, kind by kind. Version 3 has FP32, version 5 BF16. Matrices are [out, in], where
// Hugging Face's Conv1D has [in, out]. The embedding has rows of padding. Source: karpathy/llm.c, train_gpt2.py,
// write_model.
#pragma once

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "rotoscale/io/atomic_file.hpp"
#include "rotoscale/io/mapped_file.hpp"
#include "rotoscale/models/gpt2/config_json.hpp"
#include "rotoscale/train/parameter_files.hpp"

namespace rotoscale::gpt2 {

/// A tensor of the file, with Hugging Face's name.
struct llmc_tensor {
  std::string name;         ///< Hugging Face's
  index_t rows = 1;         ///< [rows, cols] in the file; a vector has one row
  index_t cols = 1;         ///< numbers of a row
  index_t padding = 0;      ///< rows of padding after them
  bool transposed = false;  ///< Hugging Face has [cols, rows]

  /// Number of elements.
  index_t size() const { return rows * cols; }
  /// Hugging Face's shape.
  std::vector<std::int64_t> shape() const {
    if (rows == 1 && !name.ends_with("wpe.weight") && !name.ends_with("wte.weight")) return {cols};
    return transposed ? std::vector<std::int64_t>{cols, rows} : std::vector<std::int64_t>{rows, cols};
  }
};

/// All tensors in the order of the file. `padded_vocabulary`: rows of the embedding with padding.
inline std::vector<llmc_tensor> llmc_tensors(const model_config& c, index_t padded_vocabulary) {
  const index_t d = c.n_embd;
  std::vector<llmc_tensor> all = {{"transformer.wte.weight", c.vocab_size, d, padded_vocabulary - c.vocab_size},
                                  {"transformer.wpe.weight", c.n_positions, d}};
  const struct {
    const char* name;
    index_t rows, cols;
    bool transposed;
  } kinds[] = {{"ln_1.weight", 1, d, false},           {"ln_1.bias", 1, d, false},
               {"attn.c_attn.weight", 3 * d, d, true}, {"attn.c_attn.bias", 1, 3 * d, false},
               {"attn.c_proj.weight", d, d, true},     {"attn.c_proj.bias", 1, d, false},
               {"ln_2.weight", 1, d, false},           {"ln_2.bias", 1, d, false},
               {"mlp.c_fc.weight", 4 * d, d, true},    {"mlp.c_fc.bias", 1, 4 * d, false},
               {"mlp.c_proj.weight", d, 4 * d, true},  {"mlp.c_proj.bias", 1, d, false}};
  for (const auto& k : kinds) {
    for (int layer = 0; layer < c.n_layer; ++layer) {
      all.push_back({"transformer.h." + std::to_string(layer) + "." + k.name, k.rows, k.cols, 0, k.transposed});
    }
  }
  all.push_back({"transformer.ln_f.weight", 1, d});
  all.push_back({"transformer.ln_f.bias", 1, d});
  return all;
}

namespace detail {

inline constexpr std::int32_t llmc_magic = 20240326, llmc_fp32 = 3, llmc_bf16 = 5;
inline constexpr index_t llmc_header_bytes = 1024, llmc_vocabulary_step = 128;

}  // namespace detail

/// A checked file, mapped: tensors are read on demand.
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
    tensors_ = llmc_tensors(config_, header[7]);
    index_t size = detail::llmc_header_bytes;
    for (const llmc_tensor& t : tensors_) {
      offsets_.push_back(size);
      size += (t.size() + t.padding * t.cols) * width_;
    }
    if (static_cast<std::size_t>(size) == bytes.size()) return;
    throw io::error(name_, std::to_string(bytes.size()) + " bytes, the header's tensors have " + std::to_string(size));
  }

  /// Shape of the model, from the header.
  const model_config& config() const { return config_; }
  /// Safetensors' name of the file's dtype.
  const char* dtype() const { return width_ == 4 ? "F32" : "BF16"; }
  /// Tensors in the order of the file.
  const std::vector<llmc_tensor>& tensors() const { return tensors_; }

  /// Numbers of tensor i, in Hugging Face's order. Throws io::error if the file has been truncated since.
  std::vector<float> read(std::size_t i) const {
    file_.require_whole();
    const llmc_tensor& t = tensors_[i];
    std::vector<float> values(static_cast<std::size_t>(t.size()));
    io::detail::decode_elements(*io::detail::find_dtype(dtype()), file_.bytes().data() + offsets_[i], values);
    return t.transposed ? train::detail::transposed(values, t.rows, t.cols) : values;
  }

 private:
  io::mapped_file file_;
  std::string name_;
  model_config config_;
  index_t width_ = 4;
  std::vector<llmc_tensor> tensors_;
  std::vector<index_t> offsets_;
};

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

/// Writes a Hugging Face directory as a model file of llm.c. `dtype`: F32 or BF16. The vocabulary is padded to a
/// multiple of 128 with zeros.
inline void write_llmc(const std::filesystem::path& to, const std::filesystem::path& directory,
                       const std::string& dtype) {
  if (dtype != "F32" && dtype != "BF16") throw io::error(to.string(), "dtype '" + dtype + "' is neither F32 nor BF16");
  const std::string path = (directory / "config.json").string();
  const model_config c = read_model_config(io::read_json(path), path);
  const auto model = io::safetensors_shards::open(directory);
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
  for (const llmc_tensor& t : llmc_tensors(c, padded)) {
    std::vector<float> values(static_cast<std::size_t>(t.size()));
    train::detail::read_floats(model, t.name, t.shape(), values);
    if (t.transposed) values = train::detail::transposed(values, t.cols, t.rows);
    values.resize(values.size() + static_cast<std::size_t>(t.padding * t.cols), 0.0f);
    train::detail::give_floats(values, dtype, write);
  }
  out.commit();
}

}  // namespace rotoscale::gpt2
