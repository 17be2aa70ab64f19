// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The parameters of a Llama by name and shape, without memory. Query, key and value projections are one matrix, as are
// gate and up (as Transformer Engine runs them); checkpoints hold them as separate tensors.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/llama/config.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/nn/random_streams.hpp"

namespace rotoscale::llama {

/// A matrix (or vector: one row), with the slices of it that checkpoints name.
struct parameter {
  /// Rows that checkpoints hold as a tensor of their own.
  struct slice {
    std::string name;       ///< Hugging Face's
    index_t first_row = 0;  ///< of the matrix
    index_t rows = 0;       ///< of the slice
  };
  std::vector<slice> slices;  ///< by first row
  index_t rows = 0;           ///< of the matrix; 1 for a vector
  index_t cols = 0;           ///< of the matrix, or the vector's length
  bool is_vector = false;     ///< shape [cols] in checkpoints, no weight decay
  bool scaled_init = false;   ///< writes into the residual stream: std / sqrt(2 layers)
  bool trains = true;         ///< has a gradient, moments and an FP32 master
  index_t offset = 0;         ///< elements into the arenas of those that train
  std::uint64_t version = 0;  ///< changes whenever its values do

  /// Elements.
  index_t size() const { return rows * cols; }
  /// The name of its first slice.
  const std::string& name() const { return slices.front().name; }
};

/// Where a decoder layer's parameters are in the list.
struct layer_parameters {
  std::size_t norm1;    ///< gain before attention
  std::size_t qkv;      ///< query, key and value
  std::size_t o;        ///< attention's output
  std::size_t norm2;    ///< gain before the feed-forward part
  std::size_t gate_up;  ///< gate and up
  std::size_t down;     ///< down
};

/// All parameters of a model, in a fixed order: embedding, decoder layers, norm, head.
class parameter_list {
 public:
  /// `trains` says which parameters have gradients; null: all.
  explicit parameter_list(const model_config& config, const std::function<bool(const parameter&)>& trains = nullptr) {
    const index_t d = config.hidden_size, f = config.intermediate_size;
    const index_t q = config.query_size(), kv = config.key_value_size();
    add(config.vocab_size, d, {{"model.embed_tokens.weight"}});
    for (int i = 0; i < config.num_hidden_layers; ++i) {
      const std::string at = "model.layers." + std::to_string(i) + ".";
      const std::string attn = at + "self_attn.", mlp = at + "mlp.";
      layer_parameters l{};
      l.norm1 = add_vector(d, at + "input_layernorm.weight");
      l.qkv =
          add(q + 2 * kv, d,
              {{attn + "q_proj.weight", 0, q}, {attn + "k_proj.weight", q, kv}, {attn + "v_proj.weight", q + kv, kv}});
      l.o = add(d, q, {{attn + "o_proj.weight"}});
      l.norm2 = add_vector(d, at + "post_attention_layernorm.weight");
      l.gate_up = add(2 * f, d, {{mlp + "gate_proj.weight", 0, f}, {mlp + "up_proj.weight", f, f}});
      l.down = add(d, f, {{mlp + "down_proj.weight"}});
      all_[l.o].scaled_init = all_[l.down].scaled_init = true;
      layers_.push_back(l);
    }
    norm_ = add_vector(d, "model.norm.weight");
    head_ = config.tie_word_embeddings ? 0 : add(config.vocab_size, d, {{"lm_head.weight"}});
    for (parameter& p : all_) {
      p.trains = !trains || trains(p);
      if (!p.trains) continue;
      p.offset = arena_size_;
      segments_.push_back({p.offset, p.size(), !p.is_vector});
      arena_size_ += (p.size() + nn::parameter_alignment - 1) / nn::parameter_alignment * nn::parameter_alignment;
    }
  }

  /// In order.
  std::vector<parameter>& all() { return all_; }
  /// In order.
  const std::vector<parameter>& all() const { return all_; }
  /// By number.
  parameter& operator[](std::size_t i) { return all_[i]; }
  /// By number.
  const parameter& operator[](std::size_t i) const { return all_[i]; }
  /// Number of the embedding.
  static constexpr std::size_t embedding() { return 0; }
  /// Numbers of each decoder layer's.
  const std::vector<layer_parameters>& layers() const { return layers_; }
  /// Number of the last norm's gain.
  std::size_t norm() const { return norm_; }
  std::size_t head() const { return head_; }  ///< the embedding where they are tied

  /// Elements of the arenas of those that train, and where each lies in them.
  index_t arena_size() const { return arena_size_; }
  /// Those that train, in the arenas.
  const std::vector<nn::parameter_arena::segment>& segments() const { return segments_; }

  /// Elements of all.
  index_t count() const {
    index_t n = 0;
    for (const parameter& p : all_) n += p.size();
    return n;
  }

 private:
  std::size_t add(index_t rows, index_t cols, std::vector<parameter::slice> slices) {
    if (slices.size() == 1) slices[0].rows = rows;
    parameter& p = all_.emplace_back();
    p.slices = std::move(slices);
    p.rows = rows;
    p.cols = cols;
    return all_.size() - 1;
  }
  std::size_t add_vector(index_t cols, std::string name) {
    const std::size_t i = add(1, cols, {{std::move(name)}});
    all_[i].is_vector = true;
    return i;
  }

  std::vector<parameter> all_;
  std::vector<layer_parameters> layers_;
  std::size_t norm_ = 0, head_ = 0;
  index_t arena_size_ = 0;
  std::vector<nn::parameter_arena::segment> segments_;
};

/// Normal weights, unit norm gains, from a seed: the same on every machine up to the last place of std::log and cos.
/// `number` is the parameter's place in the list.
inline std::vector<float> initial_values(const parameter& p, std::size_t number, const model_config& config,
                                         std::uint64_t seed) {
  std::vector<float> host(static_cast<std::size_t>(p.size()), 1.0f);
  if (p.is_vector) return host;
  const double std_dev = config.initializer_range / (p.scaled_init ? std::sqrt(2.0 * config.num_hidden_layers) : 1.0);
  const random_stream random = nn::stream_for(seed, nn::random_purpose::initial_weights, number);
  for (std::size_t j = 0; j < host.size(); ++j) {  // Box and Muller
    const double u = (random.word(2 * j) + 0.5) * 0x1p-32;
    const double angle = random.word(2 * j + 1) * (0x1p-32 * 2.0 * 3.14159265358979323846);
    host[j] = static_cast<float>(std_dev * std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
  }
  return host;
}

}  // namespace rotoscale::llama
