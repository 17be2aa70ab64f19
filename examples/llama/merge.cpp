// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "merge.hpp"

#include <iostream>

#include "exit_codes.hpp"
#include "rotoscale/llama/checkpoint.hpp"

namespace rotoscale::llama_program {

namespace fs = std::filesystem;

namespace {

/// Base and adapters by name, opened and checked.
class merged_weights {
 public:
  explicit merged_weights(const merge_options& o)
      : place_(llama::find_weights(o.base)),
        config_(llama::read_model_config(io::read_json(place_.config()), place_.config().string())),
        base_(io::safetensors_shards::open(place_.directory, place_.stem)),
        adapter_path_(find_adapter(o.adapter)),
        lora_(llama::read_adapter_config(adapter_path_)),
        adapters_(io::safetensors_shards::open(adapter_path_, "adapter_model")),
        parameters_(config_, nullptr, lora_) {
    const std::span all(parameters_.all());
    llama::detail::refuse_others(base_, all.first(parameters_.base_count()), config_);
    llama::detail::refuse_others(adapters_, all.subspan(parameters_.base_count()), config_);
    for (const llama::parameter& p : all) {  // missing tensors and shapes: before anything is written
      const bool own = p.kind == llama::parameter_kind::base;
      llama::detail::for_each_slice(p, [&](const std::string& name, const auto& shape, index_t, index_t) {
        llama::detail::check_tensor(own ? base_ : adapters_, name, shape);
      });
    }
  }

  const llama::model_config& config() const { return config_; }
  const llama::parameter_list& parameters() const { return parameters_; }

  /// One weight with what its adapter adds.
  std::vector<float> values(std::size_t number) const {
    std::vector<float> w = llama::detail::read_slices(base_, parameters_[number], "");
    for (const llama::layer_parameters& l : parameters_.layers()) {
      for (std::size_t i = 0; i < l.adapters.size(); ++i) {
        if (l.of(static_cast<llama::layer_linear>(i)) == number) add(l.adapters[i], parameters_[number].cols, w);
      }
    }
    return w;
  }

 private:
  void add(const llama::adapter_parameters& own, index_t cols, std::vector<float>& w) const {
    if (own.b.empty()) return;
    const auto rank = static_cast<std::size_t>(lora_.rank), in = static_cast<std::size_t>(cols);
    const double scale = lora_.alpha / lora_.rank;
    const std::vector<float> a = llama::detail::read_slices(adapters_, parameters_[own.a], "");
    std::vector<double> sum(in);
    for (std::size_t part = 0; part < own.b.size(); ++part) {
      const llama::parameter& p = parameters_[own.b[part]];
      const std::vector<float> b = llama::detail::read_slices(adapters_, p, "");
      for (std::size_t r = 0; r < static_cast<std::size_t>(p.rows); ++r) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (std::size_t k = 0; k < rank; ++k) {
          const double factor = static_cast<double>(b[r * rank + k]);
          const float* row = &a[(part * rank + k) * in];
          for (std::size_t j = 0; j < in; ++j) sum[j] = std::fma(factor, static_cast<double>(row[j]), sum[j]);
        }
        float* to = &w[(static_cast<std::size_t>(p.base_row) + r) * in];
        for (std::size_t j = 0; j < in; ++j) {
          to[j] = static_cast<float>(std::fma(scale, sum[j], static_cast<double>(to[j])));
        }
      }
    }
  }

  llama::weights_place place_;
  llama::model_config config_;
  io::safetensors_shards base_;
  fs::path adapter_path_;
  llama::lora_config lora_;
  io::safetensors_shards adapters_;
  llama::parameter_list parameters_;
};

}  // namespace

fs::path find_adapter(const fs::path& path) {
  fs::path found = llama::find_checkpoint(path);
  if (!llama::is_adapter(found)) throw io::error(found.string(), "holds no adapters (adapter_model.safetensors)");
  return found;
}

int merge(const merge_options& o) {
  const merged_weights merged(o);
  std::error_code failed;
  if (fs::exists(o.out, failed)) throw io::error(o.out, "exists");
  constexpr std::uint64_t shard = std::uint64_t{5} << 30;  // as Hugging Face's libraries split
  io::safetensors_writer weights;
  weights.metadata["format"] = "pt";
  for (std::size_t i = 0; i < merged.parameters().base_count(); ++i) {
    llama::detail::add_slices(
        weights, merged.parameters()[i], "", [&merged, i] { return merged.values(i); }, o.dtype);
  }
  io::atomic_directory out(o.out);
  weights.write_shards(out.path(), "model", shard);
  io::write_json(out.path() / "config.json",
                 llama::model_config_json(merged.config(), o.dtype == "F32" ? "float32" : "bfloat16"));
  out.commit();
  std::cout << o.out << ": " << merged.parameters().base_count() << " weights\n";
  return exit_ok;
}

}  // namespace rotoscale::llama_program
