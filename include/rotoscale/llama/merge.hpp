// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Adapters added to the weights that they stand beside: a model without adapters, in Hugging Face's files.
#pragma once

#include <algorithm>
#include <cmath>

#include "rotoscale/llama/checkpoint.hpp"

namespace rotoscale::llama {

/// Base and adapters by name, opened and checked.
class merged_weights {
 public:
  /// Throws io::error where tensors are missing, of another shape or too many.
  merged_weights(const weights_place& base, const std::filesystem::path& adapters)
      : config_(read_model_config(io::read_json(base.config()), base.config().string())),
        base_(io::safetensors_shards::open(base.directory, base.stem)),
        lora_(read_adapter_config(adapters)),
        adapters_(io::safetensors_shards::open(adapters, "adapter_model")),
        parameters_(config_, nullptr, lora_) {
    const std::span all(parameters_.all());
    detail::refuse_others(base_, all.first(parameters_.base_count()), config_);
    detail::refuse_others(adapters_, all.subspan(parameters_.base_count()), config_);
    for (const parameter& p : all) {  // missing tensors and shapes: before anything is written
      const bool own = p.kind == parameter_kind::base;
      detail::for_each_slice(p, [&](const std::string& name, const auto& shape, index_t, index_t) {
        detail::check_tensor(own ? base_ : adapters_, name, shape);
      });
    }
  }

  /// The model's shape.
  const model_config& config() const { return config_; }
  /// The base's, and behind them the adapters'.
  const parameter_list& parameters() const { return parameters_; }

  /// A weight of the base with what its adapter adds: w + alpha / rank · B·A, formed in FP64 and rounded once.
  std::vector<float> values(std::size_t number) const {
    std::vector<float> w = detail::read_slices(base_, parameters_[number], "");
    for (const layer_parameters& l : parameters_.layers()) {
      for (std::size_t i = 0; i < l.adapters.size(); ++i) {
        if (l.of(static_cast<layer_linear>(i)) != number) continue;
        for (const adapter_parameters& own : l.adapters[i]) add(own, parameters_[number].cols, w);
      }
    }
    return w;
  }

 private:
  void add(const adapter_parameters& own, index_t cols, std::vector<float>& w) const {
    const auto rank = static_cast<std::size_t>(lora_.rank), in = static_cast<std::size_t>(cols);
    const double scale = lora_.alpha / lora_.rank;
    const parameter& p = parameters_[own.b];
    const std::vector<float> a = detail::read_slices(adapters_, parameters_[own.a], ""),
                             b = detail::read_slices(adapters_, p, "");
    std::vector<double> sum(in);
    for (std::size_t r = 0; r < static_cast<std::size_t>(p.rows); ++r) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::size_t k = 0; k < rank; ++k) {
        const double factor = static_cast<double>(b[r * rank + k]);
        const float* row = &a[k * in];
        for (std::size_t j = 0; j < in; ++j) sum[j] = std::fma(factor, static_cast<double>(row[j]), sum[j]);
      }
      float* to = &w[(static_cast<std::size_t>(p.base_row) + r) * in];
      for (std::size_t j = 0; j < in; ++j) {
        to[j] = static_cast<float>(std::fma(scale, sum[j], static_cast<double>(to[j])));
      }
    }
  }

  model_config config_;
  io::safetensors_shards base_;
  lora_config lora_;
  io::safetensors_shards adapters_;
  parameter_list parameters_;
};

/// Writes a model's directory: config.json, and weights as "F32" or "BF16" in shards of at most 5 GiB. Throws
/// io::error, and leaves nothing then.
inline void write_merged(const merged_weights& merged, const std::filesystem::path& directory,
                         const std::string& type) {
  constexpr std::uint64_t shard = std::uint64_t{5} << 30;  // as Hugging Face's libraries split
  io::safetensors_writer weights;
  weights.metadata["format"] = "pt";
  for (std::size_t i = 0; i < merged.parameters().base_count(); ++i) {
    detail::add_slices(
        weights, merged.parameters()[i], "", [&merged, i] { return merged.values(i); }, type);
  }
  io::atomic_directory out(directory);
  weights.write_shards(out.path(), "model", shard);
  io::write_json(out.path() / "config.json",
                 model_config_json(merged.config(), type == "F32" ? "float32" : "bfloat16"));
  out.commit();
}

}  // namespace rotoscale::llama
