// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The shape of a Llama-3-style model, with the key names of Hugging Face's config.json.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "rotoscale/config.hpp"

namespace rotoscale::train {}

namespace rotoscale::llama {

using namespace train;

/// Stretching of RoPE frequencies to longer contexts, as Hugging Face's rope_type defines it. Unset: its default.
struct rope_scaling {
  std::string rope_type = "llama3";             ///< "llama3", "linear" or "yarn"
  double factor = 8.0;                          ///< by which the lowest frequencies (linear: all) are divided
  double low_freq_factor = 1.0;                 ///< llama3: wavelengths above original / low are stretched in full
  double high_freq_factor = 4.0;                ///< llama3: wavelengths below original / high are left alone
  int original_max_position_embeddings = 8192;  ///< llama3, yarn: context before stretching, in tokens
  std::optional<double> attention_factor{};     ///< yarn: factor of cosines and sines; unset: from factor and mscale
  std::optional<double> beta_fast{};            ///< yarn: turns in the context above which a pair is left alone; 32
  std::optional<double> beta_slow{};            ///< yarn: turns below which it is stretched in full; 1
  std::optional<double> mscale{};               ///< yarn: of attention_factor
  std::optional<double> mscale_all_dim{};       ///< yarn: of its divisor
  std::optional<bool> truncate{};               ///< yarn: are the pairs between which it blends whole numbers? true
};

/// What config.json says of a model's shape; find_fault says whether it is one.
struct model_config {
  int vocab_size = 256;                             ///< tokens; 256: bytes
  int hidden_size = 128;                            ///< width of the residual stream
  int intermediate_size = 352;                      ///< width of SwiGLU
  int num_hidden_layers = 4;                        ///< decoder layers
  int num_attention_heads = 4;                      ///< query heads
  int num_key_value_heads = 2;                      ///< key and value heads, which divides the query heads
  int head_dim = 0;                                 ///< 0: hidden_size / num_attention_heads
  int max_position_embeddings = 2048;               ///< longest sequence, in tokens
  double rms_norm_eps = 1e-5;                       ///< RMSNorm's epsilon
  double rope_theta = 10000.0;                      ///< RoPE's base
  std::optional<llama::rope_scaling> rope_scaling;  ///< stretched frequencies, or none
  bool tie_word_embeddings = false;                 ///< is the output head the embedding?
  double initializer_range = 0.02;                  ///< standard deviation of initial weights

