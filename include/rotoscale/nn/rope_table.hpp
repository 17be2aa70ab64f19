// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Frequencies of RoPE and the table of cosines and sines. Scaling follows the rope_type of Hugging Face. The host
// computes in FP64 and rounds once, so every backend reads the same table.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "rotoscale/config.hpp"

namespace rotoscale::nn {

/// Stretching of RoPE frequencies to longer contexts.
struct rope_scaling {
  std::string rope_type = "llama3";             ///< "llama3", "linear" or "yarn"
  double factor = 8.0;                          ///< divides the lowest frequencies (linear: all)
  double low_freq_factor = 1.0;                 ///< llama3: wavelengths above original / low are fully stretched
  double high_freq_factor = 4.0;                ///< llama3: wavelengths below original / high are unchanged
  int original_max_position_embeddings = 8192;  ///< llama3, yarn: context before stretching, in tokens
  std::optional<double> attention_factor{};     ///< yarn: factor of cosines and sines; unset: from factor and mscale
  std::optional<double> beta_fast{};            ///< yarn: turns in the context above which a pair is unchanged; 32
  std::optional<double> beta_slow{};            ///< yarn: turns below which it is fully stretched; 1
  std::optional<double> mscale{};               ///< yarn: of attention_factor
  std::optional<double> mscale_all_dim{};       ///< yarn: coefficient of the divisor
  std::optional<bool> truncate{};               ///< yarn: blend between whole pairs; true
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

/// The implemented RoPE types besides "default".
inline constexpr const char* rope_types[] = {"llama3", "linear", "yarn"};

/// A sentence that names the wrong field, or nullopt.
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

/// Frequencies of a model.
struct rope_options {
  index_t head_dim = 0;                 ///< even
  double theta = 10000.0;               ///< base
  std::optional<rope_scaling> scaling;  ///< stretched frequencies, or none
};

/// Cosines and sines.
struct rope_table {
  std::vector<float> cosine;  ///< [seq, head_dim / 2]
  std::vector<float> sine;    ///< the same
};

namespace detail {

/// Share of the unscaled frequency in YaRN's blend for pair i (transformers: _compute_yarn_parameters). It is 1 up to
/// the pair that makes beta_fast turns in the original context, 0 from beta_slow turns on, and linear between.
inline double yarn_share(const rope_options& o, index_t i) {
  const rope_scaling& s = *o.scaling;
  const auto dim = static_cast<double>(o.head_dim);
  const auto pair_of = [&](double turns) {
    return dim * std::log(s.original_max_position_embeddings / (turns * 2.0 * 3.14159265358979323846)) /
           (2.0 * std::log(o.theta));
  };
  double low = pair_of(s.beta_fast.value_or(32.0)), high = pair_of(s.beta_slow.value_or(1.0));
  if (s.truncate.value_or(true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  return 1.0 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
}

}  // namespace detail

/// Factor of cosines and sines: YaRN's attention factor, else 1.
inline double rope_amplitude(const rope_options& o) {
  if (!o.scaling || o.scaling->rope_type != "yarn") return 1.0;
  const rope_scaling& s = *o.scaling;
  if (s.attention_factor) return *s.attention_factor;
  const auto scale = [&](double m) { return s.factor <= 1.0 ? 1.0 : 0.1 * m * std::log(s.factor) + 1.0; };
  const double m = s.mscale.value_or(0.0), all = s.mscale_all_dim.value_or(0.0);
  return m != 0.0 && all != 0.0 ? scale(m) / scale(all) : scale(1.0);
}

/// Frequency of pair i in radians a token.
inline double rope_frequency(const rope_options& o, index_t i) {
  const double plain = std::pow(o.theta, -2.0 * static_cast<double>(i) / static_cast<double>(o.head_dim));
  if (!o.scaling) return plain;
  const rope_scaling& s = *o.scaling;
  if (s.rope_type == "linear") return plain / s.factor;
  if (s.rope_type == "yarn") {
    const double share = detail::yarn_share(o, i);
    return std::fma(share, plain, (1.0 - share) * plain / s.factor);
  }
  const double wavelength = 2.0 * 3.14159265358979323846 / plain;
  const double turns = s.original_max_position_embeddings / wavelength;  // in the original context
  if (turns > s.high_freq_factor) return plain;
  if (turns < s.low_freq_factor) return plain / s.factor;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return std::fma(smooth, plain, (1.0 - smooth) * plain / s.factor);
}

/// The table of positions 0 to seq - 1.
inline rope_table make_rope_table(const rope_options& o, index_t seq) {
  rope_table table;
  std::vector<double> frequencies;
  for (index_t i = 0; i < o.head_dim / 2; ++i) frequencies.push_back(rope_frequency(o, i));
  const double amplitude = rope_amplitude(o);
  for (index_t t = 0; t < seq; ++t) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      table.cosine.push_back(static_cast<float>(amplitude * std::cos(angle)));
      table.sine.push_back(static_cast<float>(amplitude * std::sin(angle)));
    }
  }
  return table;
}

}  // namespace rotoscale::nn
