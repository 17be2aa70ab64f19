// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cosines and sines of RoPE, with Llama 3.1's frequency scaling as Hugging Face's "llama3" rope_type defines it.
// Computed in FP64 on the host and rounded once, so every backend is given the same table.
#pragma once

#include <cmath>
#include <vector>

#include "rotoscale/llama/config.hpp"

namespace rotoscale::llama {

/// Cosines and sines of the rotary position embedding.
struct rope_table {
  std::vector<float> cosine;  ///< [seq, head_dim / 2]
  std::vector<float> sine;    ///< the same
};

/// Frequency of pair i in radians a token.
inline double rope_frequency(const model_config& c, index_t i) {
  const double plain = std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_size()));
  if (!c.rope_scaling) return plain;
  const rope_scaling& s = *c.rope_scaling;
  const double wavelength = 2.0 * 3.14159265358979323846 / plain;
  const double turns = s.original_max_position_embeddings / wavelength;  // in the original context
  if (turns > s.high_freq_factor) return plain;
  if (turns < s.low_freq_factor) return plain / s.factor;
  const double smooth = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  return std::fma(smooth, plain, (1.0 - smooth) * plain / s.factor);
}

/// For positions 0 to seq - 1, computed in FP64 and rounded once.
inline rope_table make_rope_table(const model_config& c, index_t seq) {
  rope_table table;
  std::vector<double> frequencies;
  for (index_t i = 0; i < c.head_size() / 2; ++i) frequencies.push_back(rope_frequency(c, i));
  for (index_t t = 0; t < seq; ++t) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      table.cosine.push_back(static_cast<float>(std::cos(angle)));
      table.sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace rotoscale::llama