  /// Width of a head.
  index_t head_size() const { return head_dim > 0 ? head_dim : hidden_size / num_attention_heads; }
  /// Width of all query heads.
  index_t query_size() const { return num_attention_heads * head_size(); }
  /// Width of all key heads, and of all value heads.
  index_t key_value_size() const { return num_key_value_heads * head_size(); }
};

template <class Visitor>
void describe(Visitor&& v, rope_scaling& s) {
  v("rope_type", s.rope_type, "llama3, linear or yarn");
  v("factor", s.factor, "stretch of the lowest frequencies");
  v("low_freq_factor", s.low_freq_factor, "wavelengths above original/low are stretched in full");
  v("high_freq_factor", s.high_freq_factor, "wavelengths below original/high are left alone");
  v("original_max_position_embeddings", s.original_max_position_embeddings, "context before stretching, tokens");
  v("attention_factor", s.attention_factor, "yarn: factor of cosines and sines, or null");
  v("beta_fast", s.beta_fast, "yarn: turns above which a pair is left alone, or null: 32");
  v("beta_slow", s.beta_slow, "yarn: turns below which a pair is stretched in full, or null: 1");
  v("mscale", s.mscale, "yarn: of attention_factor, or null");
  v("mscale_all_dim", s.mscale_all_dim, "yarn: of its divisor, or null");
  v("truncate", s.truncate, "yarn: blend between whole pairs, or null: true");
}

template <class Visitor>
void describe(Visitor&& v, model_config& c) {
  v("vocab_size", c.vocab_size, "tokens (256: bytes)");
  v("hidden_size", c.hidden_size, "residual width");
  v("intermediate_size", c.intermediate_size, "SwiGLU width");
  v("num_hidden_layers", c.num_hidden_layers, "decoder layers");
  v("num_attention_heads", c.num_attention_heads, "query heads");
  v("num_key_value_heads", c.num_key_value_heads, "key-value heads (grouped-query attention)");
  v("head_dim", c.head_dim, "head width; 0: hidden_size / num_attention_heads");
  v("max_position_embeddings", c.max_position_embeddings, "longest sequence, tokens");
  v("rms_norm_eps", c.rms_norm_eps, "RMSNorm epsilon");
  v("rope_theta", c.rope_theta, "RoPE base");
  v("rope_scaling", c.rope_scaling, "RoPE scaling, or null");
  v("tie_word_embeddings", c.tie_word_embeddings, "head shares the embedding");
  v("initializer_range", c.initializer_range, "standard deviation of initial weights");
}

/// Random streams count linear layers in 14 bits.
inline constexpr long long max_layers = 4000;
static_assert(4 * max_layers + 1 <= 1 << 14);

/// The RoPE types that are implemented beside "default".
inline constexpr const char* rope_types[] = {"llama3", "linear", "yarn"};

/// A sentence that says which field is wrong, or nothing.
inline std::optional<std::string> find_fault(const rope_scaling& s) {
  const auto usable = [](double x) { return x > 0 && std::isfinite(x); };
  const bool known =
      std::any_of(std::begin(rope_types), std::end(rope_types), [&](const char* type) { return s.rope_type == type; });
  if (!known) return "rope_type: '" + s.rope_type + "' is not supported, only 'llama3', 'linear' and 'yarn' are";
  if (!usable(s.factor)) return "factor: must be positive and finite";
  if (s.rope_type == "linear") return std::nullopt;
  if (s.original_max_position_embeddings <= 0) return "original_max_position_embeddings: must be positive";
  if (s.rope_type == "llama3") {
    if (!usable(s.low_freq_factor)) return "low_freq_factor: must be positive and finite";
    if (!usable(s.high_freq_factor) || s.high_freq_factor <= s.low_freq_factor) {
      return "high_freq_factor: must be finite and above low_freq_factor";
    }
    return std::nullopt;
  }
  if (s.factor < 1) return "factor: must be at least 1 for yarn";
  if (s.attention_factor && !usable(*s.attention_factor)) return "attention_factor: must be positive and finite";
  if (!usable(s.beta_slow.value_or(1)) || !usable(s.beta_fast.value_or(32)) ||
      s.beta_fast.value_or(32) < s.beta_slow.value_or(1)) {
    return "beta_fast: must be finite and at least beta_slow, which is positive";
  }
  for (const auto& scale : {s.mscale, s.mscale_all_dim}) {
    if (scale && !(*scale >= 0 && std::isfinite(*scale))) return "mscale: must be finite and not negative";
  }
  return std::nullopt;
}

/// A sentence that says which field is wrong, or nothing.
inline std::optional<std::string> find_fault(const model_config& c) {
  // Sizes are kept where products of two fit any index.
  const auto positive = [](const char* name, long long value,
                           long long largest = 1 << 24) -> std::optional<std::string> {
    if (value > 0 && value <= largest) return std::nullopt;
    if (value > 0)
      return std::string(name) + ": must be at most " + std::to_string(largest) + ", is " + std::to_string(value);
    return std::string(name) + ": must be positive, is " + std::to_string(value);
  };
  if (auto f = positive("vocab_size", c.vocab_size)) return f;
  if (auto f = positive("hidden_size", c.hidden_size)) return f;
  if (auto f = positive("intermediate_size", c.intermediate_size)) return f;
  if (auto f = positive("num_hidden_layers", c.num_hidden_layers, max_layers)) return f;
  if (auto f = positive("num_attention_heads", c.num_attention_heads)) return f;
  if (auto f = positive("num_key_value_heads", c.num_key_value_heads)) return f;
  if (auto f = positive("max_position_embeddings", c.max_position_embeddings)) return f;
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    return "num_key_value_heads: " + std::to_string(c.num_key_value_heads) + " does not divide num_attention_heads " +
           std::to_string(c.num_attention_heads);
  }
  if (c.head_dim < 0 || c.head_dim > 65536) return "head_dim: must be between 0 and 65536";
  if (c.head_dim == 0 && c.hidden_size % c.num_attention_heads != 0) {
    return "num_attention_heads: " + std::to_string(c.num_attention_heads) + " does not divide hidden_size " +
           std::to_string(c.hidden_size);
  }
  if (c.head_size() % 2 != 0) return "head_dim: must be even for RoPE, is " + std::to_string(c.head_size());
  const auto usable = [](double x) { return x > 0 && std::isfinite(x); };
  if (!usable(c.rms_norm_eps)) return "rms_norm_eps: must be positive and finite";
  if (!usable(c.rope_theta)) return "rope_theta: must be positive and finite";
  if (!usable(c.initializer_range)) return "initializer_range: must be positive and finite";
  if (c.rope_scaling) {
    if (auto fault = find_fault(*c.rope_scaling)) return "rope_scaling." + *fault;
  }
  if (c.rope_scaling && c.rope_scaling->rope_type == "yarn" && c.rope_theta <= 1) {
    return "rope_theta: must be above 1 for yarn";
  }
  return std::nullopt;
}

}  // namespace rotoscale::llama
