// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The parameters of a Llama by name and shape, without memory. Query, key and value projections are one matrix, as are
// gate and up (as Transformer Engine runs them); checkpoints hold them as separate tensors.
#pragma once

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rotoscale/llama/config.hpp"
#include "rotoscale/llama/lora.hpp"
#include "rotoscale/nn/operation_arguments.hpp"
#include "rotoscale/nn/random_streams.hpp"
#include "rotoscale/parallel.hpp"

namespace rotoscale::llama {

/// Whose matrix a parameter is.
enum class parameter_kind { base, adapter_a, adapter_b };

/// A matrix (or vector: one row), with the slices of it that checkpoints name.
struct parameter {
  /// Rows that checkpoints hold as a tensor of their own; the A of a fused adapter has a name for each part that uses
  /// it.
  struct slice {
    std::string name;       ///< Hugging Face's
    index_t first_row = 0;  ///< of the matrix
    index_t rows = 0;       ///< of the slice
  };
  std::vector<slice> slices;                    ///< by first row
  index_t rows = 0;                             ///< of the matrix; 1 for a vector
  index_t cols = 0;                             ///< of the matrix, or the vector's length
  bool is_vector = false;                       ///< shape [cols] in checkpoints, no weight decay
  bool scaled_init = false;                     ///< writes into the residual stream: std / sqrt(2 layers)
  parameter_kind kind = parameter_kind::base;   ///< of the model itself, or of an adapter
  lora_init init = lora_init::kaiming_uniform;  ///< of an A
  std::uint64_t stream = 0;                     ///< of an A: names its initial words
  index_t base_row = 0;                         ///< of a B: the first row of its layer's output that it adds to
  bool trains = true;                           ///< has a gradient, moments and an FP32 master
  index_t offset = 0;                           ///< elements into the arenas of those that train
  std::uint64_t version = 0;                    ///< changes whenever its values do

  /// Elements.
  index_t size() const { return rows * cols; }
  /// The name of its first slice.
  const std::string& name() const { return slices.front().name; }
};

/// Where an adapter's matrices are in the list.
struct adapter_parameters {
  lora_target target;  ///< what it stands beside
  std::size_t a = 0;   ///< number of A
  std::size_t b = 0;   ///< number of B
  double scale = 1;    ///< of what it adds: alpha / rank
};

/// Where a decoder layer's parameters are in the list.
struct layer_parameters {
  std::size_t norm1;          ///< gain before attention
  std::size_t qkv;            ///< query, key and value
  std::size_t o;              ///< attention's output
  std::size_t norm2;          ///< gain before the feed-forward part
  std::size_t gate_up;        ///< gate and up
  std::size_t down;           ///< down
  std::size_t first_adapter;  ///< those of all adapters are [first_adapter, last_adapter), behind the head in the list
  std::size_t last_adapter;   ///< one behind the last
  std::array<std::vector<adapter_parameters>, 4> adapters;  ///< by layer_linear, in the order of the layer's parts

