// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Adds adapters to their base weights. The result is a model without adapters, in Hugging Face's files.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "rotoscale/train/checkpoint.hpp"

namespace rotoscale::train {

/// Base and adapters by name, opened and checked.
class merged_weights {
 public:
  /// Throws io::error where tensors are missing, of another shape or too many.
  merged_weights(const architecture& shape, const weights_location& base, const std::filesystem::path& adapters)
      : shape_(shape),
        base_(io::safetensors_shards::open(base.directory, base.stem)),
        adapters_(io::safetensors_shards::open(adapters, "adapter_model")),
        parameters_(shape_, nullptr, read_adapter_config(adapters)) {
    const std::span all(parameters_.all());
    detail::check_tensors(base_, all.first(parameters_.base_count()), shape_);  // before anything is written
    detail::check_tensors(adapters_, all.subspan(parameters_.base_count()), shape_);
  }

  /// The model's kind and shape.
  const architecture& shape() const { return shape_; }
  /// Parameters of the base, then those of the adapters.
  const parameter_list& parameters() const { return parameters_; }

  /// Rows of a merged weight: w + alpha / rank · B·A, formed in FP64 and rounded once.
  std::vector<float> values(std::size_t number, index_t first_row, index_t rows) const {
    std::vector<float> w = detail::rows_of(base_, parameters_[number], first_row, rows);
    for (const adapter_parameters& own : parameters_.adapters()) {
      if (own.base == number) add(own, parameters_[number].cols, first_row, w);
    }
    return w;
  }

 private:
  /// `w`: the layer's rows from first_row on.
  void add(const adapter_parameters& own, index_t cols, index_t first_row, std::vector<float>& w) const {
    const parameter& p = parameters_[own.b];
    const index_t end_row = first_row + static_cast<index_t>(w.size()) / cols;
    const index_t first = std::max(first_row, p.base_row), end = std::min(end_row, p.base_row + p.rows);
    if (first >= end) return;
    const auto rank = static_cast<std::size_t>(p.cols), in = static_cast<std::size_t>(cols);
    const double scale = own.scale;
    const std::vector<float> a = detail::rows_of(adapters_, parameters_[own.a], 0, parameters_[own.a].rows),
                             b = detail::rows_of(adapters_, p, first - p.base_row, end - first);
    std::vector<double> sum(in);
    for (std::size_t r = 0; r < static_cast<std::size_t>(end - first); ++r) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::size_t k = 0; k < rank; ++k) {
        const double factor = static_cast<double>(b[r * rank + k]);
        const float* row = &a[k * in];
        for (std::size_t j = 0; j < in; ++j) sum[j] = std::fma(factor, static_cast<double>(row[j]), sum[j]);
      }
      float* to = &w[(static_cast<std::size_t>(first - first_row) + r) * in];
      for (std::size_t j = 0; j < in; ++j) {
        to[j] = static_cast<float>(std::fma(scale, sum[j], static_cast<double>(to[j])));
      }
    }
  }

  architecture shape_;
  io::safetensors_shards base_;
  io::safetensors_shards adapters_;
  parameter_list parameters_;
};

/// Writes a model's directory: config.json, and weights as one of stored_dtypes in shards of at most 5 GiB. Throws
/// io::error, also for a sum beyond the dtype, and then leaves nothing. `progress` receives the elements written, of
/// all; `add_files` adds other files.
inline void write_merged(const merged_weights& merged, const std::filesystem::path& directory, const std::string& type,
                         const element_progress& progress = nullptr,
                         const std::function<void(const std::filesystem::path&)>& add_files = nullptr) {
  constexpr std::uint64_t shard = std::uint64_t{5} << 30;  // as Hugging Face's libraries split
  const detail::stored_dtype& stored = detail::stored_dtype_of(type);
  io::safetensors_writer weights;
  weights.metadata["format"] = "pt";
  std::int64_t done = 0, total = 0;
  for (std::size_t i = 0; i < merged.parameters().base_count(); ++i) {
    const parameter& p = merged.parameters()[i];
    total += p.size();
    const auto rows_of = [&, i](index_t first, index_t rows) {
      if (progress) progress(done, total);
      done += rows * p.cols;
      std::vector<float> values = merged.values(i, first, rows);
      detail::require_range(directory.string(), merged.parameters()[i], values, first, stored);
      return values;
    };
    detail::add_slices(weights, p, "", rows_of, type);
  }
  io::atomic_directory out(directory);
  weights.write_shards(out.path(), "model", shard);
  io::write_json(out.path() / "config.json", merged.shape().config_json(stored.torch));
  if (add_files) add_files(out.path());
  out.commit();
}

}  // namespace rotoscale::train
