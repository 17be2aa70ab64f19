// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Cosines and sines of RoPE, with frequencies scaled as Hugging Face's rope_type "llama3", "linear" or "yarn" says.
// Computed in FP64 on the host and rounded once, so every backend is given the same table.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "rotoscale/models/llama/config.hpp"
#include "rotoscale/nn/blocks/rotary.hpp"

namespace rotoscale::llama {

using nn::rope_table;

namespace detail {

/// Share of the unscaled frequency in YaRN's blend for pair i: 1 up to the pair that makes beta_fast turns in the
/// original context, 0 from the one that makes beta_slow, linear between (transformers: _compute_yarn_parameters).
inline double yarn_share(const model_config& c, index_t i) {
  const rope_scaling& s = *c.rope_scaling;
  const auto dim = static_cast<double>(c.head_size());
  const auto pair_of = [&](double turns) {
    return dim * std::log(s.original_max_position_embeddings / (turns * 2.0 * 3.14159265358979323846)) /
           (2.0 * std::log(c.rope_theta));
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

/// Factor of cosines and sines: 1, but for YaRN's attention factor.
inline double rope_amplitude(const model_config& c) {
  if (!c.rope_scaling || c.rope_scaling->rope_type != "yarn") return 1.0;
  const rope_scaling& s = *c.rope_scaling;
  if (s.attention_factor) return *s.attention_factor;
  const auto scale = [&](double m) { return s.factor <= 1.0 ? 1.0 : 0.1 * m * std::log(s.factor) + 1.0; };
  const double m = s.mscale.value_or(0.0), all = s.mscale_all_dim.value_or(0.0);
  return m != 0.0 && all != 0.0 ? scale(m) / scale(all) : scale(1.0);
}

/// Frequency of pair i in radians a token.
inline double rope_frequency(const model_config& c, index_t i) {
  const double plain = std::pow(c.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.head_size()));
  if (!c.rope_scaling) return plain;
  const rope_scaling& s = *c.rope_scaling;
  if (s.rope_type == "linear") return plain / s.factor;
  if (s.rope_type == "yarn") {
    const double share = detail::yarn_share(c, i);
    return std::fma(share, plain, (1.0 - share) * plain / s.factor);
  }
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
  const double amplitude = rope_amplitude(c);
  for (index_t t = 0; t < seq; ++t) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(t) * frequency;
      table.cosine.push_back(static_cast<float>(amplitude * std::cos(angle)));
      table.sine.push_back(static_cast<float>(amplitude * std::sin(angle)));
    }
  }
  return table;
}

}  // namespace rotoscale::llama