  /// The matrix of a linear layer.
  std::size_t of(layer_linear linear) const {
    constexpr std::size_t layer_parameters::*members[] = {&layer_parameters::qkv, &layer_parameters::o,
                                                          &layer_parameters::gate_up, &layer_parameters::down};
    return this->*members[static_cast<int>(linear)];
  }
};

/// All parameters of a model, in a fixed order: embedding, decoder layers, norm, head; then the adapters of each layer.
class parameter_list {
 public:
  /// `trains` says which parameters have gradients; null: all, or with `lora` the adapters alone.
  explicit parameter_list(const model_config& config, const std::function<bool(const parameter&)>& trains = nullptr,
                          const std::optional<lora_config>& lora = {}) {
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
    base_count_ = all_.size();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].first_adapter = all_.size();
      if (lora) add_adapters(i, *lora);
      layers_[i].last_adapter = all_.size();
    }
    for (parameter& p : all_) {
      p.trains = trains ? trains(p) : !lora || p.kind != parameter_kind::base;
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
  /// Parameters of the model itself; adapters follow.
  std::size_t base_count() const { return base_count_; }

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
  /// Elements of those that train.
  index_t trained_count() const {
    index_t n = 0;
    for (const parameter& p : all_) n += p.trains ? p.size() : 0;
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
  /// Adapters of a decoder layer: an A and a B for each target.
  void add_adapters(std::size_t layer, const lora_config& c) {
    constexpr layer_linear linears[] = {layer_linear::qkv, layer_linear::o, layer_linear::gate_up, layer_linear::down};
    for (const layer_linear linear : linears) {
      const parameter base = all_[layers_[layer].of(linear)];
      for (const lora_target& t : c.targets_in(linear)) {
        if (c.rank_of(module_of(slices_of(base, t).front())) == 0) continue;
        layers_[layer].adapters[static_cast<std::size_t>(linear)].push_back(add_adapter(base, layer, t, c));
      }
    }
  }
  adapter_parameters add_adapter(const parameter& base, std::size_t layer, const lora_target& t, const lora_config& c) {
    const std::vector<parameter::slice> parts = slices_of(base, t);
    const index_t first = parts.front().first_row, end = parts.back().first_row + parts.back().rows;
    const std::string module = module_of(parts.front());
    const int rank = c.rank_of(module);
    std::vector<parameter::slice> a, b;
    for (const parameter::slice& s : parts) {
      a.push_back({adapter_name(s, 'A'), 0, rank});
      b.push_back({adapter_name(s, 'B'), s.first_row - first, s.rows});
    }
    const adapter_parameters own{t, add(rank, base.cols, a), add(end - first, rank, b), c.scale_of(module)};
    all_[own.a].kind = parameter_kind::adapter_a;
    all_[own.a].init = c.init;
    all_[own.a].stream = (4 * layer + static_cast<std::size_t>(t.linear)) << 8 | static_cast<std::size_t>(t.slice);
    all_[own.b].kind = parameter_kind::adapter_b;
    all_[own.b].base_row = first;
    return own;
  }
  static std::vector<parameter::slice> slices_of(const parameter& base, const lora_target& t) {
    if (t.fused) return base.slices;
    return {base.slices[static_cast<std::size_t>(t.slice)]};
  }
  /// Path of the module whose weight this is.
  static std::string module_of(const parameter::slice& weight) {
    constexpr std::string_view suffix = ".weight";
    return weight.name.substr(0, weight.name.size() - suffix.size());
  }
  /// PEFT's name for a matrix of the adapter beside a weight.
  static std::string adapter_name(const parameter::slice& weight, char matrix) {
    return "base_model.model." + module_of(weight) + ".lora_" + matrix + ".weight";
  }
  std::size_t add_vector(index_t cols, std::string name) {
    const std::size_t i = add(1, cols, {{std::move(name)}});
    all_[i].is_vector = true;
    return i;
  }

  std::vector<parameter> all_;
  std::vector<layer_parameters> layers_;
  std::size_t norm_ = 0, head_ = 0, base_count_ = 0;
  index_t arena_size_ = 0;
  std::vector<nn::parameter_arena::segment> segments_;
};

/// Number j of a normal sequence (Box and Muller).
inline double normal_number(const random_stream& random, std::size_t j, double std_dev) {
  const double u = (random.word(2 * j) + 0.5) * 0x1p-32;
  const double angle = random.word(2 * j + 1) * (0x1p-32 * 2.0 * 3.14159265358979323846);
  return std_dev * std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}

/// value(j) as number j of `host`: large tensors by all cores, since a billion normal numbers take one of them a
/// minute.
template <class Value>
void fill_numbers(std::vector<float>& host, const Value& value) {
  constexpr std::size_t chunk = std::size_t{1} << 18;
  const std::size_t chunks = (host.size() + chunk - 1) / chunk;
  thread_pool pool(chunks < 16 ? 1 : 0);
  pool.for_each(static_cast<index_t>(chunks), [&](index_t i) {
    const std::size_t first = static_cast<std::size_t>(i) * chunk, last = std::min(host.size(), first + chunk);
    for (std::size_t j = first; j < last; ++j) host[j] = static_cast<float>(value(j));
  });
}

/// An adapter's A from Philox; B is 0. In FP64 and rounded once, so the same on every machine (normal ones up to the
/// last place of std::log and cos).
inline std::vector<float> initial_adapter(const parameter& p, std::uint64_t seed) {
  std::vector<float> host(static_cast<std::size_t>(p.size()), 0.0f);
  if (p.kind == parameter_kind::adapter_b) return host;
  const double bound = 1.0 / std::sqrt(static_cast<double>(p.cols));
  const double std_dev = std::sqrt(2.0 / static_cast<double>(p.cols + p.rows));
  const random_stream random = nn::stream_for(seed, nn::random_purpose::initial_adapters, p.stream);
  fill_numbers(host, [&](std::size_t j) {
    return p.init == lora_init::kaiming_uniform ? std::fma(bound, random.word(2 * j) * 0x1p-31, -bound)
                                                : normal_number(random, j, std_dev);
  });
  return host;
}

/// Normal weights, unit norm gains, from a seed: the same on every machine up to the last place of std::log and cos.
/// `number` is the parameter's place in the list.
inline std::vector<float> initial_values(const parameter& p, std::size_t number, const model_config& config,
                                         std::uint64_t seed) {
  if (p.kind != parameter_kind::base) return initial_adapter(p, seed);
  std::vector<float> host(static_cast<std::size_t>(p.size()), 1.0f);
  if (p.is_vector) return host;
  const double std_dev = config.initializer_range / (p.scaled_init ? std::sqrt(2.0 * config.num_hidden_layers) : 1.0);
  const random_stream random = nn::stream_for(seed, nn::random_purpose::initial_weights, number);
  fill_numbers(host, [&](std::size_t j) { return normal_number(random, j, std_dev); });
  return host;
}

}  // namespace rotoscale::llama
