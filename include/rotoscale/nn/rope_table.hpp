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
  std::string rope_type = "llama3";             ///< "llama3" or "linear"
  double factor = 8.0;                          ///< divides the lowest frequencies (linear: all)
  double low_freq_factor = 1.0;                 ///< llama3: wavelengths above original / low are fully stretched
  double high_freq_factor = 4.0;                ///< llama3: wavelengths below original / high are unchanged
  int original_max_position_embeddings = 8192;  ///< llama3: context before stretching, in tokens
};

template <class Visitor>
void describe(Visitor&& v, rope_scaling& s) {
  v("rope_type", s.rope_type, "llama3 or linear");
  v("factor", s.factor, "stretch of the lowest frequencies");
  v("low_freq_factor", s.low_freq_factor, "wavelengths above original/low are stretched in full");
  v("high_freq_factor", s.high_freq_factor, "wavelengths below original/high are left alone");
  v("original_max_position_embeddings", s.original_max_position_embeddings, "context before stretching, tokens");
}

/// The implemented RoPE types besides "default".
inline constexpr const char* rope_types[] = {"llama3", "linear"};

/// A sentence that names the wrong field, or nullopt.
inline std::optional<std::string> find_fault(const rope_scaling& s) {
  const auto usable = [](double x) { return x > 0 && std::isfinite(x); };
  const bool known =
      std::any_of(std::begin(rope_types), std::end(rope_types), [&](const char* type) { return s.rope_type == type; });
  if (!known) return "rope_type: '" + s.rope_type + "' is not supported, only 'llama3' and 'linear' are";
  if (!usable(s.factor)) return "factor: must be positive and finite";
  if (s.rope_type == "linear") return std::nullopt;
  if (s.original_max_position_embeddings <= 0) return "original_max_position_embeddings: must be positive";
  if (!usable(s.low_freq_factor)) return "low_freq_factor: must be positive and finite";
  if (!usable(s.high_freq_factor) || s.high_freq_factor <= s.low_freq_factor) {
    return "high_freq_factor: must be finite and above low_freq_factor";
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

/// Frequency of pair i in radians a token.
inline double rope_frequency(const rope_options& o, index_t i) {
  const double plain = std::pow(o.theta, -2.0 * static_cast<double>(i) / static_cast<double>(o.head_dim));
  if (!o.scaling) return plain;
  const rope_scaling& s = *o.scaling;
  if (s.rope_type == "linear") return plain / s.factor;
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
  for (index_t t = 0; t < seq; ++t) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      table.cosine.push_back(static_cast<float>(std::cos(angle)));
      table.sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace rotoscale::nn
